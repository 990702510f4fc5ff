//! Splits a text into tokens.

use super::Tokens;

/// Returns the first token of `rest` and the text behind it. The token of an empty text is empty.
pub(super) fn split_token(rest: &str, tokens: Tokens) -> (&str, &str) {
    let end = match tokens {
        Tokens::Whole => rest.len(),
        Tokens::Characters(count) => {
            rest.char_indices().nth(count).map_or(rest.len(), |(at, _)| at)
        }
        Tokens::Words => end_of_word(rest),
    };
    rest.split_at(end)
}

/// Returns the end of the white space that follows the first word.
fn end_of_word(text: &str) -> usize {
    let mut is_behind = false;
    for (at, c) in text.char_indices() {
        if is_behind && !c.is_whitespace() {
            return at;
        }
        is_behind |= c.is_whitespace() && at > 0;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut rest: &str, tokens: Tokens) -> Vec<&str> {
        let mut found = Vec::new();
        while !rest.is_empty() {
            let (token, behind) = split_token(rest, tokens);
            found.push(token);
            rest = behind;
        }
        found
    }

    #[test]
    fn a_text_is_cut_where_it_is_said() {
        let text = "Let  me\nsee: ü.";
        assert_eq!(all(text, Tokens::Words), ["Let  ", "me\n", "see: ", "ü."]);
        assert_eq!(all(text, Tokens::Whole), [text]);
        assert_eq!(all("aüc", Tokens::Characters(2)), ["aü", "c"]);
        assert_eq!(all(" a", Tokens::Words), [" a"]);
        assert_eq!(split_token("", Tokens::Words), ("", ""));
    }
}

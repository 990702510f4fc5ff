//! Reads a Rust file for the rules: its tokens without comments and strings, and every path in it,
//! with groups expanded. It is not a compiler: the output of macros is not seen.

/// A word or a sign, with its line (from 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub line: usize,
    pub text: String,
}

/// A path as written, with groups expanded: `use crate::{a, b::c}` is `crate::a` and `crate::b::c`.
/// A leading `super` that leaves the file's own top-level module becomes `crate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    pub line: usize,
    pub names: Vec<String>,
}

/// Returns `text` with comments, strings and characters replaced by spaces. Line breaks stay.
pub fn without_comments_and_strings(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut blanked = String::with_capacity(text.len());
    let mut place = 0;
    while place < chars.len() {
        let end = match chars[place] {
            '/' if chars.get(place + 1) == Some(&'/') => line_comment_end(&chars, place),
            '/' if chars.get(place + 1) == Some(&'*') => block_comment_end(&chars, place),
            '"' => string_end(&chars, place + 1),
            'r' | 'b' | 'c' if !follows_a_word(&chars, place) => prefixed_end(&chars, place),
            '\'' => character_end(&chars, place),
            _ => place,
        };
        if end > place {
            blanked.extend(chars[place..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            place = end;
        } else {
            blanked.push(chars[place]);
            place += 1;
        }
    }
    blanked
}

fn follows_a_word(chars: &[char], place: usize) -> bool {
    place > 0 && is_word(chars[place - 1])
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn line_comment_end(chars: &[char], start: usize) -> usize {
    chars[start..].iter().position(|c| *c == '\n').map_or(chars.len(), |length| start + length)
}

/// The end of a block comment. Block comments nest.
fn block_comment_end(chars: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut place = start;
    while place + 1 < chars.len() {
        match (chars[place], chars[place + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') => depth -= 1,
            _ => {
                place += 1;
                continue;
            }
        }
        place += 2;
        if depth == 0 {
            return place;
        }
    }
    chars.len()
}

/// The end of a string. `start` is behind the opening quote.
fn string_end(chars: &[char], start: usize) -> usize {
    let mut place = start;
    while place < chars.len() {
        match chars[place] {
            '\\' => place += 2,
            '"' => return place + 1,
            _ => place += 1,
        }
    }
    chars.len()
}

/// The end of `r"…"`, `br#"…"#`, `b"…"`, `c"…"` or `b'…'`. Returns `start` itself if it is none of
/// these.
fn prefixed_end(chars: &[char], start: usize) -> usize {
    let letters = chars[start..].iter().take(3).take_while(|c| "rbc".contains(**c)).count();
    let raw = chars[start..start + letters].contains(&'r');
    let hashes = chars[start + letters..].iter().take_while(|c| **c == '#').count();
    let open = start + letters + hashes;
    match chars.get(open) {
        Some('"') if raw => {
            let mut place = open + 1;
            while place < chars.len() {
                let closing = chars[place..].iter().skip(1).take(hashes);
                if chars[place] == '"' && closing.filter(|c| **c == '#').count() == hashes {
                    return place + 1 + hashes;
                }
                place += 1;
            }
            chars.len()
        }
        Some('"') if hashes == 0 => string_end(chars, open + 1),
        Some('\'') if hashes == 0 && !raw => character_end(chars, open),
        _ => start,
    }
}

/// The end of a character. Returns `start` itself if the quote opens a lifetime.
fn character_end(chars: &[char], start: usize) -> usize {
    match (chars.get(start + 1), chars.get(start + 2)) {
        (Some('\\'), Some(_)) => chars[start + 3..]
            .iter()
            .position(|c| *c == '\'')
            .map_or(chars.len(), |length| start + 3 + length + 1),
        (Some(_), Some('\'')) => start + 3,
        _ => start,
    }
}

/// The words and signs of a blanked text. `::` is one sign, every other sign is one character.
pub fn tokens(blanked: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    for (number, line) in blanked.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = match first {
                c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                ':' if rest.starts_with("::") => 2,
                c => c.len_utf8(),
            };
            tokens.push(Token { line: number + 1, text: rest[..length].to_string() });
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

/// Every path in `tokens`. `module_depth` is the number of modules around the file's items: 1 for
/// `src/engine/mod.rs`, 2 for `src/engine/wheel.rs`.
pub fn paths(tokens: &[Token], module_depth: usize) -> Vec<Path> {
    let mut paths = Vec::new();
    let mut brace_depth = 0;
    let mut inline_modules = Vec::new(); // The brace depth that each `mod name {` opened.
    let mut place = 0;
    while place < tokens.len() {
        match tokens[place].text.as_str() {
            "{" => brace_depth += 1,
            "}" => {
                if inline_modules.last() == Some(&brace_depth) {
                    inline_modules.pop();
                }
                brace_depth -= 1;
            }
            "mod" if text_at(tokens, place + 2) == "{" => inline_modules.push(brace_depth + 1),
            word if starts_a_path(word, tokens, place) => {
                let found = paths.len();
                place = read_path(tokens, place, &[], &mut paths);
                let depth = module_depth + inline_modules.len();
                paths[found..].iter_mut().for_each(|path| resolve_super(path, depth));
                continue;
            }
            _ => {}
        }
        place += 1;
    }
    paths
}

fn text_at(tokens: &[Token], place: usize) -> &str {
    tokens.get(place).map_or("", |token| token.text.as_str())
}

fn starts_a_path(word: &str, tokens: &[Token], place: usize) -> bool {
    let leads_on = text_at(tokens, place + 1) == "::";
    let used_alone = place > 0 && text_at(tokens, place - 1) == "use";
    let inside = place > 1 && text_at(tokens, place - 1) == "::";
    word.starts_with(is_word) && !inside && (leads_on || used_alone)
}

/// Reads the path or group at `start` behind `prefix`, and returns its end.
fn read_path(tokens: &[Token], start: usize, prefix: &[String], paths: &mut Vec<Path>) -> usize {
    let line = tokens[start].line;
    let mut names = prefix.to_vec();
    let mut place = start;
    loop {
        match text_at(tokens, place) {
            "{" => {
                place += 1;
                while !matches!(text_at(tokens, place), "}" | "") {
                    let begun = place;
                    place = read_path(tokens, place, &names, paths);
                    while !matches!(text_at(tokens, place), "," | "}" | "") {
                        place += 1; // `as name`
                    }
                    place += usize::from(text_at(tokens, place) == "," || place == begun);
                }
                return place + 1;
            }
            word if word.starts_with(is_word) || word == "*" => names.push(word.to_string()),
            _ => break, // A turbofish.
        }
        place += 1;
        if text_at(tokens, place) != "::" {
            break;
        }
        place += 1;
    }
    paths.push(Path { line, names });
    place.max(start + 1)
}

/// Replaces leading `super`s that reach the crate root: `super::super::x`, written two modules
/// deep, is `crate::x`.
fn resolve_super(path: &mut Path, depth: usize) {
    let selves = path.names.iter().take_while(|name| *name == "self").count();
    let supers = path.names[selves..].iter().take_while(|name| *name == "super").count();
    if supers > 0 && supers >= depth {
        path.names.splice(..selves + supers, ["crate".to_string()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths_of(text: &str, module_depth: usize) -> Vec<String> {
        let tokens = tokens(&without_comments_and_strings(text));
        paths(&tokens, module_depth).iter().map(|path| path.names.join("::")).collect()
    }

    #[test]
    fn comments_and_strings_are_blanked_and_nothing_else() {
        for (text, expected) in [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            ("f(\"x \\\" y\", z)", "f(        , z)"),
            ("r#\"a \" b\"# c", "           c"),
            ("br\"a\\\" c", "       c"),
            ("b\"a\" c\"b\" d", "          d"),
            ("'a' + '\\'' + b'\\n' + '\\u{41}'", "    +      +       +         "),
            ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
            ("bar\"x\"", "bar   "),
            ("\"a\nb\"", "  \n  "),
            ("r#type.b", "r#type.b"),
        ] {
            assert_eq!(without_comments_and_strings(text), expected, "{text}");
        }
    }

    #[test]
    fn every_path_is_found_with_its_groups_spelled_out() {
        for (text, expected) in [
            ("use crate::base::Instant;", &["crate::base::Instant"][..]),
            (
                "use crate::{a, b::{c, d as e}, f::*};",
                &["crate::a", "crate::b::c", "crate::b::d", "crate::f::*"],
            ),
            ("use {crate::a, std::b};", &["crate::a", "std::b"]),
            ("use crate as root;", &["crate"]),
            ("let x = crate::a::f(crate::b::C);", &["crate::a::f", "crate::b::C"]),
            ("Vec::<crate::a::B>::new()", &["Vec", "crate::a::B"]),
            ("\"crate::a\"; // crate::b", &[]),
            ("pub(crate) fn f() {}", &[]),
            ("crate\n    ::a", &["crate::a"]),
        ] {
            assert_eq!(paths_of(text, 1), expected, "{text}");
        }
    }

    #[test]
    fn super_is_followed_to_the_root() {
        assert_eq!(paths_of("use super::x;", 1), ["crate::x"]);
        assert_eq!(paths_of("use super::x;", 2), ["super::x"]);
        assert_eq!(paths_of("use super::super::{x, y};", 2), ["crate::x", "crate::y"]);
        let nested = "mod a { fn f() { super::x::g() } mod b { use super::super::y; } } \
                      use super::z;";
        assert_eq!(paths_of(nested, 1), ["super::x::g", "super::super::y", "crate::z"]);
        assert_eq!(paths_of("mod a { use super::super::y; }", 1), ["crate::y"]);
    }
}

//! The rule for the English of doc comments: how a sentence begins, and how long it is.
//!
//! A sentence names its subject first: "The …", "Number of …", "Returns …". It never begins with
//! one of [`OPENERS`], it is not a question, and it has at most [`SENTENCE_WORDS_MAX`] words.
//! Code blocks, tables, headings and link definitions are not prose.

const SENTENCE_WORDS_MAX: usize = 25;
/// Words that no sentence begins with.
const OPENERS: &[&str] = &[
    "As", "How", "Of", "So", "What", "Whatever", "Where", "Which", "Who", "Whoever", "Whom",
    "Whose", "Why",
];
/// Phrases that no sentence contains.
const PHRASES: &[&str] = &[" is to be ", " are to be ", " whoever ", " who asks "];
/// Abbreviations whose full stop ends no sentence.
const ABBREVIATIONS: &[&str] = &["e.g.", "i.e.", "etc.", "vs.", "cf."];

/// The findings in the doc comments of a file: lines, from 1, and texts.
pub fn wrong_sentences(text: &str) -> Vec<(usize, String)> {
    let sentences = paragraphs(text).into_iter().flat_map(|paragraph| sentences(&paragraph));
    sentences.filter_map(|(line, words)| Some((line, wrong(&words)?))).collect()
}

/// The finding of one sentence; `None` if it keeps the rules.
fn wrong(words: &[&str]) -> Option<String> {
    let first = words.first()?.trim_start_matches(['(', '"', '*', '_', '“']);
    let opener = first.trim_end_matches([',', ':']);
    let begins = words[..words.len().min(4)].join(" ");
    if OPENERS.contains(&opener) {
        return Some(format!("a sentence begins with `{opener}`: \"{begins} …\""));
    }
    if words.last()?.trim_end_matches(['"', ')', '*', '_', '”']).ends_with('?') {
        return Some(format!("a question: \"{begins} …\""));
    }
    let spaced = format!(" {} ", words.join(" "));
    if let Some(phrase) = PHRASES.iter().find(|phrase| spaced.contains(**phrase)) {
        return Some(format!("a sentence contains `{}`: \"{begins} …\"", phrase.trim()));
    }
    let count = words.iter().filter(|word| word.chars().any(char::is_alphanumeric)).count();
    (count > SENTENCE_WORDS_MAX).then(|| {
        format!("a sentence of {count} words, {SENTENCE_WORDS_MAX} at most: \"{begins} …\"")
    })
}

/// A paragraph: its words, each with the line that it stands on.
type Paragraph<'a> = Vec<(usize, &'a str)>;

/// The paragraphs of all doc comments. An item of a list is one of its own.
fn paragraphs(text: &str) -> Vec<Paragraph<'_>> {
    let mut paragraphs = Vec::new();
    let mut open: Paragraph = Vec::new();
    let mut kind = "";
    let mut is_code = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let kind_now = ["///", "//!"].into_iter().find(|kind| line.starts_with(kind));
        let kind_now = kind_now.filter(|_| !line.starts_with("////")).unwrap_or("");
        let prose = line[kind_now.len()..].trim();
        if kind_now != kind {
            is_code = false;
        }
        let is_fence = !kind_now.is_empty() && prose.starts_with("```");
        let item = ["- ", "* "].iter().find_map(|mark| prose.strip_prefix(mark));
        let item = item.or_else(|| behind_a_number(prose));
        let is_prose = !kind_now.is_empty()
            && !is_fence
            && !is_code
            && !prose.is_empty()
            && !prose.starts_with(['#', '|', '<'])
            && !is_link_definition(prose);
        if kind_now != kind || !is_prose || item.is_some() {
            paragraphs.push(std::mem::take(&mut open));
        }
        is_code ^= is_fence;
        kind = kind_now;
        if is_prose {
            let words = item.unwrap_or(prose).split_whitespace();
            open.extend(words.map(|word| (number + 1, word)));
        }
    }
    paragraphs.push(open);
    paragraphs.retain(|paragraph| !paragraph.is_empty());
    paragraphs
}

/// The text of an item `1. text`.
fn behind_a_number(prose: &str) -> Option<&str> {
    let digits = prose.find(|c: char| !c.is_ascii_digit()).filter(|count| *count > 0)?;
    prose[digits..].strip_prefix(". ")
}

fn is_link_definition(prose: &str) -> bool {
    prose.starts_with('[') && prose.contains("]: ")
}

/// The sentences of a paragraph: the line where each begins, and its words.
fn sentences<'a>(paragraph: &[(usize, &'a str)]) -> Vec<(usize, Vec<&'a str>)> {
    let mut sentences = Vec::new();
    let mut open: Vec<&str> = Vec::new();
    let mut begin = 0;
    let mut is_in_code = false;
    for (place, (line, word)) in paragraph.iter().enumerate() {
        if open.is_empty() {
            begin = *line;
        }
        open.push(word);
        is_in_code ^= word.matches('`').count() % 2 == 1;
        let next = paragraph.get(place + 1).map(|(_, word)| *word);
        if !is_in_code && ends_a_sentence(word, next) {
            sentences.push((begin, std::mem::take(&mut open)));
        }
    }
    if !open.is_empty() {
        sentences.push((begin, open));
    }
    sentences
}

fn ends_a_sentence(word: &str, next: Option<&str>) -> bool {
    let bare = word.trim_end_matches(['"', ')', '*', '_', '”', '`']);
    if !bare.ends_with(['.', '!', '?']) || ABBREVIATIONS.contains(&bare) {
        return false;
    }
    // A small letter goes on with the same sentence: "`limits.rs` and …".
    next.is_none_or(|next| !next.starts_with(|c: char| c.is_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(text: &str) -> Vec<usize> {
        wrong_sentences(text).iter().map(|(line, _)| *line).collect()
    }

    #[test]
    fn sentences_that_begin_wrongly_are_found() {
        for text in [
            "/// What it is told.",
            "//! Who asks.",
            "    /// The first one. Of these, two.",
            "/// The list:\n/// - As above.",
            "/// A line that\n/// goes on. So it ends.",
            "/// Is it open?",
            "/// 1. Whose turn it is.",
            "/// (Which it is.)",
            "/// The call that is to be made.",
            "/// Greets whoever calls.",
        ] {
            assert_eq!(wrong_sentences(text).len(), 1, "{text}");
        }
        assert_eq!(lines_of("/// One.\n/// Two. What\n/// is it."), [2]);
    }

    #[test]
    fn sentences_that_begin_rightly_are_not_found() {
        for text in [
            "/// The gate. Number of chunks. Returns nothing.",
            "/// Offers a chunk; of these, two.",
            "/// ```\n/// What is code\n/// ```",
            "// What is no doc comment.",
            "/// | What | in a table |",
            "/// # What",
            "/// See `a. What` there, e.g. What.",
            "let x = 1; /// ends",
        ] {
            assert_eq!(wrong_sentences(text), [], "{text}");
        }
    }

    #[test]
    fn long_sentences_are_found() {
        let words = |count: usize| format!("/// Begins{}.", " on".repeat(count - 1));
        assert_eq!(wrong_sentences(&words(SENTENCE_WORDS_MAX)), []);
        assert_eq!(lines_of(&words(SENTENCE_WORDS_MAX + 1)), [1]);
        let two = format!("{} {}", words(SENTENCE_WORDS_MAX), "Begins again.");
        assert_eq!(wrong_sentences(&two), []);
    }
}

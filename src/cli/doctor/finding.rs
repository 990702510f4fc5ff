//! The findings of the doctor, and their output: as text for a person, or as JSON.

use serde_json::{Value, json};

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// All is well.
    Good,
    /// It works, but could work better, or deserves attention.
    Note,
    /// Something does not work.
    Hindrance,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// A short name of the check, for people and for programs.
    pub subject: &'static str,
    pub level: Level,
    /// The observed state.
    pub found: String,
    /// The meaning of that state for streamdoor.
    pub means: String,
    /// The advice, if anything can be done.
    pub advice: Option<String>,
}

impl Level {
    /// Returns the name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Level::Good => "ok",
            Level::Note => "note",
            Level::Hindrance => "hindrance",
        }
    }

    /// Returns the mark at the start of a line.
    fn mark(self) -> &'static str {
        match self {
            Level::Good => "ok",
            Level::Note => "note",
            Level::Hindrance => "BAD",
        }
    }
}

impl Finding {
    /// Returns a finding of level [`Level::Good`].
    pub fn good(subject: &'static str, found: impl Into<String>, means: impl Into<String>) -> Self {
        let (level, advice) = (Level::Good, None);
        Finding { subject, level, found: found.into(), means: means.into(), advice }
    }

    /// Returns a finding of level [`Level::Note`]. See [`Finding::advise`].
    pub fn note(subject: &'static str, found: impl Into<String>, means: impl Into<String>) -> Self {
        Finding { level: Level::Note, ..Finding::good(subject, found, means) }
    }

    /// Returns a finding of level [`Level::Hindrance`].
    pub fn bad(subject: &'static str, found: impl Into<String>, means: impl Into<String>) -> Self {
        Finding { level: Level::Hindrance, ..Finding::good(subject, found, means) }
    }

    /// Returns the finding with this advice.
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    fn to_json(&self) -> Value {
        json!({
            "subject": self.subject,
            "level": self.level.name(),
            "found": self.found,
            "means": self.means,
            "advice": self.advice,
        })
    }
}

/// True if any finding is a hindrance.
pub fn is_hindered(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.level == Level::Hindrance)
}

/// Returns all findings as JSON.
pub fn to_json(findings: &[Finding]) -> Value {
    let list: Vec<Value> = findings.iter().map(Finding::to_json).collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "ok": !is_hindered(findings),
        "findings": list,
    })
}

/// Returns all findings as text, in lines of at most `columns` characters.
pub fn to_text(findings: &[Finding], columns: usize) -> String {
    let subject_width = findings.iter().map(|finding| finding.subject.len()).max().unwrap_or(0);
    let indent = 6 + subject_width + 2;
    let mut text = String::new();
    for finding in findings {
        let head = format!("{:<5} {:<subject_width$}", finding.level.mark(), finding.subject);
        paragraph(&mut text, &head, &finding.found, indent, columns);
        paragraph(&mut text, "", &finding.means, indent, columns);
        if let Some(advice) = &finding.advice {
            paragraph(&mut text, "", &format!("What to do: {advice}"), indent, columns);
        }
    }
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let last_words = match (count(Level::Hindrance), count(Level::Note)) {
        (0, 0) => "Everything works.".to_owned(),
        (0, notes) => format!("Nothing hinders; {notes} to note."),
        (bad, _) => format!("{bad} of {} hinder (marked BAD).", findings.len()),
    };
    text.push('\n');
    text.push_str(&last_words);
    text
}

/// Appends words between `indent` and `columns`, with `head` on the first line.
fn paragraph(out: &mut String, head: &str, words: &str, indent: usize, columns: usize) {
    const WORDS_WIDTH_MIN: usize = 30; // Kept even on a narrower terminal.
    let columns = columns.max(indent + WORDS_WIDTH_MIN);
    let mut line = format!("{head:indent$}");
    let mut is_begun = false;
    for word in words.split_whitespace() {
        let is_full = line.chars().count() + word.chars().count() > columns;
        if is_full && is_begun {
            out.push_str(line.trim_end());
            out.push('\n');
            line = " ".repeat(indent);
        }
        line.push_str(word);
        line.push(' ');
        is_begun = true;
    }
    out.push_str(line.trim_end());
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_told_in_lines_that_fit() {
        let findings = [
            Finding::good("memfd", "works", "Rings can be made."),
            Finding::note("psi", "absent", "One two three four five six seven eight nine ten.")
                .advise("Boot with psi=1."),
        ];
        let text = to_text(&findings, 44);
        let expected = "\
ok    memfd  works
             Rings can be made.
note  psi    absent
             One two three four five six
             seven eight nine ten.
             What to do: Boot with psi=1.

Nothing hinders; 1 to note.";
        assert_eq!(text, expected);
        assert!(text.lines().all(|line| line.chars().count() <= 44), "{text}");
        let narrow = to_text(&findings, 1);
        assert!(narrow.lines().all(|line| line.chars().count() <= 13 + 30), "{narrow}");
    }

    #[test]
    fn only_what_hinders_is_not_well() {
        let note = Finding::note("a", "b", "c");
        assert!(!is_hindered(std::slice::from_ref(&note)));
        let findings = [note, Finding::bad("d", "e", "f").advise("g")];
        assert!(is_hindered(&findings));
        let document = to_json(&findings);
        assert_eq!(document["ok"], false);
        assert_eq!(document["findings"][0]["advice"], Value::Null);
        assert_eq!(document["findings"][1]["level"], "hindrance");
        assert!(to_text(&findings, 80).ends_with("1 of 2 hinder (marked BAD)."));
    }
}

//! The screens that are kept, and how the bytes of a program become a screen.

use std::fmt::Write as _;
use std::num::NonZero;
use std::path::PathBuf;

/// Units behind numbers that differ at each run.
const UNITS: [&str; 8] = ["µs", "ms", "s", "bytes/s", "KiB/s", "MiB/s", "GiB/s", "%/s"];

/// The screens of a program, as the file `kept/NAME.txt` has them.
pub struct Kept {
    path: PathBuf,
    text: String,
}

impl Kept {
    pub fn new(name: &str) -> Kept {
        let path = format!("{}/tests/screens/kept/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        Kept { path: path.into(), text: String::new() }
    }

    pub fn add(&mut self, title: &str, screen: &str) {
        writeln!(self.text, "== {title}\n{screen}").unwrap();
    }

    /// Compares all screens with the file, or writes it if `UPDATE_SCREENS` is set.
    pub fn check(self) {
        if std::env::var_os("UPDATE_SCREENS").is_some() {
            std::fs::create_dir_all(self.path.parent().unwrap()).unwrap();
            std::fs::write(&self.path, self.text).unwrap();
            return;
        }
        let kept = std::fs::read_to_string(&self.path).unwrap_or_default();
        let differs = kept.lines().zip(self.text.lines()).position(|(one, other)| one != other);
        let at = differs.map_or("behind the end".to_owned(), |at| format!("in line {}", at + 1));
        let path = self.path.display();
        assert!(kept == self.text, "{path} differs {at}; the present screens are:\n{}", self.text);
    }
}

/// Draws the output of a program. Each row ends in `|` at the width of the terminal. A row with
/// styles is followed by a row with their letters: b(old), d(im), i(nverse), u(nderlined), r(ed),
/// c(olour).
pub fn drawn(text: &str, lines: u16, columns: u16) -> String {
    let mut terminal =
        vt100::Parser::new(NonZero::new(lines).unwrap(), NonZero::new(columns).unwrap(), 0);
    terminal.process(without_times(text).as_bytes());
    let screen = terminal.screen();
    let mut drawn = String::new();
    let mut blank_rows = 0;
    for row in 0..lines {
        let mut content = String::new();
        let mut styles = String::new();
        for column in 0..columns {
            let cell = screen.cell(row, column).unwrap();
            content += if cell.has_contents() { cell.contents() } else { " " };
            styles.push(match cell.fgcolor() {
                _ if cell.inverse() => 'i',
                _ if cell.bold() => 'b',
                _ if cell.dim() => 'd',
                _ if cell.underline() => 'u',
                vt100::Color::Default => ' ',
                vt100::Color::Idx(1) => 'r',
                _ => 'c',
            });
        }
        if content.trim().is_empty() && styles.trim().is_empty() {
            blank_rows += 1;
            continue;
        }
        // Blank rows at the end are no part of the screen.
        drawn += &format!("{}|\n", " ".repeat(columns.into())).repeat(blank_rows);
        blank_rows = 0;
        writeln!(drawn, "{content}|").unwrap();
        if !styles.trim().is_empty() {
            writeln!(drawn, "{}", styles.trim_end()).unwrap();
        }
    }
    drawn
}

/// Replaces each number in front of a unit of time or of a rate by `N`.
fn without_times(text: &str) -> String {
    let mut replaced = String::new();
    for (at, word) in text.split(' ').enumerate() {
        let word_end = word.find(['\r', '\n', ',', ';', ':', '\x1b']).unwrap_or(word.len());
        let number_end = replaced.len();
        let is_unit = UNITS.contains(&&word[..word_end]);
        let begin = replaced.rfind(|c: char| !c.is_ascii_digit() && c != '.');
        let begin = begin.map_or(0, |before| before + 1);
        if is_unit && begin < number_end && at > 0 {
            replaced.truncate(begin);
            replaced.push_str("N T");
            replaced.push_str(&word[word_end..]);
            continue;
        }
        if at > 0 {
            replaced.push(' ');
        }
        replaced.push_str(word);
    }
    replaced
}

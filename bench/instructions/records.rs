//! Recorded counts: a file for people and for git, and the comparison with it.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use streamdoor::wire::toml;

use crate::common::Failure;

/// Smaller differences are ignored, because allocators and hashes differ a little.
const TOLERANCE_PERCENT: f64 = 3.0;

/// Recorded counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Records {
    /// The compiler and the profile.
    pub made_by: String,
    /// The accepted difference of a count, in percent.
    pub tolerance_percent: f64,
    /// The counts by the name of the operation.
    pub counts: BTreeMap<String, f64>,
}

impl Records {
    /// Returns records without any count.
    pub fn empty() -> Records {
        let (made_by, counts) = (String::new(), BTreeMap::new());
        Records { made_by, tolerance_percent: TOLERANCE_PERCENT, counts }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`Failure::Usage`], which names the file and the problem.
    pub fn read(path: &Path) -> Result<Records, Failure> {
        let wrong = |text: String| Failure::Usage(format!("--check {}: {text}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        Records::parse(&text).map_err(wrong)
    }

    fn parse(text: &str) -> Result<Records, String> {
        let value = toml::parse(text)?;
        let made_by = value["made_by"].as_str().ok_or("made_by: must be a text")?.to_owned();
        let tolerance = value["tolerance_percent"].as_f64().filter(|percent| *percent > 0.0);
        let tolerance_percent = tolerance.ok_or("tolerance_percent: must be a number above 0")?;
        let Value::Object(members) = &value["instructions"] else {
            return Err("[instructions] is needed".to_owned());
        };
        let mut counts = BTreeMap::new();
        for (name, count) in members {
            let count = count.as_f64().filter(|count| *count > 0.0);
            let count = count.ok_or_else(|| format!("{name}: must be a number above 0"))?;
            counts.insert(name.clone(), count);
        }
        Ok(Records { made_by, tolerance_percent, counts })
    }

    /// Writes the file, replacing an older one.
    ///
    /// # Errors
    /// [`Failure::Failed`], which names it.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let written = std::fs::write(path, self.to_text());
        written.map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))
    }

    /// Returns the text of the file.
    pub fn to_text(&self) -> String {
        let Records { made_by, tolerance_percent, counts } = self;
        let mut text = format!(
            "# Instructions of one hot operation each: `bench instructions --help`.\n\
             made_by = \"{made_by}\"\ntolerance_percent = {tolerance_percent:?}\n\n[instructions]\n"
        );
        for (name, count) in counts {
            text += &format!("{name} = {count:.1}\n");
        }
        text
    }

    /// Returns a table of the `counted` values beside the recorded ones. Also returns true if all
    /// of them agree. If `is_whole` is false, recorded operations may be missing from `counted`.
    pub fn compare(&self, counted: &BTreeMap<String, f64>, is_whole: bool) -> (String, bool) {
        let mut text =
            format!("{:<20}{:>12}{:>12}{:>10}\n", "operation", "counted", "recorded", "change");
        let mut is_good = true;
        for (name, count) in counted {
            let Some(recorded) = self.counts.get(name) else {
                is_good = false;
                text += &format!("{name:<20}{count:>12.1}{:>12}  NOT RECORDED\n", "-");
                continue;
            };
            let percent = 100.0 * (count / recorded - 1.0);
            let is_same = percent.abs() <= self.tolerance_percent;
            is_good &= is_same;
            let verdict = if is_same { "" } else { "  CHANGED" };
            text += &format!("{name:<20}{count:>12.1}{recorded:>12.1}{percent:>+9.1}%{verdict}\n");
        }
        let missing = self.counts.iter().filter(|(name, _)| !counted.contains_key(*name));
        for (name, recorded) in missing.filter(|_| is_whole) {
            is_good = false;
            text += &format!("{name:<20}{:>12}{recorded:>12.1}  DOES NOT EXIST\n", "-");
        }
        (text, is_good)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(counts: &[(&str, f64)]) -> Records {
        let counts = counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        Records { made_by: "rustc 1.2.3, release".into(), counts, ..Records::empty() }
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let records = records(&[("publish", 512.0), ("wheel-arm", 40.5)]);
        assert_eq!(Records::parse(&records.to_text()), Ok(records));
    }

    #[test]
    fn a_count_that_was_changed_by_hand_is_found_whichever_way() {
        let counted = records(&[("one", 1_000.0), ("two", 50.0)]).counts;
        let is_good = |recorded: &[(&str, f64)]| records(recorded).compare(&counted, true).1;
        assert!(is_good(&[("one", 1_000.0), ("two", 50.0)]));
        assert!(is_good(&[("one", 1_029.0), ("two", 49.0)]), "both are within 3 %");
        for wrong in [1_032.0, 969.0, 2_000.0, 1.0] {
            assert!(!is_good(&[("one", wrong), ("two", 50.0)]), "{wrong}");
        }
        assert!(!is_good(&[("one", 1_000.0)]), "one is not recorded");
        let more = [("one", 1_000.0), ("three", 1.0), ("two", 50.0)];
        assert!(!is_good(&more), "one does not exist");
        let (text, is_good) = records(&more).compare(&counted, false);
        assert!(is_good && !text.contains("three"), "only some were counted: {text}");
    }

    #[test]
    fn a_file_that_says_something_else_is_refused_with_a_reason() {
        let good = records(&[("one", 1.0)]).to_text();
        for (from, to, names) in [
            ("made_by", "made_for", "made_by"),
            ("tolerance_percent = 3.0", "tolerance_percent = -1", "tolerance_percent"),
            ("[instructions]", "[counts]", "[instructions]"),
            ("one = 1.0", "one = \"many\"", "one"),
            ("one = 1.0", "one 1.0", "line"),
        ] {
            let error = Records::parse(&good.replace(from, to)).unwrap_err();
            assert!(error.contains(names), "{names}: {error}");
        }
    }
}

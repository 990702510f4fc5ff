//! Recorded counts: a file for people and for git, and the comparison with it.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use streamdoor::wire::toml;

use super::lines::Lines;
use crate::common::Failure;

/// Smaller differences are ignored, because allocators and hashes differ a little.
const TOLERANCE_PERCENT: f64 = 3.0;
/// Smaller differences are ignored. An unrelated change of the program moves functions and objects,
/// and each of them can then touch one line more or less. From run to run, the operations of a
/// server differ by up to 7 percent. Seven runs of one program wrote to 241 to 259 lines.
const LINES_TOLERANCE_PERCENT: f64 = 8.0;
/// The difference that is accepted for small numbers of cache lines. Eight percent of them are
/// fewer lines than the reasons above move: 37 to 42 lines were counted for one program.
const LINES_SLACK: u64 = 8;

/// The counts of some operations, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// The instructions.
    pub instructions: BTreeMap<String, f64>,
    /// The cache lines. `None` if they were not counted.
    pub lines: Option<BTreeMap<String, Lines>>,
}

/// Recorded counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Records {
    /// The compiler and the profile.
    pub made_by: String,
    /// The accepted difference of a number of instructions, in percent.
    pub tolerance_percent: f64,
    /// The accepted difference of a number of cache lines, in percent.
    pub lines_tolerance_percent: f64,
    /// The counts.
    pub counts: Counts,
}

impl Records {
    /// Returns records of these counts.
    pub fn new(made_by: String, counts: Counts) -> Records {
        Records {
            made_by,
            tolerance_percent: TOLERANCE_PERCENT,
            lines_tolerance_percent: LINES_TOLERANCE_PERCENT,
            counts,
        }
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
        let percent = |name: &str| {
            let percent = value[name].as_f64().filter(|percent| *percent > 0.0);
            percent.ok_or_else(|| format!("{name}: must be a number above 0"))
        };
        let Value::Object(members) = &value["instructions"] else {
            return Err("[instructions] is needed".to_owned());
        };
        let mut instructions = BTreeMap::new();
        for (name, count) in members {
            let count = count.as_f64().filter(|count| *count > 0.0);
            let count = count.ok_or_else(|| format!("{name}: must be a number above 0"))?;
            instructions.insert(name.clone(), count);
        }
        let (lines, lines_tolerance_percent) = match &value["lines"] {
            Value::Null => (None, LINES_TOLERANCE_PERCENT),
            lines => (Some(parse_lines(lines)?), percent("lines_tolerance_percent")?),
        };
        Ok(Records {
            made_by,
            tolerance_percent: percent("tolerance_percent")?,
            lines_tolerance_percent,
            counts: Counts { instructions, lines },
        })
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
        let Records { made_by, tolerance_percent, lines_tolerance_percent, counts } = self;
        let mut text = format!(
            "# Instructions and cache lines of each hot operation: `bench instructions --help`.\n\
             made_by = \"{made_by}\"\ntolerance_percent = {tolerance_percent:?}\n"
        );
        if counts.lines.is_some() {
            text += &format!("lines_tolerance_percent = {lines_tolerance_percent:?}\n");
        }
        text += "\n[instructions]\n";
        for (name, count) in &counts.instructions {
            text += &format!("{name} = {count:.1}\n");
        }
        let Some(lines) = &counts.lines else { return text };
        text += "\n[lines]\n";
        for (name, Lines { code, data, stack, written }) in lines {
            text += &format!(
                "{name} = {{ code = {code}, data = {data}, stack = {stack}, \
                 written = {written} }}\n"
            );
        }
        text
    }

    /// Returns tables of the `counted` values beside the recorded ones. Also returns true if all of
    /// them agree. If `is_whole` is false, recorded operations may be missing from `counted`.
    pub fn compare(&self, counted: &Counts, is_whole: bool) -> (String, bool) {
        let (mut text, mut is_good) = self.compare_instructions(counted, is_whole);
        match (&self.counts.lines, &counted.lines) {
            (Some(recorded), Some(lines)) => {
                let (table, is_same) = self.compare_lines(recorded, lines, is_whole);
                text += &table;
                is_good &= is_same;
            }
            (None, _) => text += "cache lines: not recorded for this profile\n",
            (Some(_), None) => {}
        }
        (text, is_good)
    }

    fn compare_instructions(&self, counted: &Counts, is_whole: bool) -> (String, bool) {
        let mut text =
            format!("{:<20}{:>12}{:>12}{:>10}\n", "instructions", "counted", "recorded", "change");
        let mut is_good = true;
        for (name, count) in &counted.instructions {
            let Some(recorded) = self.counts.instructions.get(name) else {
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
        let recorded = self.counts.instructions.iter();
        let missing = recorded.filter(|(name, _)| !counted.instructions.contains_key(*name));
        for (name, recorded) in missing.filter(|_| is_whole) {
            is_good = false;
            text += &format!("{name:<20}{:>12}{recorded:>12.1}  DOES NOT EXIST\n", "-");
        }
        (text, is_good)
    }

    fn compare_lines(
        &self,
        recorded: &BTreeMap<String, Lines>,
        counted: &BTreeMap<String, Lines>,
        is_whole: bool,
    ) -> (String, bool) {
        let mut text = format!("\n{:<20}", "lines (recorded)");
        for name in Lines::NAMES {
            text += &format!("{name:>16}");
        }
        text.push('\n');
        let mut is_good = true;
        for (name, lines) in counted {
            let recorded = recorded.get(name).map(Lines::numbers);
            text += &format!("{name:<20}");
            let mut is_same = true;
            for (index, count) in lines.numbers().into_iter().enumerate() {
                let recorded = recorded.map(|numbers| numbers[index]);
                is_same &= recorded.is_some_and(|recorded| self.is_near(count, recorded));
                let recorded = recorded.map_or("-".to_owned(), |recorded| recorded.to_string());
                text += &format!("{:>16}", format!("{count} ({recorded})"));
            }
            is_good &= is_same;
            text += match (recorded, is_same) {
                (None, _) => "  NOT RECORDED\n",
                (Some(_), false) => "  CHANGED\n",
                (Some(_), true) => "\n",
            };
        }
        let missing = recorded.keys().filter(|name| !counted.contains_key(*name));
        for name in missing.filter(|_| is_whole) {
            is_good = false;
            text += &format!("{name:<20}  DOES NOT EXIST\n");
        }
        (text, is_good)
    }

    /// True if a number of cache lines is close enough to the recorded one.
    fn is_near(&self, counted: u64, recorded: u64) -> bool {
        let accepted = recorded as f64 * self.lines_tolerance_percent / 100.0;
        counted.abs_diff(recorded) as f64 <= accepted.max(LINES_SLACK as f64)
    }
}

fn parse_lines(value: &Value) -> Result<BTreeMap<String, Lines>, String> {
    let Value::Object(members) = value else {
        return Err("[lines] must be a section".to_owned());
    };
    let mut lines = BTreeMap::new();
    for (name, counts) in members {
        let mut numbers = [0; Lines::NAMES.len()];
        for (number, kind) in numbers.iter_mut().zip(Lines::NAMES) {
            let count = counts[kind].as_u64();
            *number = count.ok_or_else(|| format!("{name}: {kind} must be a whole number"))?;
        }
        lines.insert(name.clone(), numbers.into());
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(counts: &[(&str, f64)]) -> Records {
        let instructions = counts.iter().map(|(name, count)| ((*name).to_owned(), *count));
        let counts = Counts { instructions: instructions.collect(), lines: None };
        Records::new("rustc 1.2.3, release".into(), counts)
    }

    fn with_lines(lines: &[(&str, [u64; 4])]) -> Records {
        let mut records = records(&[("one", 1.0)]);
        let lines = lines.iter().map(|(name, lines)| ((*name).to_owned(), (*lines).into()));
        records.counts.lines = Some(lines.collect());
        records
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let records = records(&[("publish", 512.0), ("wheel-arm", 40.5)]);
        assert_eq!(Records::parse(&records.to_text()), Ok(records));
        let mut records = with_lines(&[("publish", [92, 74, 37, 36]), ("wheel-arm", [9, 8, 7, 0])]);
        records.lines_tolerance_percent = 7.5;
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
    fn a_number_of_lines_that_was_changed_by_hand_is_found_whichever_way() {
        let numbers = [1_000, 100, 20, 10];
        let counted = with_lines(&[("one", numbers)]).counts;
        let is_good = |recorded: [u64; 4]| with_lines(&[("one", recorded)]).compare(&counted, true);
        assert!(is_good(numbers).1);
        for (index, differences) in [[-74, 86], [-8, 8], [-8, 8], [-8, 8]].into_iter().enumerate() {
            for near in differences {
                let mut recorded = numbers;
                recorded[index] = numbers[index].strict_add_signed(near);
                assert!(is_good(recorded).1, "{recorded:?}");
                let further = near + near.signum() * 2;
                recorded[index] = numbers[index].strict_add_signed(further);
                let (text, is_good) = is_good(recorded);
                assert!(!is_good && text.contains("CHANGED"), "{recorded:?}: {text}");
            }
        }
        let more = with_lines(&[("one", numbers), ("two", numbers)]);
        assert!(!with_lines(&[]).compare(&counted, true).1, "one is not recorded");
        assert!(!more.compare(&counted, true).1, "one does not exist");
        let (text, is_good) = more.compare(&counted, false);
        assert!(is_good && !text.contains("two"), "only some were counted: {text}");
    }

    #[test]
    fn a_file_without_lines_agrees_with_all_lines() {
        let counted = with_lines(&[("one", [1, 2, 3, 4])]).counts;
        let (text, is_good) = records(&[("one", 1.0)]).compare(&counted, true);
        assert!(is_good && text.contains("not recorded for this profile"), "{text}");
    }

    #[test]
    fn a_file_that_says_something_else_is_refused_with_a_reason() {
        let good = with_lines(&[("one", [1, 2, 3, 4])]).to_text();
        for (from, to, names) in [
            ("made_by", "made_for", "made_by"),
            ("\ntolerance_percent = 3.0", "\ntolerance_percent = -1", "tolerance_percent"),
            ("lines_tolerance_percent = 8.0", "", "lines_tolerance_percent"),
            ("[instructions]", "[counts]", "[instructions]"),
            ("one = 1.0", "one = \"many\"", "one"),
            ("one = 1.0", "one 1.0", "line"),
            ("data = 2, ", "", "one: data"),
            ("written = 4", "written = -4", "one: written"),
            ("one = { code", "one = 3 # { code", "one: code"),
        ] {
            assert!(good.contains(from), "{from}");
            let error = Records::parse(&good.replace(from, to)).unwrap_err();
            assert!(error.contains(names), "{names}: {error}");
        }
    }
}

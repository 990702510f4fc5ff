//! Suggestions for mistyped words: the nearest of the known ones.
//!
//! No list of words exists for suggestions alone. The options of a command are those of its help
//! text, and the choices for a value are those of the error text.

use std::any::Any;
use std::fmt;
use std::num::{ParseFloatError, ParseIntError};
use std::str::FromStr;

/// Returns the most similar name, or `None` if all names are too different. If no name is similar,
/// a name that `given` begins with counts, as in `retention-s`. Else it is the only name that
/// begins with `given`.
pub fn nearest<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const LETTERS_MAX: usize = 64;
    const BEGINNING_LETTERS_MIN: usize = 2;
    let letters: Vec<char> = given.chars().take(LETTERS_MAX).collect();
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_unstable();
    names.dedup();
    let (distance, name) = names.iter().map(|name| (distance(&letters, name), *name)).min()?;
    if distance <= (1 + name.len()) / 3 {
        return Some(name);
    }
    let is_begun =
        |name: &&&str| given.strip_prefix(**name).is_some_and(|rest| rest.starts_with(['-', '_']));
    if let Some(name) = names.iter().filter(is_begun).max_by_key(|name| name.len()) {
        return Some(name);
    }
    names.retain(|name| name.starts_with(given));
    match names[..] {
        [name] if letters.len() >= BEGINNING_LETTERS_MIN => Some(name),
        _ => None,
    }
}

/// Returns the number of letters to change, to insert, to remove, or to swap with the next one.
fn distance(given: &[char], name: &str) -> usize {
    let name: Vec<char> = name.chars().collect();
    // `rows[line][column]` is the distance of the first `column` letters of `given` from the first
    // `line` letters of `name`.
    let mut rows: Vec<Vec<usize>> = vec![(0..=given.len()).collect()];
    for line in 1..=name.len() {
        let mut row = vec![line];
        for column in 1..=given.len() {
            let is_changed = given[column - 1] != name[line - 1];
            let changed = rows[line - 1][column - 1] + usize::from(is_changed);
            let mut least = changed.min(rows[line - 1][column] + 1).min(row[column - 1] + 1);
            if line > 1
                && column > 1
                && given[column - 1] == name[line - 2]
                && given[column - 2] == name[line - 1]
            {
                least = least.min(rows[line - 2][column - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[name.len()][given.len()]
}

/// Returns the end of an error text: `; did you mean NAME?`, or nothing without a name.
pub fn did_you_mean(name: Option<impl fmt::Display>) -> String {
    name.map_or_else(String::new, |name| format!("; did you mean {name}?"))
}

/// Returns the error text for the option `given`, such as `--polcy`, of a command with this help.
pub fn unknown_option(given: &str, help: &str) -> String {
    let name = given.strip_prefix("--").map(|name| name.replace('_', "-"));
    let near = name.and_then(|name| nearest(&name, options_of(help)));
    let near = near.map(|name| format!("--{name}"));
    format!("unknown option {given}{}", did_you_mean(near))
}

/// Returns the options that a help text describes, without their dashes. Lines of options begin
/// with two spaces and a dash, and lines of usage with `Usage:` or seven spaces. Two more spaces
/// end the options of a line.
pub fn options_of(help: &str) -> impl Iterator<Item = &str> {
    let lines = help.lines().filter_map(|line| {
        let usage = line.strip_prefix("Usage: ").or_else(|| line.strip_prefix("       "));
        let usage = usage.filter(|usage| usage.starts_with("streamdoor "));
        usage.or_else(|| line.strip_prefix("  ").filter(|line| line.starts_with('-')))
    });
    let heads = lines.map(|line| line.split_once("  ").map_or(line, |(head, _)| head));
    let words = heads.flat_map(|head| head.split([' ', ',', '[', '=']));
    words.filter_map(|word| word.strip_prefix("--")).filter(|name| !name.is_empty())
}

/// Returns `problem`, the nearest of the known names, and then all of them. `are` introduces them:
/// `tools are`.
pub fn unknown_name(problem: &str, name: &str, known: &[&str], are: &str) -> String {
    let all = known.join(", ");
    match nearest(name, known.iter().copied()) {
        _ if known.is_empty() => problem.to_owned(),
        Some(near) => format!("{problem}; did you mean {near}? The {are}: {all}"),
        None => format!("{problem}; the {are}: {all}"),
    }
}

/// Returns the error text for a value that is no `T`. Numbers are told their range.
pub fn wrong_value<T>(given: &str, error: &T::Err) -> String
where
    T: FromStr,
    T::Err: fmt::Display + 'static,
{
    let error_type: &dyn Any = error;
    if error_type.is::<ParseIntError>() {
        // Options are unsigned. The largest number is the largest one that can be parsed.
        let bounds = [u64::MAX, u32::MAX.into(), u16::MAX.into(), u8::MAX.into()];
        let max = bounds.into_iter().find(|max| max.to_string().parse::<T>().is_ok());
        return format!("must be a number from 0 to {}", max.unwrap_or_default());
    }
    if error_type.is::<ParseFloatError>() {
        return "must be a number".to_owned();
    }
    let problem = error.to_string();
    let hint = did_you_mean(nearest(given, choices_of::<T>(&problem)));
    problem + &hint
}

/// Returns the words of an error text that are values of the type.
fn choices_of<T: FromStr>(problem: &str) -> impl Iterator<Item = &str> {
    let words = problem.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let is_name = |word: &str| word.starts_with(|letter: char| letter.is_ascii_alphabetic());
    words.filter(move |word| is_name(word) && word.parse::<T>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use streamdoor::reactor::Choice;
    use streamdoor::stream::Policy;

    #[test]
    fn the_nearest_name_is_similar_or_the_only_one_that_continues_the_word() {
        let names = ["serve", "stdio", "run", "top", "conflate", "cat", "slow_data_processor"];
        for (given, expected) in [
            ("serv", Some("serve")),
            ("server", Some("serve")),
            ("stdoi", Some("stdio")),
            ("rnu", Some("run")),
            ("runn", Some("run")),
            ("conf", Some("conflate")),
            ("slow_data_procesor", Some("slow_data_processor")),
            ("slow", Some("slow_data_processor")),
            ("s", None),
            ("foo", None),
            ("", None),
        ] {
            assert_eq!(nearest(given, names), expected, "{given}");
        }
        assert_eq!(nearest("run", []), None);
        assert_eq!(nearest("sea", ["search", "sea_level"]), None);
    }

    #[test]
    fn an_unknown_option_is_told_the_nearest_of_the_help_text() {
        const HELP: &str = "\
Usage: streamdoor x [OPTIONS] --tool NAME   run it --polca
       streamdoor x --named EXECUTION
  --policy P          the behaviour, see --polce
  --max-chunks N, --max-bytes N
                      --continued
  --mcp [NAME=]URL  a server
  --server [URL]    another
--polco is no option
  -h, --help          show this text
";
        let options: Vec<&str> = options_of(HELP).collect();
        let expected =
            ["tool", "named", "policy", "max-chunks", "max-bytes", "mcp", "server", "help"];
        assert_eq!(options, expected);
        for (given, expected) in [
            ("--polcy", "unknown option --polcy; did you mean --policy?"),
            ("--max_byte", "unknown option --max_byte; did you mean --max-bytes?"),
            ("--frobnicate", "unknown option --frobnicate"),
            ("-x", "unknown option -x"),
        ] {
            assert_eq!(unknown_option(given, HELP), expected);
        }
    }

    #[test]
    fn an_unknown_name_is_told_the_nearest_first_and_then_all() {
        let known = ["search_files", "process_file"];
        for (name, known, expected) in [
            (
                "seach_files",
                &known[..],
                "unknown; did you mean search_files? The tools are: search_files, process_file",
            ),
            ("x", &known, "unknown; the tools are: search_files, process_file"),
            ("x", &[], "unknown"),
        ] {
            assert_eq!(unknown_name("unknown", name, known, "tools are"), expected, "{name}");
        }
    }

    #[test]
    fn a_wrong_value_is_told_its_range_or_the_nearest_choice() {
        fn told<T: FromStr>(given: &str) -> String
        where
            T::Err: fmt::Display + 'static,
        {
            wrong_value::<T>(given, &given.parse::<T>().err().expect("it is wrong"))
        }
        for given in ["-1", "many", "", "1e3", "99999999999999999999999"] {
            let expected = format!("must be a number from 0 to {}", u64::MAX);
            assert_eq!(told::<u64>(given), expected, "{given}");
            let expected = format!("must be a number from 0 to {}", u32::MAX);
            assert_eq!(told::<u32>(given), expected, "{given}");
        }
        assert_eq!(told::<f64>("warm"), "must be a number");
        assert!(told::<Policy>("blok").ends_with("; did you mean block?"));
        assert!(told::<Choice>("urng").ends_with("; did you mean uring?"));
        assert!(!told::<Policy>("unknow").contains("did you mean"));
        assert!(!told::<Choice>("must").contains("did you mean"));
    }
}

//! The environment of started programs: chosen, not inherited.
//!
//! The environment of this process may hold tokens, keys and private addresses. A command or an
//! upstream therefore gets only the few variables that programs need ([`INHERITED`]), and those
//! that are requested by name. It never gets a variable that is known to hold a key.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The variables that started programs inherit from this process: search paths, user, language,
/// terminal and time zone. Variables with the prefix `LC_` are inherited as well.
pub const INHERITED: [&str; 11] = [
    "HOME",
    "LANG",
    "LANGUAGE",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
    "XDG_RUNTIME_DIR",
];
const INHERITED_PREFIX: &str = "LC_";

/// A requested variable: `NAME` with the value in this process, or `NAME=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    name: String,
    value: Option<String>,
}

/// The error for a text that is neither `NAME` nor `NAME=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariableParseError;

impl fmt::Display for VariableParseError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("must be NAME or NAME=VALUE")
    }
}

impl std::error::Error for VariableParseError {}

impl FromStr for Variable {
    type Err = VariableParseError;
    fn from_str(word: &str) -> Result<Variable, VariableParseError> {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word, None),
        };
        if name.is_empty() || word.contains('\0') {
            return Err(VariableParseError);
        }
        Ok(Variable { name: name.to_owned(), value })
    }
}

impl fmt::Display for Variable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(out, "{}={value}", self.name),
            None => out.write_str(&self.name),
        }
    }
}

/// The environment variables of a started program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment(Arc<[(OsString, OsString)]>);

impl Environment {
    /// The variables of this process that are in `INHERITED`, and those that are `asked` for. A
    /// name in `secret` is never taken from this process, even if it is asked for.
    pub fn of_process(asked: &[Variable], secret: &[String]) -> Environment {
        let is_asked = |name: &str| {
            asked.iter().any(|variable| variable.name == name && variable.value.is_none())
        };
        let is_wanted = |name: &str| {
            let is_usual = INHERITED.contains(&name) || name.starts_with(INHERITED_PREFIX);
            (is_usual || is_asked(name)) && !secret.iter().any(|secret| secret == name)
        };
        let inherited =
            std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_wanted));
        let given = asked.iter().filter_map(|variable| {
            Some((OsString::from(&variable.name), OsString::from(variable.value.as_ref()?)))
        });
        Environment(inherited.chain(given).collect())
    }

    /// The names and values. If a name occurs twice, the later value counts.
    pub fn variables(&self) -> impl Iterator<Item = (&OsString, &OsString)> {
        self.0.iter().map(|(name, value)| (name, value))
    }
}

impl Default for Environment {
    /// The variables of this process that are in `INHERITED`.
    fn default() -> Environment {
        Environment::of_process(&[], &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(environment: &Environment, wanted: &str) -> Option<String> {
        let found = environment.variables().filter(|(name, _)| *name == wanted);
        found.last().map(|(_, value)| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_variable_is_a_name_or_a_name_and_a_value() {
        for word in ["A", "A=", "A=b=c", "ä=ö"] {
            assert_eq!(word.parse::<Variable>().unwrap().to_string(), word);
        }
        for word in ["", "=", "=b", "A\0", "A=\0"] {
            assert_eq!(word.parse::<Variable>(), Err(VariableParseError), "{word:?}");
        }
    }

    /// Cargo sets `CARGO_MANIFEST_DIR` for every test.
    #[test]
    fn nothing_is_inherited_that_was_not_chosen() {
        const OURS: &str = "CARGO_MANIFEST_DIR";
        let usual = Environment::default();
        assert_eq!(value(&usual, OURS), None);
        assert_eq!(value(&usual, "PATH"), std::env::var("PATH").ok());
        let asked = [OURS.parse().unwrap(), "ONE=1".parse().unwrap()];
        let more = Environment::of_process(&asked, &["PATH".to_owned()]);
        assert_eq!(value(&more, OURS), std::env::var(OURS).ok());
        assert_eq!((value(&more, "ONE").as_deref(), value(&more, "PATH")), (Some("1"), None));
        let secret = Environment::of_process(&asked, &[OURS.to_owned()]);
        assert_eq!(value(&secret, OURS), None);
    }
}

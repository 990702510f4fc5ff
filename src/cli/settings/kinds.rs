//! Kinds of settings: each is read from the command line and from TOML, and written as TOML.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use streamdoor::endpoint::{HostName, Origin};
use streamdoor::limits::{SETTING_ITEMS_MAX, SHARDS_MAX};
use streamdoor::reactor::{Choice, Idle, ListenAddress};
use streamdoor::stream::Durability;
use streamdoor::tool::Variable;
use streamdoor::trace::{Level, LogFormat};
use streamdoor::wire::subscriptions::Network;
use toml::de::DeValue;

use super::super::hints::wrong_value;
use super::super::options::{duration, spelled};
use super::super::telemetry::Collector;
use super::builtin::{Builtin, McpTools};

/// A value that can be set. Error texts do not contain the name of the setting.
pub trait Setting {
    /// Returns the placeholder of the value in the help text.
    fn placeholder(&self) -> String;
    /// Reads a word of the command line. A list grows by one item.
    fn read_word(&mut self, word: &str) -> Result<(), String>;
    /// Reads a value of TOML. A list is replaced.
    fn read_toml(&mut self, value: &DeValue<'_>) -> Result<(), String>;
    /// Returns the value as TOML.
    fn to_toml(&self) -> String;
    /// Empties a list.
    fn clear(&mut self) {}
    /// True if the flag needs no value on the command line, but may have one: `=off`.
    fn is_switch(&self) -> bool {
        false
    }
}

/// On or off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switch(pub bool);

impl Setting for Switch {
    fn placeholder(&self) -> String {
        String::new()
    }

    fn read_word(&mut self, word: &str) -> Result<(), String> {
        self.0 = match word {
            "" | "on" | "true" => true,
            "off" | "false" => false,
            _ => return Err(format!("must be on or off, not {word:?}")),
        };
        Ok(())
    }

    fn read_toml(&mut self, value: &DeValue<'_>) -> Result<(), String> {
        let DeValue::Boolean(is_on) = value else {
            return Err(format!("must be true or false, not {}", shown(value)));
        };
        self.0 = *is_on;
        Ok(())
    }

    fn to_toml(&self) -> String {
        self.0.to_string()
    }

    fn is_switch(&self) -> bool {
        true
    }
}

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number<const MIN: u64, const MAX: u64>(pub u64);

impl<const MIN: u64, const MAX: u64> Number<MIN, MAX> {
    fn set(&mut self, number: Option<u64>, given: &str) -> Result<(), String> {
        let number = number.filter(|number| (MIN..=MAX).contains(number));
        let problem = || format!("must be a whole number from {MIN} to {MAX}, not {given}");
        self.0 = number.ok_or_else(problem)?;
        Ok(())
    }
}

impl<const MIN: u64, const MAX: u64> Setting for Number<MIN, MAX> {
    fn placeholder(&self) -> String {
        "N".to_owned()
    }

    fn read_word(&mut self, word: &str) -> Result<(), String> {
        let is_number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
        self.set(word.parse().ok().filter(|_| is_number), word)
    }

    fn read_toml(&mut self, value: &DeValue<'_>) -> Result<(), String> {
        self.set(whole_number(value), &shown(value))
    }

    fn to_toml(&self) -> String {
        self.0.to_string()
    }
}

/// A number of bytes from `MIN` to `MAX`. A text may end in KiB, MiB, GiB or TiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes<const MIN: u64, const MAX: u64>(pub u64);

const UNITS: [(&str, u64); 4] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl<const MIN: u64, const MAX: u64> Setting for Bytes<MIN, MAX> {
    fn placeholder(&self) -> String {
        "BYTES".to_owned()
    }

    fn read_word(&mut self, word: &str) -> Result<(), String> {
        let unit = UNITS.iter().find_map(|(name, bytes)| Some((word.strip_suffix(name)?, *bytes)));
        let (number, unit_bytes) = unit.unwrap_or((word, 1));
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let number: Option<u64> = number.parse().ok().filter(|_| is_number);
        let bytes = number.and_then(|number| number.checked_mul(unit_bytes));
        let problem =
            || format!("must be {MIN} to {MAX} bytes, as 65536, 64KiB or 16MiB, not {word:?}");
        self.0 = bytes.filter(|bytes| (MIN..=MAX).contains(bytes)).ok_or_else(problem)?;
        Ok(())
    }

    fn read_toml(&mut self, value: &DeValue<'_>) -> Result<(), String> {
        match value {
            DeValue::String(text) => self.read_word(text),
            other => match whole_number(other) {
                Some(number) => self.read_word(&number.to_string()),
                None => self.read_word(&shown(other)),
            },
        }
    }

    fn to_toml(&self) -> String {
        let is_whole = |bytes: u64| self.0 > 0 && self.0.is_multiple_of(bytes);
        match UNITS.iter().find(|(_, bytes)| is_whole(*bytes)) {
            Some((name, bytes)) => quoted(&format!("{}{name}", self.0 / bytes)),
            None => self.0.to_string(),
        }
    }
}

/// A duration from `MIN_US` to `MAX_US` microseconds. It is written with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time<const MIN_US: u64, const MAX_US: u64>(pub Duration);

impl<const MIN_US: u64, const MAX_US: u64> Time<MIN_US, MAX_US> {
    fn set(&mut self, given: Option<Duration>, word: &str) -> Result<(), String> {
        let range = Duration::from_micros(MIN_US)..=Duration::from_micros(MAX_US);
        self.0 = given.filter(|time| range.contains(time)).ok_or_else(|| {
            let (min, max) = (spelled(*range.start()), spelled(*range.end()));
            format!("must be a time from {min} to {max}, as 500us, 200ms or 60s, not {word}")
        })?;
        Ok(())
    }
}

impl<const MIN_US: u64, const MAX_US: u64> Setting for Time<MIN_US, MAX_US> {
    fn placeholder(&self) -> String {
        "TIME".to_owned()
    }

    fn read_word(&mut self, word: &str) -> Result<(), String> {
        self.set(duration(word), word)
    }

    fn read_toml(&mut self, value: &DeValue<'_>) -> Result<(), String> {
        self.set(value.as_str().and_then(duration), &shown(value))
    }

    fn to_toml(&self) -> String {
        quoted(&spelled(self.0))
    }
}

macro_rules! words {
    ($($kind:ty: $placeholder:expr;)+) => {$(
        impl Setting for $kind {
            fn placeholder(&self) -> String {
                $placeholder.to_owned()
            }

            fn read_word(&mut self, word: &str) -> Result<(), String> {
                *self = item(word)?;
                Ok(())
            }

            fn read_toml(&mut self, value: &DeValue<'_>) -> Result<(), String> {
                self.read_word(text_of(value)?)
            }

            fn to_toml(&self) -> String {
                quoted(&self.to_string())
            }
        }
    )+};
}

words! {
    Choice: "auto|uring|mio";
    Idle: "spin|backoff|block";
    LogFormat: LogFormat::WORDS.join("|");
    Level: "LEVEL";
    Builtin: "auto|none|all|NAMES";
}

/// The cores of the shards, in their order. An empty list stands for one shard without a fixed
/// core.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpus(pub Vec<usize>);

impl fmt::Display for Cpus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(usize::to_string).collect();
        out.write_str(&numbers.join(","))
    }
}

impl FromStr for Cpus {
    type Err = String;
    fn from_str(text: &str) -> Result<Cpus, String> {
        let problem = || format!("must be numbers of cores, as 0,1 or 0-3, not {text:?}");
        let mut cpus = Vec::new();
        if text.is_empty() {
            return Ok(Cpus(cpus));
        }
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: usize = first.trim().parse().map_err(|_| problem())?;
            let last: usize = last.trim().parse().map_err(|_| problem())?;
            if first > last {
                return Err(problem());
            }
            for cpu in first..=last {
                if cpus.contains(&cpu) {
                    return Err(format!("core {cpu} is given twice"));
                }
                if cpus.len() == SHARDS_MAX {
                    return Err(format!("at most {SHARDS_MAX} cores can be used"));
                }
                cpus.push(cpu);
            }
        }
        Ok(Cpus(cpus))
    }
}

/// A file or a folder, or none if it is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilePath(pub Option<PathBuf>);

impl fmt::Display for FilePath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |path| path.display().fmt(out))
    }
}

impl FromStr for FilePath {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<FilePath, Self::Err> {
        Ok(FilePath((!text.is_empty()).then(|| text.into())))
    }
}

/// The URL of a server of another kind. Its user checks it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerUrl(pub String);

impl fmt::Display for ServerUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl FromStr for ServerUrl {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<ServerUrl, Self::Err> {
        Ok(ServerUrl(text.to_owned()))
    }
}

/// The behaviour of a node that is cut off from its cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolated {
    /// Its executions go on.
    #[default]
    Serve,
    /// Its executions fail.
    Stop,
}

impl fmt::Display for Isolated {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Isolated::Serve => "serve",
            Isolated::Stop => "stop",
        })
    }
}

impl FromStr for Isolated {
    type Err = String;
    fn from_str(text: &str) -> Result<Isolated, String> {
        match text {
            "serve" => Ok(Isolated::Serve),
            "stop" => Ok(Isolated::Stop),
            _ => Err(format!("must be serve or stop, not {text:?}")),
        }
    }
}

/// A name, or none if it is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name(pub String);

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl FromStr for Name {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Name, Self::Err> {
        Ok(Name(text.to_owned()))
    }
}

/// A path that has a default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AutoPath {
    /// The default path, if it can be used.
    #[default]
    Auto,
    /// None.
    Off,
    /// This path.
    At(PathBuf),
}

impl fmt::Display for AutoPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AutoPath::Auto => out.write_str("auto"),
            AutoPath::Off => out.write_str("off"),
            AutoPath::At(path) => path.display().fmt(out),
        }
    }
}

impl FromStr for AutoPath {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<AutoPath, Self::Err> {
        match text {
            "" => Err("must be auto, off or a path"),
            "auto" => Ok(AutoPath::Auto),
            "off" => Ok(AutoPath::Off),
            path => Ok(AutoPath::At(path.into())),
        }
    }
}

impl Setting for Cpus {
    fn placeholder(&self) -> String {
        "LIST".to_owned()
    }

    fn read_word(&mut self, word: &str) -> Result<(), String> {
        *self = item(word)?;
        Ok(())
    }

    /// Reads a text as on the command line, or a list of numbers.
    fn read_toml(&mut self, value: &DeValue<'_>) -> Result<(), String> {
        let Some(items) = value.as_array() else { return self.read_word(text_of(value)?) };
        let numbers: Option<Vec<String>> = items
            .iter()
            .map(|item| whole_number(item.get_ref()).map(|number| number.to_string()))
            .collect();
        let numbers = numbers.ok_or("must be a list of numbers of cores, as [0, 1]")?;
        self.read_word(&numbers.join(","))
    }

    fn to_toml(&self) -> String {
        quoted(&self.to_string())
    }
}

words! {
    AutoPath: "PATH";
    Durability: "none|written|synced|replicated";
    FilePath: "PATH";
    Isolated: "serve|stop";
    Name: "NAME";
    ServerUrl: "URL";
    Collector: "URL";
}

macro_rules! lists {
    ($($kind:ty: $placeholder:literal;)+) => {$(
        impl Setting for Vec<$kind> {
            fn placeholder(&self) -> String {
                $placeholder.to_owned()
            }

            fn read_word(&mut self, word: &str) -> Result<(), String> {
                if self.len() == SETTING_ITEMS_MAX {
                    return Err(format!("at most {SETTING_ITEMS_MAX} can be given"));
                }
                if word.is_empty() {
                    return Err("must not be empty".to_owned());
                }
                self.push(item(word)?);
                Ok(())
            }

            fn read_toml(&mut self, value: &DeValue<'_>) -> Result<(), String> {
                self.clear();
                match value.as_array() {
                    Some(items) => {
                        items.iter().try_for_each(|item| self.read_word(text_of(item.get_ref())?))
                    }
                    None => self.read_word(text_of(value)?),
                }
            }

            fn to_toml(&self) -> String {
                let items = self.iter().map(|item| quoted(&item.to_string()));
                format!("[{}]", items.collect::<Vec<_>>().join(", "))
            }

            fn clear(&mut self) {
                Vec::clear(self);
            }
        }
    )+};
}

lists! {
    HostName: "NAME";
    ListenAddress: "ADDRESS";
    McpTools: "[NAME:]RULES";
    Network: "NETWORK";
    Origin: "ORIGIN";
    ServerUrl: "URL";
    String: "PROGRAM";
    Variable: "NAME[=VALUE]";
}

fn item<T>(word: &str) -> Result<T, String>
where
    T: FromStr,
    T::Err: fmt::Display + 'static,
{
    word.parse().map_err(|error| wrong_value::<T>(word, &error))
}

fn whole_number(value: &DeValue<'_>) -> Option<u64> {
    let number = value.as_integer()?;
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

fn text_of<'a>(value: &'a DeValue<'_>) -> Result<&'a str, String> {
    value.as_str().ok_or_else(|| format!("must be a text in quotes, not {}", shown(value)))
}

/// Returns the value as text that is short enough for an error.
fn shown(value: &DeValue<'_>) -> String {
    const CHARS_MAX: usize = 64;
    let text = match value {
        DeValue::String(text) => quoted(text),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(date) => date.to_string(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    };
    text.chars().take(CHARS_MAX).collect()
}

/// Returns a basic string of TOML: a JSON string in which DEL is escaped, too.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7F}', "\\u007F")
}

//! Tools by name, and their arguments.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::limits;
use crate::tool::{Output, ToolError, Work, process_file, slow_data_processor};

/// What a tool needs of its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Bytes of the window; the smallest class that has them is taken.
    pub ring_bytes: u32,
    /// The longest chunk that must fit, or 0.
    pub chunk_bytes: u32,
}

impl Default for Need {
    fn default() -> Need {
        Need { ring_bytes: limits::RING_NEED_BYTES_DEFAULT, chunk_bytes: 0 }
    }
}

/// A tool with its arguments checked, ready to run.
#[derive(Debug)]
pub struct Prepared {
    /// What runs.
    pub work: Work,
    /// What it needs.
    pub need: Need,
}

/// An argument is missing, unknown, of another type or out of bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentError {
    /// Which.
    pub field: String,
    /// What about it.
    pub problem: String,
}

impl ArgumentError {
    /// `field` has a problem.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> ArgumentError {
        ArgumentError { field: field.into(), problem: problem.into() }
    }
}

impl fmt::Display for ArgumentError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "argument `{}`: {}", self.field, self.problem)
    }
}

impl std::error::Error for ArgumentError {}

/// Why a tool could not be prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartError {
    /// No tool has that name.
    UnknownTool {
        /// The name asked for.
        name: String,
        /// Those there are.
        known: Vec<String>,
    },
    /// Its arguments are wrong.
    Argument(ArgumentError),
}

impl fmt::Display for StartError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::UnknownTool { name, known } => {
                write!(out, "no tool is called `{name}`; there are: {}", known.join(", "))
            }
            StartError::Argument(error) => error.fmt(out),
        }
    }
}

impl std::error::Error for StartError {}

type Prepare = Box<dyn Fn(&Value) -> Result<Prepared, ArgumentError> + Send + Sync>;

/// Tools by name.
#[derive(Default)]
pub struct Tools {
    by_name: BTreeMap<String, Prepare>,
}

impl Tools {
    /// None.
    pub fn new() -> Tools {
        Tools::default()
    }

    /// Those that come with the program.
    pub fn built_in() -> Tools {
        let mut tools = Tools::new();
        tools.insert("slow_data_processor", slow_data_processor::prepare);
        tools.insert("process_file", process_file::prepare);
        tools
    }

    /// Adds a tool, or replaces the one of that name.
    pub fn insert<F>(&mut self, name: &str, prepare: F)
    where
        F: Fn(&Value) -> Result<Prepared, ArgumentError> + Send + Sync + 'static,
    {
        self.by_name.insert(name.to_owned(), Box::new(prepare));
    }

    /// Adds a closure as a tool: `|arguments, out| { out.send(b"…")?; Ok(()) }`.
    pub fn insert_closure<F>(&mut self, name: &str, need: Need, closure: F)
    where
        F: Fn(&Value, &mut Output) -> Result<(), ToolError> + Send + Sync + 'static,
    {
        let closure = Arc::new(closure);
        self.insert(name, move |arguments| {
            let closure = Arc::clone(&closure);
            let arguments = arguments.clone();
            let work = Work::Thread(Box::new(move |out| closure(&arguments, out)));
            Ok(Prepared { work, need })
        });
    }

    /// Checks the arguments of one run.
    ///
    /// # Errors
    /// [`StartError`]; nothing has happened.
    pub fn prepare(&self, name: &str, arguments: &Value) -> Result<Prepared, StartError> {
        let Some(prepare) = self.by_name.get(name) else {
            let known = self.names().map(str::to_owned).collect();
            return Err(StartError::UnknownTool { name: name.to_owned(), known });
        };
        prepare(arguments).map_err(StartError::Argument)
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }
}

impl fmt::Debug for Tools {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list().entries(self.by_name.keys()).finish()
    }
}

/// A tool's arguments, taken one by one; what nobody takes is an error.
pub struct Arguments {
    fields: Map<String, Value>,
}

impl Arguments {
    /// From a JSON object; `null` is the empty one.
    ///
    /// # Errors
    /// If it is anything else.
    pub fn new(arguments: &Value) -> Result<Arguments, ArgumentError> {
        match arguments {
            Value::Null => Ok(Arguments { fields: Map::new() }),
            Value::Object(fields) => Ok(Arguments { fields: fields.clone() }),
            _ => Err(ArgumentError::new("arguments", "must be an object")),
        }
    }

    /// A whole number within `bounds`, or `default` if there is none.
    ///
    /// # Errors
    /// If it is not a whole number, or out of bounds.
    pub fn number(
        &mut self,
        field: &str,
        default: u64,
        bounds: RangeInclusive<u64>,
    ) -> Result<u64, ArgumentError> {
        let Some(value) = self.fields.remove(field) else { return Ok(default) };
        match value.as_u64() {
            Some(number) if bounds.contains(&number) => Ok(number),
            _ => {
                let (low, high) = (bounds.start(), bounds.end());
                let problem = format!("must be a whole number from {low} to {high}, not {value}");
                Err(ArgumentError::new(field, problem))
            }
        }
    }

    /// A string that must be there.
    ///
    /// # Errors
    /// If it is missing, empty, or not a string.
    pub fn text(&mut self, field: &str) -> Result<String, ArgumentError> {
        match self.fields.remove(field) {
            Some(Value::String(text)) if !text.is_empty() => Ok(text),
            Some(Value::String(_)) => Err(ArgumentError::new(field, "must not be empty")),
            Some(other) => Err(ArgumentError::new(field, format!("must be a string, not {other}"))),
            None => Err(ArgumentError::new(field, "is missing")),
        }
    }

    /// Ends the taking.
    ///
    /// # Errors
    /// If a field was not taken: it is unknown.
    pub fn finish(self) -> Result<(), ArgumentError> {
        match self.fields.into_iter().next() {
            Some((field, _)) => Err(ArgumentError::new(field, "is unknown")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn problem(tool: &str, arguments: Value) -> (String, String) {
        match Tools::built_in().prepare(tool, &arguments).unwrap_err() {
            StartError::Argument(error) => (error.field, error.problem),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn each_bad_argument_is_named() {
        let tool = "slow_data_processor";
        assert_eq!(problem(tool, json!({"chunks": -1})).0, "chunks");
        assert_eq!(problem(tool, json!({"chunks": "ten"})).0, "chunks");
        assert_eq!(problem(tool, json!({"delay_ms": 1e12})).0, "delay_ms");
        assert_eq!(problem(tool, json!({"chunk_size": 0})).0, "chunk_size");
        assert_eq!(problem(tool, json!({"chunky": 1})), ("chunky".into(), "is unknown".into()));
        assert_eq!(problem(tool, json!([1])).0, "arguments");
        assert_eq!(problem("process_file", json!({})).1, "is missing");
        assert_eq!(problem("process_file", json!({"file_path": ""})).0, "file_path");
        assert_eq!(problem("process_file", json!({"file_path": 3})).0, "file_path");
    }

    #[test]
    fn an_unknown_tool_is_told_which_there_are() {
        let error = Tools::built_in().prepare("nothing", &Value::Null).unwrap_err();
        assert!(error.to_string().contains("process_file"), "{error}");
    }
}

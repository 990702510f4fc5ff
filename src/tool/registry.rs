//! Tools by name, and their arguments.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::engine::{ProgressSource, Timeouts};
use crate::limits;
#[cfg(feature = "sqlite")]
use crate::tool::query_database;
use crate::tool::schema::{Patterns, Schema};
#[cfg(feature = "tools")]
use crate::tool::{CommandPolicy, generate_timeseries, process, run_command, search_files};
use crate::tool::{
    Files, Need, Output, RemoteCall, ToolError, ToolSpec, VirtualTool, Work, process_file,
    slow_data_processor,
};

/// A tool with its arguments checked, ready to run.
#[derive(Debug)]
pub struct Prepared {
    /// Which tool it is, if it has a name.
    pub tool: Option<Arc<ToolSpec>>,
    /// What runs.
    pub work: Work,
    /// What it needs.
    pub need: Need,
    /// How long it may be silent, and how long it may take.
    pub timeouts: Timeouts,
    /// Where its progress comes from.
    pub progress: ProgressSource,
}

impl Prepared {
    /// With no needs, no timeouts and no progress but its own: what runs without a name.
    pub fn new(work: Work) -> Prepared {
        let timeouts = Timeouts::NONE;
        let progress = ProgressSource::Tool;
        Prepared { tool: None, work, need: Need::default(), timeouts, progress }
    }
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

/// What a tool is to do with these arguments, and what that needs.
type Prepare = Box<dyn Fn(&Value, Need, &Files) -> Result<Plan, ArgumentError> + Send + Sync>;
/// What is to be done, and what that needs.
type Plan = (Work, Need);

struct Entry {
    spec: Arc<ToolSpec>,
    schema: Schema,
    prepare: Prepare,
    /// It is there only where files may be read.
    reads_files: bool,
}

/// Why a tool was not added: its description is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    /// Of which tool.
    pub tool: String,
    /// What about it.
    pub problem: String,
}

impl fmt::Display for SpecError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "tool `{}`: {}", self.tool, self.problem)
    }
}

impl std::error::Error for SpecError {}

/// Tools by name.
#[derive(Default)]
pub struct Tools {
    by_name: BTreeMap<String, Entry>,
    files: Files,
    /// What `run_command` has started. It ends with these tools.
    #[cfg(feature = "tools")]
    commands: Option<process::House>,
}

impl Tools {
    /// None.
    pub fn new() -> Tools {
        Tools::default()
    }

    /// Those that come with the program and may be used by its own user. They read any file:
    /// [`Tools::allow_files`].
    pub fn built_in() -> Tools {
        let mut tools = Tools::new();
        let added = [
            tools.insert(slow_data_processor::spec(), slow_data_processor::prepare),
            tools.insert_reader(process_file::spec(), process_file::prepare),
            #[cfg(feature = "sqlite")]
            tools.insert_reader(query_database::spec(), query_database::prepare),
            #[cfg(feature = "tools")]
            tools.insert(generate_timeseries::spec(), generate_timeseries::prepare),
            #[cfg(feature = "tools")]
            tools.insert_reader(search_files::spec(), search_files::prepare),
        ];
        added.into_iter().collect::<Result<(), _>>().expect("ours are right");
        tools
    }

    /// Says which files the built-in tools may read from now on; with [`Files::Nowhere`] those that
    /// read files do not exist. A command that is not free to be any ([`CommandPolicy::Only`]) runs
    /// in a folder among them.
    ///
    /// [`CommandPolicy::Only`]: crate::tool::Tools::allow_commands
    pub fn allow_files(&mut self, files: Files) {
        self.files = files;
    }

    /// Adds `run_command`, which is not among those of [`Tools::built_in`]: it lets whoever may run
    /// tools start processes. They do not outlive this value: when it is dropped (with its shard)
    /// they are told to end, killed if they do not, and waited for; for 2.5 s at most.
    #[cfg(feature = "tools")]
    pub fn allow_commands(&mut self, policy: CommandPolicy) {
        let groups = self.commands.get_or_insert_default().groups();
        let spec = run_command::spec(&policy);
        let prepare = move |arguments: &Value, need, files: &Files| {
            run_command::prepare(&policy, &groups, arguments, need, files)
        };
        self.add(spec, Patterns::Any, Box::new(prepare), false).expect("ours is right");
    }

    /// Adds a tool, or replaces the one of that name. `prepare` is called with the arguments of
    /// each run, once they fit the schema, and with the need that the spec declares; it says what
    /// is to be done, and corrects the need if the arguments tell more.
    ///
    /// # Errors
    /// [`SpecError`]; nothing was added.
    pub fn insert<F>(&mut self, spec: ToolSpec, prepare: F) -> Result<(), SpecError>
    where
        F: Fn(&Value, Need) -> Result<(Work, Need), ArgumentError> + Send + Sync + 'static,
    {
        let prepare = move |arguments: &Value, need, _: &Files| prepare(arguments, need);
        self.add(spec, Patterns::Any, Box::new(prepare), false)
    }

    /// Adds a tool that reads files.
    fn insert_reader(
        &mut self,
        spec: ToolSpec,
        prepare: fn(&Value, Need, &Files) -> Result<Plan, ArgumentError>,
    ) -> Result<(), SpecError> {
        self.add(spec, Patterns::Any, Box::new(prepare), true)
    }

    fn add(
        &mut self,
        spec: ToolSpec,
        patterns: Patterns,
        prepare: Prepare,
        reads_files: bool,
    ) -> Result<(), SpecError> {
        let error = |problem: String| SpecError { tool: spec.name.clone(), problem };
        if !is_tool_name(&spec.name) {
            let chars_max = limits::TOOL_NAME_CHARS_MAX;
            let text = format!("a name is 1 to {chars_max} letters, digits, `_`, `-` and `.`");
            return Err(error(text));
        }
        if spec.arguments.get("type").and_then(Value::as_str) != Some("object") {
            return Err(error("the schema of its arguments is not of type object".to_owned()));
        }
        let schema = Schema::compile(&spec.arguments, patterns).map_err(error)?;
        let name = spec.name.clone();
        let entry = Entry { spec: Arc::new(spec), schema, prepare, reads_files };
        self.by_name.insert(name, entry);
        Ok(())
    }

    /// Adds a tool whose work is done by clients, or replaces the one of that name. Its schema may
    /// come from anybody: see [`VirtualTool::check_cost`].
    ///
    /// # Errors
    /// [`SpecError`]; nothing was added.
    pub fn insert_virtual(&mut self, tool: VirtualTool) -> Result<(), SpecError> {
        tool.check_cost()?;
        let VirtualTool { spec, gather } = tool;
        let prepare = move |arguments: &Value, need, _: &Files| {
            let arguments = arguments.clone();
            Ok((Work::Remote(Box::new(RemoteCall { arguments, gather })), need))
        };
        self.add(spec, Patterns::Linear, Box::new(prepare), false)
    }

    /// Adds a closure as a tool: `|arguments, out| { out.send(b"…")?; Ok(()) }`.
    ///
    /// # Errors
    /// [`SpecError`]; nothing was added.
    pub fn insert_closure<F>(&mut self, spec: ToolSpec, closure: F) -> Result<(), SpecError>
    where
        F: Fn(&Value, &mut Output) -> Result<(), ToolError> + Send + Sync + 'static,
    {
        let closure = Arc::new(closure);
        self.insert(spec, move |arguments, need| {
            let closure = Arc::clone(&closure);
            let arguments = arguments.clone();
            Ok((Work::Thread(Box::new(move |out| closure(&arguments, out))), need))
        })
    }

    /// Takes a tool away. What runs of it goes on.
    pub fn remove(&mut self, name: &str) -> bool {
        self.by_name.remove(name).is_some()
    }

    /// Checks the arguments of one run.
    ///
    /// # Errors
    /// [`StartError`]; nothing has happened.
    pub fn prepare(&self, name: &str, arguments: &Value) -> Result<Prepared, StartError> {
        let Some(Entry { spec, schema, prepare, .. }) = self.entry(name) else {
            let known = self.specs().map(|spec| spec.name.clone()).collect();
            return Err(StartError::UnknownTool { name: name.to_owned(), known });
        };
        let none = Value::Object(Map::new());
        let arguments = if arguments.is_null() { &none } else { arguments };
        schema.check(arguments).map_err(StartError::Argument)?;
        let (work, need) =
            prepare(arguments, spec.need, &self.files).map_err(StartError::Argument)?;
        let (timeouts, progress) = (spec.timeouts, spec.progress);
        Ok(Prepared { tool: Some(Arc::clone(spec)), work, need, timeouts, progress })
    }

    /// What there is to know of a tool.
    pub fn spec(&self, name: &str) -> Option<&Arc<ToolSpec>> {
        self.entry(name).map(|entry| &entry.spec)
    }

    /// All of them, by name.
    pub fn specs(&self) -> impl Iterator<Item = &Arc<ToolSpec>> {
        self.by_name.values().filter(|entry| self.is_there(entry)).map(|entry| &entry.spec)
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.by_name.get(name).filter(|entry| self.is_there(entry))
    }

    fn is_there(&self, entry: &Entry) -> bool {
        !(entry.reads_files && matches!(self.files, Files::Nowhere))
    }
}

/// May a tool be called so? Letters, digits, `_`, `-` and `.`, 1 to 64 of them.
pub fn is_tool_name(name: &str) -> bool {
    let is_name_char = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    (1..=limits::TOOL_NAME_CHARS_MAX).contains(&name.len()) && name.chars().all(is_name_char)
}

impl fmt::Debug for Tools {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list().entries(self.specs().map(|spec| &spec.name)).finish()
    }
}

/// A tool's arguments, taken one by one; what nobody takes is an error.
///
/// A schema that was checked before makes most of these errors impossible. They are there all the
/// same: without the feature `schema` nothing was checked, and a schema can be wrong.
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

    /// A string that must be there, and goes to where a NUL would end it.
    ///
    /// # Errors
    /// As [`Arguments::text`]; and if it has a NUL.
    pub fn whole_text(&mut self, field: &str) -> Result<String, ArgumentError> {
        without_nul(field, self.text(field)?)
    }

    /// A path that must be there.
    ///
    /// # Errors
    /// As [`Arguments::whole_text`]: no path can have a NUL.
    pub fn path(&mut self, field: &str) -> Result<PathBuf, ArgumentError> {
        self.whole_text(field).map(PathBuf::from)
    }

    /// A path, if it is there.
    ///
    /// # Errors
    /// If it is empty, not a string, or has a NUL.
    pub fn optional_path(&mut self, field: &str) -> Result<Option<PathBuf>, ArgumentError> {
        let text = self.optional_text(field)?.map(|text| without_nul(field, text)).transpose()?;
        Ok(text.map(PathBuf::from))
    }

    /// Yes or no; no, if it is not there.
    ///
    /// # Errors
    /// If it is neither.
    pub fn flag(&mut self, field: &str) -> Result<bool, ArgumentError> {
        match self.fields.remove(field) {
            None => Ok(false),
            Some(Value::Bool(is_set)) => Ok(is_set),
            Some(other) => {
                Err(ArgumentError::new(field, format!("must be true or false, not {other}")))
            }
        }
    }

    /// A string, if it is there.
    ///
    /// # Errors
    /// If it is empty, or not a string.
    pub fn optional_text(&mut self, field: &str) -> Result<Option<String>, ArgumentError> {
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(self.fields.remove(field).and(None)),
            Some(_) => self.text(field).map(Some),
        }
    }

    /// Any value, if it is there: for what is neither a number nor a string.
    pub fn value(&mut self, field: &str) -> Option<Value> {
        self.fields.remove(field)
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

/// A string that goes to where a NUL would end it: what stands behind that would not be seen.
pub(super) fn without_nul(field: &str, text: String) -> Result<String, ArgumentError> {
    match text.contains('\0') {
        true => Err(ArgumentError::new(field, "must not contain a NUL character")),
        false => Ok(text),
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

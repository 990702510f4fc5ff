//! The registry of tools by name, and the check of their arguments.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use serde_json::{Map, Value};

use crate::base::{Guarded, Panicked, guarded};
use crate::engine::{ProgressSource, Timeouts};
use crate::limits;
#[cfg(feature = "sqlite")]
use crate::tool::query_database;
use crate::tool::remote::check_cost;
use crate::tool::schema::{Patterns, Schema};
use crate::tool::{
    Abilities, ArgumentError, Asking, Files, Need, Output, RemoteCall, Replies, ToolError,
    ToolSpec, VirtualTool, Work, process_file, slow_data_processor,
};
#[cfg(feature = "tools")]
use crate::tool::{
    CommandPolicy, Environment, generate_timeseries, process, run_command, search_files,
};
use crate::trace::TraceContext;

/// A tool with checked arguments, ready to run.
#[derive(Debug)]
pub struct Prepared {
    /// The description of the tool, if it has a name.
    pub tool: Option<Arc<ToolSpec>>,
    /// The work to run.
    pub work: Guarded<Work>,
    /// The needs of the work.
    pub need: Need,
    /// The limits for its silence and for its whole duration.
    pub timeouts: Timeouts,
    /// The source of its progress.
    pub progress: ProgressSource,
    /// The trace of its caller, if the caller sent one.
    pub trace: TraceContext,
}

impl Prepared {
    /// Prepares work without a name: with default needs, without timeouts, and with its own
    /// progress.
    pub fn new(work: Work) -> Prepared {
        let timeouts = Timeouts::NONE;
        let progress = ProgressSource::Tool;
        let (need, trace) = (Need::default(), TraceContext::default());
        let work = Guarded::new(work);
        Prepared { tool: None, work, need, timeouts, progress, trace }
    }
}

/// The reason why a tool could not be prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartError {
    /// No tool has this name.
    UnknownTool {
        /// The requested name.
        name: String,
        /// The names of the existing tools.
        known: Vec<String>,
    },
    /// The arguments are wrong.
    Argument(ArgumentError),
    /// The tool asks its caller before it runs, and this caller cannot be asked.
    Asks {
        /// The name of the tool.
        name: String,
    },
    /// The tool's own code panicked in its `asks` or `prepare` function.
    Panicked {
        /// The name of the tool.
        name: String,
        /// The panic.
        panicked: Panicked,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::UnknownTool { name, known } => {
                write!(out, "unknown tool `{name}`; the tools are: {}", known.join(", "))
            }
            StartError::Argument(error) => error.fmt(out),
            StartError::Asks { name } => {
                write!(out, "`{name}` asks its caller before it runs; call it over MCP")
            }
            StartError::Panicked { name, panicked } => {
                write!(out, "`{name}` panicked before it ran: {panicked}")
            }
        }
    }
}

impl std::error::Error for StartError {}

/// The function that plans one run of a tool from its arguments.
type Prepare =
    Box<dyn Fn(&RunInputs<'_>, Need) -> Result<PlannedWork, ArgumentError> + Send + Sync>;
/// The function that decides if a tool has everything that it needs.
type Asks = Box<dyn Fn(&Value, &Replies, Abilities) -> Asking + Send + Sync>;
/// The work of a run, and its needs.
type PlannedWork = (Work, Need);

/// The inputs of one run of a tool.
struct RunInputs<'a> {
    arguments: &'a Value,
    replies: &'a Replies,
    files: &'a Files,
    #[cfg(feature = "tools")]
    environment: &'a Environment,
}

struct Entry {
    spec: Arc<ToolSpec>,
    schema: Schema,
    /// The schema of the output, if the tool has one.
    output: Option<Schema>,
    /// Set for a tool that asks its caller.
    asks: Option<Guarded<Asks>>,
    prepare: Guarded<Prepare>,
    /// True if the tool exists only where files may be read.
    reads_files: bool,
}

impl Entry {
    /// Calls the tool's own code, and catches its panic.
    fn call<T>(&self, call: impl FnOnce() -> T) -> Result<T, StartError> {
        let name = &self.spec.name;
        guarded(call).map_err(|panicked| StartError::Panicked { name: name.clone(), panicked })
    }

    /// Checks the arguments of one run. `null` stands for an empty object.
    fn checked<'a>(&self, arguments: &'a Value) -> Result<&'a Value, StartError> {
        static NONE: LazyLock<Value> = LazyLock::new(|| Value::Object(Map::new()));
        let arguments = if arguments.is_null() { &NONE } else { arguments };
        self.schema.check(arguments).map_err(StartError::Argument)?;
        Ok(arguments)
    }
}

/// A tool to be added.
struct Addition {
    spec: ToolSpec,
    patterns: Patterns,
    /// The schemas that are enforced.
    checks: Checks,
    asks: Option<Guarded<Asks>>,
    prepare: Guarded<Prepare>,
    reads_files: bool,
}

impl Addition {
    /// A tool of this program that neither asks its caller nor reads files.
    fn new(spec: ToolSpec, prepare: Prepare) -> Addition {
        let (patterns, checks, prepare) = (Patterns::Any, Checks::ALL, Guarded::new(prepare));
        Addition { spec, patterns, checks, asks: None, prepare, reads_files: false }
    }
}

/// The values that are checked by the schemas of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Checks {
    arguments: bool,
    output: bool,
}

impl Checks {
    const ALL: Checks = Checks { arguments: true, output: true };
}

/// The fault in the description of a tool that was not added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    /// The name of the tool.
    pub tool: String,
    /// The fault.
    pub problem: String,
}

impl fmt::Display for SpecError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "tool `{}`: {}", self.tool, self.problem)
    }
}

impl std::error::Error for SpecError {}

/// A registry of tools by name.
///
/// ```
/// use streamdoor::{ToolSpec, Tools};
///
/// let mut tools = Tools::new();
/// let spec = ToolSpec::new("greet", "Says hello.");
/// tools.insert_closure(spec, |_arguments, out| Ok(out.send(b"hello")?))?;
/// assert!(tools.spec("greet").is_some());
/// # Ok::<(), streamdoor::errors::SpecError>(())
/// ```
#[derive(Default)]
pub struct Tools {
    by_name: BTreeMap<String, Entry>,
    files: Files,
    /// Number of changes of the list.
    revision: u64,
    /// The processes that `run_command` has started. They end with this registry.
    #[cfg(feature = "tools")]
    commands: Option<process::GroupsGuard>,
    /// The environment of started commands.
    #[cfg(feature = "tools")]
    environment: Environment,
}

impl Tools {
    /// Returns a registry without tools.
    pub fn new() -> Tools {
        Tools::default()
    }

    /// Returns the built-in tools that the user of this process may run. They read any file until
    /// [`Tools::allow_files`] restricts them.
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

    /// Sets the files that the built-in tools may read from now on. With [`Files::Nowhere`] the
    /// tools that read files do not exist. A command under `CommandPolicy::Only` runs in a folder
    /// among these files.
    pub fn allow_files(&mut self, files: Files) {
        self.files = files;
        self.revision += 1;
    }

    /// Adds `run_command`, which is not among [`Tools::built_in`] because it lets every caller of
    /// tools start processes. The processes do not outlive this registry, which is dropped with its
    /// shard. They are then told to end, killed if they do not, and waited for, for at most 2.5 s.
    #[cfg(feature = "tools")]
    pub fn allow_commands(&mut self, policy: CommandPolicy) {
        let groups = self.commands.get_or_insert_default().groups();
        let spec = run_command::spec(&policy);
        let prepare = move |given: &RunInputs<'_>, need| {
            let around = (given.files, given.environment);
            run_command::prepare(&policy, &groups, given.arguments, need, around)
        };
        self.add(Addition::new(spec, Box::new(prepare))).expect("ours is right");
    }

    /// Sets the environment variables of commands from now on. The default is
    /// `INHERITED`.
    #[cfg(feature = "tools")]
    pub fn set_environment(&mut self, environment: Environment) {
        self.environment = environment;
    }

    /// Adds a tool, or replaces the one of that name. `prepare` is called for each run, with
    /// arguments that fit the schema and with the declared need. It returns the work, and a need
    /// that it may correct from the arguments.
    ///
    /// # Errors
    /// [`SpecError`]; nothing was added.
    pub fn insert<F>(&mut self, spec: ToolSpec, prepare: F) -> Result<(), SpecError>
    where
        F: Fn(&Value, Need) -> Result<(Work, Need), ArgumentError> + Send + Sync + 'static,
    {
        let prepare = move |given: &RunInputs<'_>, need| prepare(given.arguments, need);
        self.add(Addition::new(spec, Box::new(prepare)))
    }

    /// Adds a tool that reads files.
    fn insert_reader(
        &mut self,
        spec: ToolSpec,
        prepare: fn(&Value, Need, &Files) -> Result<PlannedWork, ArgumentError>,
    ) -> Result<(), SpecError> {
        let prepare =
            move |given: &RunInputs<'_>, need| prepare(given.arguments, need, given.files);
        let addition = Addition::new(spec, Box::new(prepare));
        self.add(Addition { reads_files: true, ..addition })
    }

    fn add(&mut self, addition: Addition) -> Result<(), SpecError> {
        let Addition { spec, patterns, checks, asks, prepare, reads_files } = addition;
        let error = |problem: String| SpecError { tool: spec.name.clone(), problem };
        if !is_tool_name(&spec.name) {
            let chars_max = limits::TOOL_NAME_CHARS_MAX;
            let text = format!("a name is 1 to {chars_max} letters, digits, `_`, `-` and `.`");
            return Err(error(text));
        }
        if spec.arguments.get("type").and_then(Value::as_str) != Some("object") {
            return Err(error("the schema of its arguments must have the type object".to_owned()));
        }
        if !spec.annotations.is_null() && !spec.annotations.is_object() {
            return Err(error("its annotations must be an object".to_owned()));
        }
        let compile = |schema: &Value, is_checked: bool| match is_checked {
            true => Schema::compile(schema, patterns),
            false => Ok(Schema::any()),
        };
        let schema = compile(&spec.arguments, checks.arguments).map_err(error)?;
        let output = spec.output_schema.as_ref().map(|schema| compile(schema, checks.output));
        let output = output
            .transpose()
            .map_err(|text| error(format!("the schema of its output: {text}")))?;
        let name = spec.name.clone();
        let entry = Entry { spec: Arc::new(spec), schema, output, asks, prepare, reads_files };
        self.by_name.insert(name, entry);
        self.revision += 1;
        Ok(())
    }

    /// Adds a tool that clients execute, or replaces the one of that name. Its schema may be
    /// untrusted: see [`VirtualTool::check_cost`].
    ///
    /// # Errors
    /// [`SpecError`]; nothing was added.
    pub fn insert_virtual(&mut self, tool: VirtualTool) -> Result<(), SpecError> {
        tool.check_cost()?;
        let VirtualTool { spec, gather } = tool;
        let prepare = move |given: &RunInputs<'_>, need| {
            let arguments = given.arguments.clone();
            Ok((Work::Remote(Box::new(RemoteCall { arguments, gather })), need))
        };
        let addition = Addition::new(spec, Box::new(prepare));
        self.add(Addition { patterns: Patterns::Linear, ..addition })
    }

    /// Adds a closure as a tool that another MCP server describes. Its schemas are published as
    /// they are. They are enforced only if a check takes time linear in its input: see
    /// [`VirtualTool::check_cost`]. Returns true if arguments are checked here.
    ///
    /// # Errors
    /// [`SpecError`]; nothing was added.
    pub fn insert_relayed<F>(&mut self, spec: ToolSpec, closure: F) -> Result<bool, SpecError>
    where
        F: Fn(&Value, &mut Output) -> Result<(), ToolError> + Send + Sync + 'static,
    {
        let is_usable = |schema: &Value| {
            check_cost(schema).and_then(|()| Schema::compile(schema, Patterns::Linear)).is_ok()
        };
        let checks = Checks {
            arguments: is_usable(&spec.arguments),
            output: spec.output_schema.as_ref().is_some_and(is_usable),
        };
        let closure = Arc::new(closure);
        let prepare = move |given: &RunInputs<'_>, need| {
            let (closure, arguments) = (Arc::clone(&closure), given.arguments.clone());
            Ok((Work::Thread(Box::new(move |out| closure(&arguments, out))), need))
        };
        let addition = Addition::new(spec, Box::new(prepare));
        self.add(Addition { patterns: Patterns::Linear, checks, ..addition })?;
        Ok(checks.arguments)
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

    /// Adds a closure as a tool that asks its caller first. `asks` is called before each run, with
    /// arguments that fit the schema, until it returns [`Asking::Run`]. It is called on the shard's
    /// thread and has to return at once. `closure` then receives the replies of the last call.
    ///
    /// ```
    /// use serde_json::json;
    /// use streamdoor::tools::{Abilities, Asking, Question, Replies};
    /// use streamdoor::{ToolSpec, Tools};
    ///
    /// let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    /// let mut tools = Tools::new();
    /// tools.insert_asking(
    ///     ToolSpec::new("greet", "Greets the caller."),
    ///     move |_arguments, replies, _abilities| match replies.accepted("who") {
    ///         Some(_) => Asking::Run,
    ///         None => Asking::Ask {
    ///             questions: vec![Question::form("who", "What is your name?", schema.clone())],
    ///             state: None,
    ///         },
    ///     },
    ///     |_arguments, replies, out| {
    ///         let name = &replies.accepted("who").expect("it was asked for")["name"];
    ///         Ok(out.send(format!("Hello, {name}!").as_bytes())?)
    ///     },
    /// )?;
    /// let asking = tools.asking("greet", &json!({}), &Replies::default(), Abilities::default());
    /// assert!(matches!(asking, Ok(Asking::Ask { .. })));
    /// # Ok::<(), streamdoor::errors::SpecError>(())
    /// ```
    ///
    /// # Errors
    /// [`SpecError`]; nothing was added.
    pub fn insert_asking<A, F>(
        &mut self,
        spec: ToolSpec,
        asks: A,
        closure: F,
    ) -> Result<(), SpecError>
    where
        A: Fn(&Value, &Replies, Abilities) -> Asking + Send + Sync + 'static,
        F: Fn(&Value, &Replies, &mut Output) -> Result<(), ToolError> + Send + Sync + 'static,
    {
        let closure = Arc::new(closure);
        let prepare = move |given: &RunInputs<'_>, need| {
            let closure = Arc::clone(&closure);
            let (arguments, replies) = (given.arguments.clone(), given.replies.clone());
            Ok((Work::Thread(Box::new(move |out| closure(&arguments, &replies, out))), need))
        };
        let addition = Addition::new(spec, Box::new(prepare));
        self.add(Addition { asks: Some(Guarded::new(Box::new(asks))), ..addition })
    }

    /// Removes a tool. Returns false if none has that name. Its running executions continue.
    pub fn remove(&mut self, name: &str) -> bool {
        let was_there = self.by_name.remove(name).is_some();
        self.revision += u64::from(was_there);
        was_there
    }

    /// Number of changes of the list so far. It grows when a tool is added, replaced or removed.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Prepares one run for a caller that cannot be asked.
    ///
    /// # Errors
    /// [`StartError`]; nothing was started.
    pub fn prepare(&self, name: &str, arguments: &Value) -> Result<Prepared, StartError> {
        let replies = Replies::default();
        match self.asking(name, arguments, &replies, Abilities::default())? {
            Asking::Run => self.prepare_with(name, arguments, &replies),
            Asking::Ask { .. } | Asking::Refuse(_) => {
                Err(StartError::Asks { name: name.to_owned() })
            }
        }
    }

    /// Asks a tool if it has everything that it needs. A tool that never asks always has.
    ///
    /// # Errors
    /// [`StartError`]; nothing was started.
    pub fn asking(
        &self,
        name: &str,
        arguments: &Value,
        replies: &Replies,
        abilities: Abilities,
    ) -> Result<Asking, StartError> {
        let entry = self.known(name)?;
        let Some(asks) = &entry.asks else { return Ok(Asking::Run) };
        let arguments = entry.checked(arguments)?;
        entry.call(|| asks(arguments, replies, abilities))
    }

    /// Prepares one run after [`Tools::asking`] has returned [`Asking::Run`] for the same replies.
    ///
    /// # Errors
    /// [`StartError`]; nothing was started.
    pub fn prepare_with(
        &self,
        name: &str,
        arguments: &Value,
        replies: &Replies,
    ) -> Result<Prepared, StartError> {
        let entry = self.known(name)?;
        let arguments = entry.checked(arguments)?;
        let given = RunInputs {
            arguments,
            replies,
            files: &self.files,
            #[cfg(feature = "tools")]
            environment: &self.environment,
        };
        let spec = &entry.spec;
        let planned = entry.call(|| (entry.prepare)(&given, spec.need))?;
        let (work, need) = planned.map_err(StartError::Argument)?;
        let work = Guarded::new(work);
        let (timeouts, progress) = (spec.timeouts, spec.progress);
        let tool = Some(Arc::clone(spec));
        Ok(Prepared { tool, work, need, timeouts, progress, trace: TraceContext::default() })
    }

    /// Checks the output of a tool against its output schema. Without a schema all output is right.
    ///
    /// # Errors
    /// The first mismatch.
    pub fn check_output(&self, name: &str, output: &Value) -> Result<(), ArgumentError> {
        match self.entry(name).and_then(|entry| entry.output.as_ref()) {
            Some(schema) => schema.check(output),
            None => Ok(()),
        }
    }

    /// Returns the description of a tool.
    pub fn spec(&self, name: &str) -> Option<&Arc<ToolSpec>> {
        self.entry(name).map(|entry| &entry.spec)
    }

    /// Returns the descriptions of all tools, sorted by name.
    pub fn specs(&self) -> impl Iterator<Item = &Arc<ToolSpec>> {
        self.by_name.values().filter(|entry| self.is_there(entry)).map(|entry| &entry.spec)
    }

    fn known(&self, name: &str) -> Result<&Entry, StartError> {
        self.entry(name).ok_or_else(|| {
            let known = self.specs().map(|spec| spec.name.clone()).collect();
            StartError::UnknownTool { name: name.to_owned(), known }
        })
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.by_name.get(name).filter(|entry| self.is_there(entry))
    }

    fn is_there(&self, entry: &Entry) -> bool {
        !(entry.reads_files && matches!(self.files, Files::Nowhere))
    }
}

/// True for a valid tool name: 1 to 64 letters, digits, `_`, `-` and `.`.
pub fn is_tool_name(name: &str) -> bool {
    let is_name_char = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    (1..=limits::TOOL_NAME_CHARS_MAX).contains(&name.len()) && name.chars().all(is_name_char)
}

impl fmt::Debug for Tools {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list().entries(self.specs().map(|spec| &spec.name)).finish()
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

    /// A tool that asks for a word, and once more if the word is short.
    fn asking_tools() -> Tools {
        let mut tools = Tools::new();
        let arguments = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
        let spec = ToolSpec { arguments, ..ToolSpec::new("word", "Takes a word.") };
        let asks = |_: &Value, replies: &Replies, abilities: Abilities| {
            let question = || crate::tool::Question::form("word", "Which?", json!({}));
            match replies.accepted("word").and_then(|content| content["word"].as_str()) {
                _ if !abilities.forms => Asking::Refuse("there is nobody to ask".to_owned()),
                Some(word) if word.len() > 3 => Asking::Run,
                word => Asking::Ask { questions: vec![question()], state: word.map(Value::from) },
            }
        };
        tools.insert_asking(spec, asks, |_, _, _| Ok(())).unwrap();
        tools
    }

    #[test]
    fn a_tool_asks_until_it_is_content() {
        let tools = asking_tools();
        let forms = Abilities { forms: true, ..Default::default() };
        let with = |word: &str| {
            let answer = json!({"action": "accept", "content": {"word": word}});
            Replies { answers: [("word".to_owned(), answer)].into_iter().collect(), state: None }
        };
        let ask = |replies: &Replies| tools.asking("word", &Value::Null, replies, forms).unwrap();
        let state_of = |asking| match asking {
            Asking::Ask { state, .. } => state,
            other => panic!("{other:?}"),
        };
        assert_eq!(state_of(ask(&Replies::default())), None);
        assert_eq!(state_of(ask(&with("abc"))), Some(json!("abc")));
        assert_eq!(ask(&with("abcd")), Asking::Run);
        assert!(tools.prepare_with("word", &Value::Null, &with("abcd")).is_ok());
    }

    #[test]
    fn a_tool_that_panics_before_it_runs_is_named_with_its_panic() {
        fn explode<T>() -> T {
            std::panic::resume_unwind(Box::new("not today"))
        }
        let mut tools = Tools::new();
        tools.insert(ToolSpec::new("one", "For a test."), |_, _| explode()).unwrap();
        let spec = ToolSpec::new("two", "For a test.");
        tools.insert_asking(spec, |_, _, _| explode(), |_, _, _| Ok(())).unwrap();
        for name in ["one", "two"] {
            let error = tools.prepare(name, &Value::Null).unwrap_err();
            assert_eq!(error.to_string(), format!("`{name}` panicked before it ran: not today"));
        }
    }

    #[test]
    fn a_tool_asks_nothing_about_arguments_that_are_wrong() {
        let (replies, abilities) = (Replies::default(), Abilities::default());
        let bad = asking_tools().asking("word", &json!({"n": "one"}), &replies, abilities);
        assert!(matches!(bad, Err(StartError::Argument(error)) if error.field == "n"));
    }

    #[test]
    fn a_tool_that_asks_does_not_run_where_nobody_can_be_asked() {
        let error = asking_tools().prepare("word", &Value::Null).unwrap_err();
        assert_eq!(error, StartError::Asks { name: "word".to_owned() });
        let tools = Tools::built_in();
        let (replies, nobody) = (Replies::default(), Abilities::default());
        let asking = tools.asking("slow_data_processor", &Value::Null, &replies, nobody);
        assert_eq!(asking, Ok(Asking::Run));
    }

    #[cfg(feature = "tools")]
    #[test]
    fn an_output_is_checked_by_its_schema() {
        let mut tools = Tools::new();
        let mut spec = ToolSpec::new("sum", "Adds.");
        spec.output_schema = Some(json!({"type": "object", "required": ["sum"]}));
        tools.insert_closure(spec.clone(), |_, _| Ok(())).unwrap();
        assert_eq!(tools.check_output("sum", &json!({"sum": 3})), Ok(()));
        assert_eq!(tools.check_output("sum", &json!({})).unwrap_err().field, "sum");
        assert_eq!(tools.check_output("other", &json!({})), Ok(()));
        spec.output_schema = Some(json!({"type": 3}));
        let error = tools.insert_closure(spec.clone(), |_, _| Ok(())).unwrap_err();
        assert!(error.problem.starts_with("the schema of its output: "), "{error}");
        spec.output_schema = None;
        spec.annotations = json!("read only");
        assert!(tools.insert_closure(spec, |_, _| Ok(())).is_err());
    }

    #[test]
    fn each_change_of_the_list_is_counted() {
        let mut tools = asking_tools();
        let before = tools.revision();
        assert!(!tools.remove("nothing"));
        assert_eq!(tools.revision(), before);
        assert!(tools.remove("word"));
        assert_eq!(tools.revision(), before + 1);
    }

    #[test]
    fn an_unknown_tool_is_told_which_there_are() {
        let error = Tools::built_in().prepare("nothing", &Value::Null).unwrap_err();
        assert!(error.to_string().contains("process_file"), "{error}");
    }
}

//! `run_command {argv, cwd, env}`: streams the output of a command as it comes, and its exit.
//!
//! No shell is involved: `argv` is the command and its arguments. Standard output and standard
//! error are chunks of kind `stdout` and `stderr`, one for each read. Within each of the two the
//! order is exact. Between them the order is that of the reads, because two pipes have no common
//! order. If both were written within the microseconds between two reads, standard output comes
//! first. A character of UTF-8 that a read has cut waits for its other bytes.
//!
//! The command succeeds if it exits with 0. Any other code, or a signal, fails the execution, with
//! [`crate::stream::Exit`] in the end event. The processes that it leaves behind may write for
//! [`limits::COMMAND_LINGER`] before they are told to end. The same happens to all of them on
//! cancellation and timeout. The whole group gets SIGTERM, and SIGKILL after
//! [`limits::COMMAND_GRACE`]. At the end all remaining descendants are killed, also those that have
//! left the group. None of them is left when the end event is published. The environment is chosen
//! ([`crate::tool::Environment`]), not inherited.
//!
//! The tool exists only after [`crate::tool::Tools::allow_commands`]. Under a list of commands, a
//! caller cannot choose the environment: `PATH` or `LD_PRELOAD` can turn any command into another.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::engine::{ProgressSource, Timeouts};
use crate::limits;
use crate::stream::Policy;
use crate::tool::arguments::without_nul;
use crate::tool::process::{self, Group, Groups};
use crate::tool::watch::Watch;
use crate::tool::{
    ArgumentError, Arguments, Environment, Files, Need, Output, SubscribeDefaults, ToolError,
    ToolSpec, Work,
};
use crate::trace::TraceContext;

/// The ring holds a whole read in one chunk.
const RING_BYTES: u32 = 64 << 10;

/// The commands that may be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandPolicy {
    /// Any command, with any environment. Every caller of tools can do what this process may do.
    Any,
    /// Only these commands: names that are looked up in the `PATH` of this process, or absolute
    /// paths. `argv[0]` must equal one of them exactly, and `env` must not be given. `cwd` must be
    /// among the files that may be read ([`crate::tool::Tools::allow_files`]).
    Only(Vec<String>),
}

pub(super) fn spec(policy: &CommandPolicy) -> ToolSpec {
    let mut argv = json!({
        "type": "array",
        "items": {"type": "string"},
        "minItems": 1,
        "maxItems": limits::COMMAND_ARGUMENTS_MAX,
        "description": "The command and its arguments. There is no shell.",
    });
    let mut properties = json!({
        "cwd": {"type": "string", "description": "The folder that the command runs in."},
        "stdin": {"type": "string", "description": "The standard input of the command. By default \
                                                    it is empty."},
    });
    match policy {
        CommandPolicy::Any => {
            properties["env"] = json!({
                "type": "object",
                "additionalProperties": {"type": "string"},
                "description": "Environment variables, besides those that every command gets.",
            });
            properties["clear_env"] = json!({
                "type": "boolean",
                "default": false,
                "description": "Pass only the environment variables in `env`.",
            });
        }
        CommandPolicy::Only(programs) => {
            argv["prefixItems"] = json!([{"type": "string", "enum": programs}]);
        }
    }
    properties["argv"] = argv;
    let silence = Some(limits::COMMAND_INACTIVITY);
    ToolSpec {
        arguments: json!({
            "type": "object",
            "properties": properties,
            "required": ["argv"],
            "additionalProperties": false,
        }),
        timeouts: Timeouts { first_chunk: silence, inactivity: silence, total: None },
        subscribers: SubscribeDefaults { policy: Policy::Block, ..Default::default() },
        progress: ProgressSource::Bytes,
        ..ToolSpec::new("run_command", "Runs a command, and streams its output.")
    }
}

pub(super) fn prepare(
    policy: &CommandPolicy,
    groups: &Arc<Groups>,
    arguments: &Value,
    need: Need,
    (files, environment): (&Files, &Environment),
) -> Result<(Work, Need), ArgumentError> {
    let mut plan = CommandPlan::new(policy, files, Arguments::new(arguments)?)?;
    plan.environment = (!plan.clears_env).then(|| environment.clone());
    let groups = Arc::clone(groups);
    let work = Work::Thread(Box::new(move |out| plan.run(groups, out)));
    Ok((work, Need { ring_bytes: need.ring_bytes.max(RING_BYTES), ..need }))
}

/// The command to run, checked as far as possible before it runs.
struct CommandPlan {
    argv: Vec<String>,
    cwd: Option<PathBuf>,
    /// The files that `cwd` must be among.
    files: Files,
    /// The environment of every command. `None` if this command gets none of it.
    environment: Option<Environment>,
    env: Vec<(String, String)>,
    clears_env: bool,
    stdin: Option<String>,
}

impl CommandPlan {
    fn new(
        policy: &CommandPolicy,
        files: &Files,
        mut arguments: Arguments,
    ) -> Result<CommandPlan, ArgumentError> {
        let argv = words(arguments.value("argv"))?;
        if let CommandPolicy::Only(programs) = policy
            && !programs.contains(&argv[0])
        {
            let problem = format!("is `{}`, not one of: {}", argv[0], programs.join(", "));
            return Err(ArgumentError::new("argv.0", problem));
        }
        let cwd = arguments.optional_path("cwd")?;
        let env = variables(arguments.value("env"))?;
        let clears_env = arguments.flag("clear_env")?;
        let stdin = stdin(arguments.value("stdin"))?;
        arguments.finish()?;
        if *policy != CommandPolicy::Any && (clears_env || !env.is_empty()) {
            let field = if clears_env { "clear_env" } else { "env" };
            let problem = "is refused, because only listed commands are allowed";
            return Err(ArgumentError::new(field, problem));
        }
        let variable_bytes = env.iter().map(|(name, value)| name.len() + value.len() + 2);
        let bytes: usize = argv.iter().map(|word| word.len() + 1).chain(variable_bytes).sum();
        if bytes > limits::COMMAND_WORDS_BYTES_MAX {
            let bytes_max = limits::COMMAND_WORDS_BYTES_MAX;
            let problem = format!("and `env` together have {bytes} bytes, above {bytes_max}");
            return Err(ArgumentError::new("argv", problem));
        }
        let files = match policy {
            CommandPolicy::Any => Files::Anywhere,
            CommandPolicy::Only(_) => files.clone(),
        };
        Ok(CommandPlan { argv, cwd, files, environment: None, env, clears_env, stdin })
    }

    fn run(&self, groups: Arc<Groups>, out: &mut Output) -> Result<(), ToolError> {
        let command = self.command(out.trace())?;
        let group = Group::spawn(command, groups).map_err(|error| self.spawn_error(&error))?;
        let exit = Watch::new(group, out.chunk_bytes_max()).run(out)?;
        out.exit(exit);
        match exit.is_success() {
            true => Ok(()),
            false => Err(ToolError::new(exit.to_string())),
        }
    }

    fn command(&self, trace: &TraceContext) -> Result<Command, ToolError> {
        let mut command = Command::new(&self.argv[0]);
        command.args(&self.argv[1..]).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(cwd) = &self.cwd {
            let is_folder = |place: PathBuf| match std::fs::metadata(&place)?.is_dir() {
                true => Ok(place),
                false => Err(io::Error::other("is not a directory")),
            };
            let place =
                self.files.place(cwd).and_then(is_folder).map_err(|problem| {
                    ToolError::new(format!("`cwd` {}: {problem}", cwd.display()))
                })?;
            command.current_dir(place);
        }
        command.env_clear();
        if let Some(environment) = &self.environment {
            command.envs(environment.variables());
        }
        if trace.parent.is_some() {
            // Set or remove all three: requested variables of this process belong to another trace.
            for (name, value) in trace.variables() {
                match value {
                    Some(value) => command.env(name, value),
                    None => command.env_remove(name),
                };
            }
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(match &self.stdin {
            None => Stdio::null(),
            Some(text) => Stdio::from(process::file_of(text.as_bytes())?),
        });
        Ok(command)
    }

    fn spawn_error(&self, error: &io::Error) -> ToolError {
        let name = &self.argv[0];
        ToolError::new(match error.kind() {
            ErrorKind::NotFound => {
                format!("`argv` {name}: the command or its interpreter does not exist")
            }
            ErrorKind::PermissionDenied => {
                format!("`argv` {name}: is not a command, or may not be run ({error})")
            }
            _ => format!("`argv` {name}: {error}"),
        })
    }
}

fn words(value: Option<Value>) -> Result<Vec<String>, ArgumentError> {
    let values = match value {
        Some(Value::Array(values)) => values,
        Some(other) => {
            let problem =
                format!("must be a list of strings, not {other}, because there is no shell");
            return Err(ArgumentError::new("argv", problem));
        }
        None => return Err(ArgumentError::new("argv", "is missing")),
    };
    if values.is_empty() || values.len() > limits::COMMAND_ARGUMENTS_MAX {
        let (count, count_max) = (values.len(), limits::COMMAND_ARGUMENTS_MAX);
        let problem = format!("must have 1 to {count_max} words, not {count}");
        return Err(ArgumentError::new("argv", problem));
    }
    let mut words = Vec::with_capacity(values.len());
    for (index, value) in values.into_iter().enumerate() {
        let field = format!("argv.{index}");
        let Value::String(word) = value else {
            return Err(ArgumentError::new(field, format!("must be a string, not {value}")));
        };
        let word = without_nul(&field, word)?;
        if index == 0 && word.is_empty() {
            return Err(ArgumentError::new(field, "must not be empty"));
        }
        words.push(word);
    }
    Ok(words)
}

fn variables(value: Option<Value>) -> Result<Vec<(String, String)>, ArgumentError> {
    let fields = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(fields)) => fields,
        Some(other) => {
            let problem = format!("must be an object of strings, not {other}");
            return Err(ArgumentError::new("env", problem));
        }
    };
    if fields.len() > limits::COMMAND_VARIABLES_MAX {
        let (count, count_max) = (fields.len(), limits::COMMAND_VARIABLES_MAX);
        let problem = format!("has {count} variables, above {count_max}");
        return Err(ArgumentError::new("env", problem));
    }
    let variable = |(name, value): (String, Value)| {
        let field = format!("env.{name}");
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(ArgumentError::new(field, "is not the name of a variable"));
        }
        let Value::String(value) = value else {
            return Err(ArgumentError::new(field, format!("must be a string, not {value}")));
        };
        Ok((name, without_nul(&field, value)?))
    };
    fields.into_iter().map(variable).collect()
}

fn stdin(value: Option<Value>) -> Result<Option<String>, ArgumentError> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.len() <= limits::COMMAND_STDIN_BYTES_MAX => {
            Ok(Some(text))
        }
        Some(Value::String(text)) => {
            let (length, length_max) = (text.len(), limits::COMMAND_STDIN_BYTES_MAX);
            Err(ArgumentError::new("stdin", format!("has {length} bytes, above {length_max}")))
        }
        Some(other) => Err(ArgumentError::new("stdin", format!("must be a string, not {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(policy: &CommandPolicy, arguments: Value) -> String {
        let plan = CommandPlan::new(policy, &Files::Anywhere, Arguments::new(&arguments).unwrap());
        plan.map(|_| ()).unwrap_err().field
    }

    #[test]
    fn each_bad_argument_is_named_before_anything_starts() {
        let any = &CommandPolicy::Any;
        assert_eq!(field(any, json!({})), "argv");
        assert_eq!(field(any, json!({"argv": "ls -l"})), "argv");
        assert_eq!(field(any, json!({"argv": []})), "argv");
        assert_eq!(field(any, json!({"argv": [""]})), "argv.0");
        assert_eq!(field(any, json!({"argv": ["ls", 1]})), "argv.1");
        assert_eq!(field(any, json!({"argv": ["ls", "a\0b"]})), "argv.1");
        assert_eq!(field(any, json!({"argv": vec!["a"; 1_025]})), "argv");
        assert_eq!(field(any, json!({"argv": ["ls", "a".repeat(200_000)]})), "argv");
        assert_eq!(field(any, json!({"argv": ["ls"], "cwd": 1})), "cwd");
        assert_eq!(field(any, json!({"argv": ["ls"], "cwd": "\0"})), "cwd");
        assert_eq!(field(any, json!({"argv": ["ls"], "env": ["A=1"]})), "env");
        assert_eq!(field(any, json!({"argv": ["ls"], "env": {"A": 1}})), "env.A");
        assert_eq!(field(any, json!({"argv": ["ls"], "env": {"A=B": "1"}})), "env.A=B");
        assert_eq!(field(any, json!({"argv": ["ls"], "env": {"": "1"}})), "env.");
        assert_eq!(field(any, json!({"argv": ["ls"], "env": {"A": "\0"}})), "env.A");
        assert_eq!(field(any, json!({"argv": ["ls"], "clear_env": 1})), "clear_env");
        assert_eq!(field(any, json!({"argv": ["ls"], "stdin": "a".repeat(2 << 20)})), "stdin");
        assert_eq!(field(any, json!({"argv": ["ls"], "shell": true})), "shell");
    }

    #[test]
    fn under_a_list_the_first_word_is_on_it_and_the_environment_is_ours() {
        let only = &CommandPolicy::Only(vec!["ls".to_owned(), "/bin/cat".to_owned()]);
        for name in ["cat", "/bin/ls", "ls ", "./ls", "LS"] {
            assert_eq!(field(only, json!({"argv": [name]})), "argv.0", "{name}");
        }
        assert_eq!(field(only, json!({"argv": ["ls"], "env": {"PATH": "/tmp"}})), "env");
        assert_eq!(field(only, json!({"argv": ["ls"], "clear_env": true})), "clear_env");
        for name in ["ls", "/bin/cat"] {
            CommandPlan::new(
                only,
                &Files::Anywhere,
                Arguments::new(&json!({"argv": [name]})).unwrap(),
            )
            .map(|_| ())
            .unwrap();
        }
    }
}

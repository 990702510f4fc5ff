//! Stratum 2: tools, the code that executions run.
//!
//! Two kinds of tools exist. A [`Tool`] is a state machine on the thread of its shard. It is called
//! step by step, must not block, and costs nothing while it sleeps. A closure
//! (`|arguments, out| …`) runs on a bounded pool of threads, may block without limit, and writes
//! into the ring itself. Backpressure slows both down, and a cancellation reaches both.
//!
//! The code of this module reads no clock: `now` comes with each step, and a thread calls its
//! [`Host`]. Tools on threads open files through `files.rs`. Only `process.rs`, `mark.rs` and
//! `child.rs` handle processes. `environment.rs` reads the environment variables of this process.
//!
//! Invariants: a panic in a tool ends its own execution only; nothing is published after a tool was
//! told to stop.

mod agent;
mod arguments;
mod asking;
#[cfg(any(feature = "tools", feature = "server"))]
mod child;
mod closure;
mod complete;
#[cfg(any(feature = "tools", feature = "server"))]
mod environment;
mod files;
#[cfg(feature = "tools")]
mod generate_timeseries;
#[cfg(any(feature = "tools", feature = "server"))]
mod mark;
#[cfg(feature = "tools")]
mod process;
mod process_file;
#[cfg(feature = "sqlite")]
mod query_database;
mod registry;
mod remote;
#[cfg(feature = "tools")]
mod run_command;
mod schema;
#[cfg(feature = "tools")]
mod search_files;
#[cfg(feature = "tools")]
mod search_report;
mod slow_data_processor;
mod spec;
mod step;
mod threads;
#[cfg(feature = "tools")]
mod watch;

pub use agent::{AGENT, AgentCall, GENERATE};
pub use arguments::{ArgumentError, Arguments};
pub use asking::{Abilities, Asking, Question, QuestionMethod, Replies};
#[cfg(feature = "server")]
pub(crate) use child::lead_session_while_we_live;
pub use closure::{Host, OnStop, Output, SendError, StopHook, StopSignal, Stopped};
pub use complete::Completion;
#[cfg(any(feature = "tools", feature = "server"))]
pub use environment::{Environment, INHERITED, Variable, VariableParseError};
pub use files::Files;
#[cfg(feature = "server")]
pub use files::Folder;
#[cfg(feature = "server")]
pub(crate) use mark::Mark;
pub use registry::{Prepared, SpecError, StartError, Tools, is_tool_name};
pub use remote::{Gather, RemoteCall, VirtualTool};
#[cfg(feature = "tools")]
pub use run_command::CommandPolicy;
pub use spec::{Need, SubscribeDefaults, TaskSupport, ToolSpec};
pub use step::{Context, EmitError, Report, Step, SyncError, SyncWish, Tool, ToolUpdate};
pub(crate) use threads::panic_error;
pub use threads::{Done, Job, ThreadPool};

use std::fmt;

/// The reason why a tool could not do its work.
///
/// ```
/// use streamdoor::{Output, ToolError};
///
/// fn send_file(path: &str, out: &mut Output) -> Result<(), ToolError> {
///     let bytes = std::fs::read(path)?; // The error's text reaches every subscriber.
///     if bytes.is_empty() {
///         return Err(ToolError::new(format!("{path} is empty")));
///     }
///     Ok(out.send(&bytes)?)
/// }
/// ```
#[derive(Debug)]
pub enum ToolError {
    /// The tool was told to stop, and has stopped.
    Stopped,
    /// The tool failed. The text is sent to every subscriber.
    Failed(String),
}

impl ToolError {
    /// Returns a failure with this text.
    pub fn new(text: impl Into<String>) -> ToolError {
        ToolError::Failed(text.into())
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ToolError::Stopped => out.write_str("stopped"),
            ToolError::Failed(text) => out.write_str(text),
        }
    }
}

impl std::error::Error for ToolError {}

impl From<Stopped> for ToolError {
    fn from(_: Stopped) -> ToolError {
        ToolError::Stopped
    }
}

impl From<SyncError> for ToolError {
    fn from(error: SyncError) -> ToolError {
        match error {
            SyncError::Stopped => ToolError::Stopped,
            SyncError::NotKept => ToolError::Failed(error.to_string()),
        }
    }
}

impl From<std::io::Error> for ToolError {
    fn from(error: std::io::Error) -> ToolError {
        ToolError::Failed(error.to_string())
    }
}

impl From<&str> for ToolError {
    fn from(text: &str) -> ToolError {
        ToolError::Failed(text.to_owned())
    }
}

impl From<String> for ToolError {
    fn from(text: String) -> ToolError {
        ToolError::Failed(text)
    }
}

/// A closure that runs on a thread of the pool, with its arguments.
pub type Blocking = Box<dyn FnOnce(&mut Output) -> Result<(), ToolError> + Send>;

/// The work of one execution.
pub enum Work {
    /// A state machine, on the shard's thread.
    Steps(Box<dyn Tool>),
    /// A closure, on a thread of the pool.
    Thread(Blocking),
    /// Nothing: the creator of the execution publishes its chunks.
    Feed,
    /// Work of a remote worker, which the server finds. Without a server it behaves like
    /// [`Work::Feed`].
    #[doc(hidden)]
    Remote(Box<RemoteCall>),
    /// A run of a model, for an agent with the tools that it calls. A shard with models hosts it.
    #[doc(hidden)]
    Agent(Box<AgentCall>),
}

impl fmt::Debug for Work {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Work::Steps(_) => "Steps",
            Work::Thread(_) => "Thread",
            Work::Feed => "Feed",
            Work::Remote(_) => "Remote",
            Work::Agent(_) => "Agent",
        })
    }
}

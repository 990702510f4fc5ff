//! Stratum 2: what runs.
//!
//! Two kinds of tools. A [`Tool`] is a state machine on its shard's own thread: it is stepped, it
//! must not block, and it costs nothing while it sleeps. A closure (`|arguments, out| …`) runs on a
//! bounded pool of threads, may block as long as it likes, and writes into the ring by itself.
//! Both are slowed by backpressure and reached by a cancellation.
//!
//! No clock here: `now` comes with each step, and a thread asks its [`Host`]. The kernel is asked
//! for files by tools on threads, through `files.rs`, and for processes in `process.rs`, `mark.rs`
//! and `child.rs` alone; `environment.rs` reads the variables that this process was started with.
//! Invariants: a tool's panic ends its own execution and nothing else; nothing is published after
//! a tool was told to stop.

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
pub use step::{Context, EmitError, Notes, Report, Step, Tool};
pub(crate) use threads::panic_error;
pub use threads::{Done, Job, ThreadPool};

use std::fmt;

/// Why a tool could not do its work.
#[derive(Debug)]
pub enum ToolError {
    /// It was told to stop, and has.
    Stopped,
    /// Something went wrong; the text reaches every subscriber.
    Failed(String),
}

impl ToolError {
    /// A failure with this text.
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

/// A tool that runs on a thread of its own, with its arguments.
pub type Blocking = Box<dyn FnOnce(&mut Output) -> Result<(), ToolError> + Send>;

/// What one execution runs.
pub enum Work {
    /// A state machine, on the shard's thread.
    Steps(Box<dyn Tool>),
    /// A closure, on a thread of the pool.
    Thread(Blocking),
    /// Nothing: whoever opened the execution publishes by hand.
    Feed,
    /// Something elsewhere: a worker, which a server finds, does it. Without a server it is as
    /// [`Work::Feed`].
    Remote(Box<RemoteCall>),
    /// A model, and for an agent the tools that it calls: the shard hosts that, if it knows models.
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

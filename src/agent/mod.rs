//! Stratum 3: runs of an agent as machines: a model's turns, the tools that it calls, and the
//! parts that say what happens, while it happens.
//!
//! Time and bytes come in as values, wishes go out as values: nothing here reads a clock, opens a
//! connection or starts a tool. Whoever drives a machine carries out its actions and tells it what
//! came of them.
//!
//! [`Run`] is the machine of a run: [`Event`]s in, [`Action`]s and [`Part`]s out. [`part`] has the
//! parts, which are also what clients read; [`Fold`] puts them together to a [`State`]; [`order`]
//! is the list of what can be relied on. [`Hooks`] are where an embedder steers a run.
//!
//! [`message`] what is said to a model and by it, whichever it is; [`model`] how it is said over
//! three wires: requests out, answers in, cut anywhere. [`script`] is the other side of them, for
//! tests and demonstrations.
//!
//! Invariants: what is kept of a stranger's answer is bounded by [`crate::limits`]; an answer that
//! ends without its end is a failure; a key is in a request's head and in no other text.
//!
//! Tests: beside each file; `tests/models`, with the kept answers in `tests/corpus/models`.
#![forbid(unsafe_code)]

mod config;
mod event;
mod fields;
mod fit;
mod fold;
mod hooks;
pub mod message;
pub mod model;
mod net_fault;
pub mod order;
pub mod part;
#[cfg(test)]
mod part_tests;
mod read;
mod run;
pub mod script;
pub mod state;
mod write;

pub use config::{Config, ConfigError, Strategy, UnknownStrategy};
pub use event::{Action, Event, ToolProgress};
pub use fields::PartError;
pub use fold::{Fold, Folded, Iterate};
pub use hooks::{Hooks, NoHooks, StepChoice};
pub use message::{
    AssistantMessage, CallMade, Message, ReasoningBlock, ToolDescription, ToolResult, Usage,
};
pub use net_fault::{NetFault, NetFaultKind};
pub use part::{
    Arguments, Body, CancelReason, Data, Final, Part, Partial, ProgressSaid, part_name,
};
pub use run::Run;
pub use state::{
    Continuation, Decision, End, Ended, Failure, FinalState, Reason, State, Step, StepCall,
    StepState, ToolExecution,
};

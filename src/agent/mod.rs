//! Stratum 3: agent runs as state machines. A run covers a model's turns, the tool calls, and the
//! parts that report progress while it happens.
//!
//! Time and bytes come in as values, and actions go out as values. Nothing here reads a clock,
//! opens a connection or starts a tool. The driver of a machine carries out its actions and reports
//! the results to it.
//!
//! [`RunMachine`] is the machine of a run: it takes [`RunEvent`]s and yields [`RunAction`]s and
//! [`RunPart`]s.
//! `part` defines the parts, which clients read as well. [`Fold`] assembles them into a
//! [`RunState`]. [`order`] lists the guarantees about their order. [`Hooks`] let an embedder steer
//! a run.
//!
//! `message` holds the messages of a conversation, independent of any wire. [`model`] writes
//! requests and decodes answers for three wires; an answer may be split at any byte. [`script`] is
//! the server side of these wires, for tests and demonstrations.
//!
//! Invariants: the memory kept for a remote answer is bounded by [`crate::limits`]. An answer that
//! stops before its wire's end marker is a failure. A key appears in the head of a request and in
//! no other text.
//!
//! Tests: beside each file, and in `tests/models`, with the recorded answers in
//! `tests/corpus/models`.
#![forbid(unsafe_code)]

mod config;
mod event;
mod fields;
mod fit;
mod fold;
mod hooks;
pub(crate) mod message;
pub mod model;
mod net_fault;
pub mod order;
pub(crate) mod part;
#[cfg(test)]
mod part_tests;
mod read;
mod run;
pub mod script;
pub(crate) mod state;
mod write;

pub use config::{Config, ConfigError, Strategy, UnknownStrategy};
pub use event::{RunAction, RunEvent, ToolProgress};
pub use fields::PartError;
pub use fold::{Fold, Folded, Iterate};
pub use hooks::{Hooks, NoHooks, StepChoice};
pub use message::{
    AssistantMessage, CallMade, Message, ReasoningBlock, ToolDescription, ToolResult, Usage,
};
pub use net_fault::{NetFault, NetFaultKind};
pub use part::{
    Arguments, Body, CancelReason, Data, Final, PartProgress, Partial, RunPart, part_name,
};
pub use run::RunMachine;
pub use state::{
    Continuation, Decision, Ended, Failure, FinalState, Reason, RunEnd, RunState, StepCall,
    StepState, StepSummary, ToolExecution,
};

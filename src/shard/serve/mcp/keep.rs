//! What is kept of an execution's output: for the answer to a call, for a task, for a door.
//!
//! An answer holds so much, and content blocks among it. What is more than that makes a door of it:
//! a window of what was not read yet, and its producer waits until somebody reads, as long as for
//! any stalled `block` subscriber: then it goes on, and the door says so. Where a door is not
//! wanted, the answer says how the output begins; the rest was told in notifications, and is let go
//! of here.

use std::sync::Arc;

use super::tasks::Task;
use crate::base::{ExecutionId, Handle, Instant, Principal, SubscriberId};
use crate::engine::wheel::TimerId;
use crate::engine::{DetachReason, EndState, Gap, Kind, Outcome};
use crate::limits;
use crate::mcp::Collected;
use crate::mcp::door::Window;
use crate::shard::places::Place;
use crate::shard::{Chunk, Ended};
use crate::tool::ToolSpec;

/// What it is kept for.
#[derive(Debug)]
pub(super) enum Role {
    /// The answer to this call.
    Answer(Handle),
    /// Whoever reads.
    Door,
    /// Whoever asks for the result.
    Task(Box<Task>),
}

/// As what.
#[derive(Debug)]
pub(super) enum Content {
    /// All of it.
    All(Collected),
    /// How it begins; there was more.
    Beginning(Collected),
    /// What was not read.
    Window(Window),
}

/// How an execution has ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Over {
    pub state: EndState,
    pub error: Option<Box<str>>,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Keep {
    pub owner: Principal,
    /// What runs.
    pub tool: Arc<ToolSpec>,
    /// `None`: its tool still asks.
    pub execution: Option<ExecutionId>,
    /// What its progress is told under. Kept, as `has_panicked` is, for the result: that may be
    /// written when the execution is forgotten already.
    pub token: Option<String>,
    /// Whether its tool has panicked.
    pub has_panicked: bool,
    /// Gives it what comes, until the end.
    pub subscriber: Option<SubscriberId>,
    pub content: Content,
    /// How what is a window now has begun.
    pub beginning: Box<[u8]>,
    /// It is never a door.
    pub is_streamed: bool,
    /// Its subscriber was told to give it nothing.
    pub is_full: bool,
    pub over: Option<Over>,
    pub role: Role,
    /// Counted as its principal's. A door that nobody reads has none.
    pub place: Option<Place>,
    /// A door that nobody reads until then is closed.
    pub idle_until: Instant,
    /// Calls that wait for something new.
    pub readers: Vec<Handle>,
    /// Payload that was gone before it began.
    pub missed_bytes: u64,
    pub timer: Option<TimerId>,
}

impl Keep {
    pub fn new(owner: Principal, tool: Arc<ToolSpec>, role: Role) -> Keep {
        let content = match role {
            Role::Door => Content::Window(Window::new()),
            Role::Answer(_) | Role::Task(_) if tool.is_relayed => {
                Content::All(Collected::relaying())
            }
            Role::Answer(_) | Role::Task(_) => Content::All(Collected::new()),
        };
        Keep {
            owner,
            tool,
            execution: None,
            token: None,
            has_panicked: false,
            subscriber: None,
            content,
            beginning: Box::default(),
            is_streamed: false,
            is_full: false,
            over: None,
            role,
            place: None,
            idle_until: Instant::ZERO,
            readers: Vec::new(),
            missed_bytes: 0,
            timer: None,
        }
    }

    /// Takes a chunk.
    pub fn take(&mut self, chunk: &Chunk<'_>) {
        if chunk.kind == Kind::Log {
            return; // It was told.
        }
        if self.tool.has_parts {
            return self.take_part(chunk);
        }
        if let Content::All(collected) = &mut self.content {
            if collected.push_chunk(chunk.kind, chunk.more, chunk.data) {
                return;
            }
            let collected = std::mem::take(collected);
            self.content = match self.is_streamed || matches!(self.role, Role::Task(_)) {
                true => Content::Beginning(collected),
                false => {
                    let output = collected.output();
                    self.beginning = output[..output.len().min(limits::MCP_SUMMARY_BYTES)].into();
                    let mut window = Window::new();
                    window.push(&collected.into_bytes());
                    Content::Window(window)
                }
            };
        }
        if let Content::Window(window) = &mut self.content {
            window.push(chunk.data);
            self.is_full = window.room() == 0 || matches!(self.role, Role::Answer(_));
        }
    }

    /// Of a run of an agent: the answer is what its model has said last; who reads it piece by
    /// piece reads its parts, each a line.
    fn take_part(&mut self, chunk: &Chunk<'_>) {
        use crate::agent::{Body, Part, Partial, part_name};
        if let Content::Window(window) = &mut self.content {
            window.push(chunk.data);
            window.push(b"\n");
            self.is_full = window.room() == 0;
            return;
        }
        match part_name(chunk.key) {
            Some("StepStarted") => self.content = Content::All(Collected::new()),
            Some("TextDelta") => {
                let said = Part::parse(chunk.data).map(|part| part.body);
                let Ok(Body::Partial(Partial::TextDelta { delta, .. })) = said else { return };
                if let Content::All(collected) = &mut self.content
                    && !collected.push(false, false, delta.as_bytes())
                {
                    self.content = Content::Beginning(std::mem::take(collected));
                }
            }
            _ => {}
        }
    }

    /// Nothing more comes.
    pub fn end(&mut self, ended: &Ended<'_>) {
        self.subscriber = None;
        self.finish(Over { state: ended.end.state, error: ended.error.map(Box::from) });
        if self.is_let_go() {
            self.place = None;
        }
    }

    /// It was never given anything.
    pub fn fail(&mut self, text: &str) {
        let state = EndState::Ended(Outcome::Failed);
        self.finish(Over { state, error: Some(text.into()) });
    }

    fn finish(&mut self, over: Over) {
        if let Content::Window(window) = &mut self.content
            && !window.is_ended()
        {
            window.end();
        }
        self.is_full = false;
        self.over = Some(over);
    }

    /// Something of it is gone for good: only who comes to an execution late sees that.
    pub fn miss(&mut self, gap: &Gap) {
        self.missed_bytes += gap.byte_count;
    }

    /// Does somebody wait for something new?
    pub fn has_readers(&self) -> bool {
        !self.readers.is_empty()
    }

    pub fn window(&mut self) -> Option<&mut Window> {
        match &mut self.content {
            Content::Window(window) => Some(window),
            Content::All(_) | Content::Beginning(_) => None,
        }
    }

    /// Was it too much for an answer?
    pub fn is_a_door(&self) -> bool {
        matches!(self.content, Content::Window(_))
    }

    /// True for a door that its tool no longer waits for.
    pub fn is_let_go(&self) -> bool {
        let state = self.over.as_ref().map(|over| over.state);
        matches!(self.role, Role::Door) && matches!(state, Some(EndState::Detached { .. }))
    }

    /// Was all of it read?
    pub fn is_done(&self) -> bool {
        matches!(&self.content, Content::Window(window) if window.is_done())
    }
}

impl Over {
    /// What went wrong, if something did: a sentence.
    pub fn problem(&self) -> Option<String> {
        let said = self.error.as_deref().filter(|text| !text.is_empty());
        match self.state {
            EndState::Ended(Outcome::Completed) => None,
            EndState::Ended(outcome) => {
                Some(said.map_or_else(|| format!("the execution has {outcome}"), str::to_owned))
            }
            EndState::Detached { reason: DetachReason::Stall, .. } => {
                let text = "the stream was not read for too long (stall): its tool went on without \
                            it, and the rest is lost";
                Some(text.to_owned())
            }
            EndState::Detached { reason, .. } => {
                Some(format!("the rest is lost: detached ({})", reason.name()))
            }
        }
    }

    /// As an answer says it.
    pub fn outcome(&self) -> Outcome {
        match self.state {
            EndState::Ended(outcome) => outcome,
            EndState::Detached { .. } => Outcome::Failed,
        }
    }
}

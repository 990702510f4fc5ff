//! The kept output of an execution: for the answer to a call, for a task, for a stream.
//!
//! An answer has a limit of bytes and of content blocks. Output beyond that turns the answer into a
//! stream: a window of unread output. The producer waits until a client reads, as long as for any
//! stalled `block` subscriber. Then it continues, and the stream reports that. If the client wants
//! no stream, the answer holds the beginning of the output. The rest was sent in notifications and
//! is not kept.

use std::sync::Arc;

use crate::base::{ExecutionId, Handle, Instant, Principal, SubscriberId};
use crate::engine::wheel::TimerId;
use crate::limits;
use crate::mcp::Collected;
use crate::mcp::streams::StreamWindow;
use crate::server::mcp::tasks::Task;
use crate::server::places::Place;
use crate::shard::{Chunk, Ended};
use crate::stream::{DetachReason, EndState, Gap, Kind, Outcome};
use crate::tool::ToolSpec;

/// The purpose of kept output.
#[derive(Debug)]
pub(in crate::server) enum Role {
    /// The answer to this call.
    Answer(Handle),
    /// Reads by the stream's tools.
    Stream,
    /// The result of a task.
    Task(Box<Task>),
}

/// The kept part of the output.
#[derive(Debug)]
pub(in crate::server) enum Content {
    /// All output so far.
    All(Collected),
    /// The beginning. More output has come since.
    Beginning(Collected),
    /// The output that was not read yet.
    Window(StreamWindow),
}

/// The end of an execution.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::server) struct Over {
    pub state: EndState,
    pub error: Option<Box<str>>,
}

/// The kept output of one execution. See the module's text.
#[derive(Debug)]
pub(in crate::server) struct KeptOutput {
    pub owner: Principal,
    /// The tool that runs.
    pub tool: Arc<ToolSpec>,
    /// The execution; `None` while its tool still has questions.
    pub execution: Option<ExecutionId>,
    /// The execution's progress token. It is copied, as `has_panicked` is, because the result may
    /// be written after the execution is forgotten.
    pub token: Option<String>,
    /// True if its tool has panicked.
    pub has_panicked: bool,
    /// The subscriber that delivers the output, until the end.
    pub subscriber: Option<SubscriberId>,
    pub content: Content,
    /// The beginning of an output that has become a window.
    pub beginning: Box<[u8]>,
    /// True if it never becomes a stream.
    pub is_streamed: bool,
    /// True if its subscriber was told to deliver nothing.
    pub is_full: bool,
    pub over: Option<Over>,
    pub role: Role,
    /// The place that its principal uses for it. A stream that is not read has none.
    pub place: Option<Place>,
    /// The time at which a stream is closed if it is not read.
    pub idle_until: Instant,
    /// The calls that wait for new output.
    pub readers: Vec<Handle>,
    /// Bytes of payload that were gone before it began.
    pub missed_bytes: u64,
    pub timer: Option<TimerId>,
}

impl KeptOutput {
    pub fn new(owner: Principal, tool: Arc<ToolSpec>, role: Role) -> KeptOutput {
        let content = match role {
            Role::Stream => Content::Window(StreamWindow::new()),
            Role::Answer(_) | Role::Task(_) if tool.is_relayed => {
                Content::All(Collected::relaying())
            }
            Role::Answer(_) | Role::Task(_) => Content::All(Collected::new()),
        };
        KeptOutput {
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

    /// Adds a chunk.
    pub fn take(&mut self, chunk: &Chunk<'_>) {
        if chunk.kind == Kind::Log {
            return; // It was sent as a notification.
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
                    let mut window = StreamWindow::new();
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

    /// Adds a part of a run of an agent. The answer is the text of the model's last step. A stream
    /// holds the parts, one on each line.
    fn take_part(&mut self, chunk: &Chunk<'_>) {
        use crate::agent::{Body, Partial, RunPart, part_name};
        if let Content::Window(window) = &mut self.content {
            window.push(chunk.data);
            window.push(b"\n");
            self.is_full = window.room() == 0;
            return;
        }
        match part_name(chunk.key) {
            Some("StepStarted") => self.content = Content::All(Collected::new()),
            Some("TextDelta") => {
                let said = RunPart::parse(chunk.data).map(|part| part.body);
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

    /// Notes the end of the output.
    pub fn end(&mut self, ended: &Ended<'_>) {
        self.subscriber = None;
        self.finish(Over { state: ended.end.state, error: ended.error.map(Box::from) });
        if self.is_let_go() {
            self.place = None;
        }
    }

    /// Notes that the output could not be followed.
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

    /// Counts chunks that are gone for good, which only a late subscriber sees.
    pub fn miss(&mut self, gap: &Gap) {
        self.missed_bytes += gap.byte_count;
    }

    /// True if calls wait for new output.
    pub fn has_readers(&self) -> bool {
        !self.readers.is_empty()
    }

    pub fn window(&mut self) -> Option<&mut StreamWindow> {
        match &mut self.content {
            Content::Window(window) => Some(window),
            Content::All(_) | Content::Beginning(_) => None,
        }
    }

    /// True if the output was too long for an answer.
    pub fn is_a_stream(&self) -> bool {
        matches!(self.content, Content::Window(_))
    }

    /// True for a stream that its tool no longer waits for.
    pub fn is_let_go(&self) -> bool {
        let state = self.over.as_ref().map(|over| over.state);
        matches!(self.role, Role::Stream) && matches!(state, Some(EndState::Detached { .. }))
    }

    /// True if all of a stream was read.
    pub fn is_done(&self) -> bool {
        matches!(&self.content, Content::Window(window) if window.is_done())
    }
}

impl Over {
    /// Returns the text of what went wrong, if anything.
    pub fn problem(&self) -> Option<String> {
        let said = self.error.as_deref().filter(|text| !text.is_empty());
        match self.state {
            EndState::Ended(Outcome::Completed) => None,
            EndState::Ended(outcome) => {
                Some(said.map_or_else(|| format!("the execution has {outcome}"), str::to_owned))
            }
            EndState::Detached { reason: DetachReason::Stall, .. } => {
                let text = "the stream was not read for too long (stall): its tool continued \
                            without it, and the rest is lost";
                Some(text.to_owned())
            }
            EndState::Detached { reason, .. } => {
                Some(format!("the rest is lost: detached ({})", reason.name()))
            }
        }
    }

    /// Returns the outcome that the answer reports.
    pub fn outcome(&self) -> Outcome {
        match self.state {
            EndState::Ended(outcome) => outcome,
            EndState::Detached { .. } => Outcome::Failed,
        }
    }
}

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
use crate::shard::journal::RESTARTED;
use crate::shard::{Chunk, Ended};
use crate::stream::{DetachReason, EndState, Gap, Kind, Outcome, Totals};
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
    /// A resource: the output of an execution that the disk has.
    Resource,
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
    /// The end of the output, of all kinds.
    End(Vec<u8>),
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
    /// True if it is among the events of this turn.
    pub has_news: bool,
    /// The subscriber that delivers the output, until the end.
    pub subscriber: Option<SubscriberId>,
    pub content: Content,
    /// The beginning of an output that has become a window.
    pub beginning: Box<[u8]>,
    /// True if it never becomes a stream.
    pub is_streamed: bool,
    /// Number of chunks that its subscriber was told to deliver; `u32::MAX`: any number.
    pub asked_count: u32,
    /// The length of the last chunk.
    pub chunk_bytes: usize,
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
            Role::Resource => Content::End(Vec::new()),
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
            has_news: false,
            subscriber: None,
            content,
            beginning: Box::default(),
            is_streamed: false,
            asked_count: u32::MAX,
            chunk_bytes: 0,
            over: None,
            role,
            place: None,
            idle_until: Instant::ZERO,
            readers: Vec::new(),
            missed_bytes: 0,
            timer: None,
        }
    }

    /// Sets the tool, before any output has come.
    pub fn set_tool(&mut self, tool: &Arc<ToolSpec>) {
        if !Arc::ptr_eq(&self.tool, tool) {
            self.tool = Arc::clone(tool);
            self.content = Content::All(match tool.is_relayed {
                true => Collected::relaying(),
                false => Collected::new(),
            });
        }
    }

    /// Adds a chunk.
    pub fn take(&mut self, chunk: &Chunk<'_>) {
        if let Content::End(bytes) = &mut self.content {
            bytes.extend_from_slice(chunk.data);
            if bytes.len() > 2 * limits::RESULT_KEPT_BYTES_MAX {
                bytes.drain(..bytes.len() - limits::RESULT_KEPT_BYTES_MAX);
            }
            return;
        }
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
        }
    }

    /// Returns the number of chunks to deliver at first, of an execution with these totals. A
    /// window is filled as by chunks of their average length, or by one chunk.
    pub fn ask_first(&mut self, totals: Totals) -> u32 {
        let average_bytes = totals.bytes.checked_div(totals.chunks);
        self.asked_count = match (&self.content, average_bytes) {
            (Content::Window(_), None) => 1,
            (Content::Window(_), Some(average_bytes)) => {
                self.chunk_bytes = average_bytes as usize;
                self.fitting_count()
            }
            (Content::All(_) | Content::Beginning(_) | Content::End(_), _) => u32::MAX,
        };
        self.asked_count
    }

    /// Returns the number of chunks to deliver next, if it is not the number that is left. The last
    /// delivery was a chunk of this length, or a gap (0). A window gets as many chunks of this
    /// length as it has room for. Each read then makes room for some.
    pub fn ask_after(&mut self, chunk_bytes: usize) -> Option<u32> {
        if chunk_bytes > 0 {
            self.chunk_bytes = chunk_bytes;
        }
        let left_count = match self.asked_count {
            u32::MAX => u32::MAX,
            asked_count => asked_count.saturating_sub(1),
        };
        self.asked_count = match &self.content {
            Content::Window(_) if matches!(self.role, Role::Answer(_)) => 0,
            Content::Window(window) if window.room() == 0 => 0,
            Content::Beginning(_) if self.is_of_the_past() && !self.tool.has_parts => 0,
            Content::Window(_) if matches!(left_count, 0 | u32::MAX) => self.fitting_count(),
            _ => left_count,
        };
        (self.asked_count != left_count).then_some(self.asked_count)
    }

    /// Returns the number of chunks to deliver after a read, if none were to be delivered before.
    pub fn ask_after_read(&mut self) -> Option<u32> {
        if self.asked_count > 0 || self.fitting_count() == 0 {
            return None;
        }
        self.asked_count = self.fitting_count();
        Some(self.asked_count)
    }

    /// True for a task whose execution had ended before its output was kept here. More output than
    /// fits into its result changes nothing.
    fn is_of_the_past(&self) -> bool {
        matches!(&self.role, Role::Task(task) if task.is_recalled())
    }

    /// Takes the end of the output of a resource, within the limit and without a cut character.
    pub fn take_end(&mut self) -> Vec<u8> {
        let Content::End(bytes) = &mut self.content else { return Vec::new() };
        let mut bytes = std::mem::take(bytes);
        let cut = bytes.len().saturating_sub(limits::RESULT_KEPT_BYTES_MAX);
        let rest = &bytes[cut..];
        let is_inside = |byte: &&u8| cut > 0 && matches!(byte, 0x80..=0xBF);
        let inside = rest.iter().take(3).take_while(is_inside).count();
        bytes.drain(..cut + inside);
        bytes
    }

    /// True if its subscriber delivers nothing until something was read.
    pub fn is_full(&self) -> bool {
        self.asked_count == 0
    }

    /// Number of chunks of the last length for which the window has room, at least one if it has
    /// any.
    fn fitting_count(&self) -> u32 {
        let Content::Window(window) = &self.content else { return u32::MAX };
        let room_bytes = window.room();
        (room_bytes / self.chunk_bytes.max(1)).max(usize::from(room_bytes > 0)) as u32
    }

    /// Adds a part of a run of an agent. The answer is the text of the model's last step. A stream
    /// holds the parts, one on each line.
    fn take_part(&mut self, chunk: &Chunk<'_>) {
        use crate::agent::{Body, Partial, RunPart, part_name};
        if let Content::Window(window) = &mut self.content {
            window.push(chunk.data);
            window.push(b"\n");
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
        if self.over.is_some() {
            return; // It was stopped before.
        }
        self.finish(Over { state: ended.end.state, error: ended.error.map(Box::from) });
        if self.is_let_go() {
            self.place = None;
        }
    }

    /// Notes the end of an execution whose further output is not needed. Returns its subscriber.
    pub fn stop(&mut self, outcome: Outcome, error: Option<Box<str>>) -> Option<SubscriberId> {
        self.finish(Over { state: EndState::Ended(outcome), error });
        self.subscriber.take()
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
            Content::All(_) | Content::Beginning(_) | Content::End(_) => None,
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

    /// True if the process has ended before the execution.
    pub fn is_cut(&self) -> bool {
        self.error.as_deref() == Some(RESTARTED)
    }

    /// Returns the outcome that the answer reports.
    pub fn outcome(&self) -> Outcome {
        match self.state {
            EndState::Ended(outcome) => outcome,
            EndState::Detached { .. } => Outcome::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_long_output_begins_with_a_whole_character() {
        let most = limits::RESULT_KEPT_BYTES_MAX;
        let end_of = |bytes: Vec<u8>| {
            let spec = Arc::new(ToolSpec::new("t", ""));
            let mut keep = KeptOutput::new(Principal::ANYONE, spec, Role::Resource);
            keep.content = Content::End(bytes);
            keep.take_end()
        };
        assert_eq!(end_of(b"\x80abc".to_vec()), b"\x80abc"); // All of it.
        for more in 0..4 {
            let mut bytes = "\u{1F622}".repeat(most / 4 + 1).into_bytes();
            bytes.extend(std::iter::repeat_n(b'.', more));
            let end = end_of(bytes);
            assert!(end.len() > most - 4 && end.len() <= most, "{more}");
            assert!(std::str::from_utf8(&end).is_ok());
        }
    }
}

//! Calls of tools: their arguments, their execution, and their results for the model.

use std::sync::Arc;

use serde_json::Value;

use super::RunMachine;
use super::out::OutputChunk;
use super::output::KeptOutput;
use super::step::OpenStep;
use crate::agent::config::{Config, Strategy};
use crate::agent::event::{RunAction, RunEvent, ToolProgress};
use crate::agent::fit::{front, words};
use crate::agent::message::ToolResult;
use crate::agent::model::FinishReason;
use crate::agent::part::{Arguments, Final, PartProgress, Partial};
use crate::agent::state::{ToolExecution, micros};
use crate::base::{ExecutionId, Instant};
use crate::limits;
use crate::stream::{Exit, Gap, Outcome};

/// One call of the open step.
#[derive(Debug)]
pub(super) struct RunCall {
    pub number: u32,
    pub id: Arc<str>,
    /// The name as shown in parts. It may be the name of no tool.
    pub name: Arc<str>,
    /// The name as the model wrote it, if that differs.
    raw_name: Option<String>,
    pub arguments_bytes: u64,
    pub state: CallState,
    execution: Option<ExecutionId>,
    output: KeptOutput,
    begun: Instant,
    begun_us: u64,
}

#[derive(Debug, PartialEq)]
pub(super) enum CallState {
    /// The model writes the arguments.
    Writing,
    /// The model has written the arguments, and they are no object. They may have been cut off.
    Broken { problem: String },
    /// The call can be started.
    Ready(Value),
    /// The tool was asked to start.
    Running(Value),
    /// The call is over. Its result is taken when the step ends.
    Over { outcome: Outcome, result: Option<ToolResult> },
}

impl RunCall {
    pub fn new(number: u32, id: Arc<str>, name: &str, now: Instant, wall_us: u64) -> RunCall {
        let shown = shown_name(name);
        let raw_name = (shown != name).then(|| words(name, limits::AGENT_WORDS_BYTES_MAX));
        RunCall {
            number,
            id,
            name: shown.into(),
            raw_name,
            arguments_bytes: 0,
            state: CallState::Writing,
            execution: None,
            output: KeptOutput::new(0),
            begun: now,
            begun_us: wall_us,
        }
    }

    pub fn is_over(&self) -> bool {
        matches!(self.state, CallState::Over { .. })
    }

    pub fn is_running(&self) -> bool {
        matches!(self.state, CallState::Running(_))
    }

    fn execution(&self, end: &CallEnd<'_>, now: Instant, text: &str) -> ToolExecution {
        let arguments = match (&self.state, &end.arguments) {
            (_, Some(arguments)) => arguments.clone(),
            (CallState::Ready(value) | CallState::Running(value), None) => {
                Arguments::Valid(value.clone())
            }
            _ => unreachable!("a call that never started carries its arguments"),
        };
        ToolExecution {
            tool_call_id: self.id.to_string(),
            name: self.name.to_string(),
            execution: self.execution,
            arguments,
            output: text.to_owned(),
            output_truncated: self.output.is_cut(),
            output_bytes: self.output.bytes(),
            outcome: end.outcome,
            exit: end.exit,
            error: end.error.map(|error| words(error, limits::AGENT_WORDS_BYTES_MAX)),
            started_us: self.begun_us,
            duration_us: micros(now.since(self.begun)),
        }
    }
}

/// The end of a call.
struct CallEnd<'a> {
    outcome: Outcome,
    exit: Option<Exit>,
    error: Option<&'a str>,
    /// The arguments, if they differ from those of the state.
    arguments: Option<Arguments>,
}

impl<'a> CallEnd<'a> {
    fn new(outcome: Outcome, error: Option<&'a str>) -> CallEnd<'a> {
        CallEnd { outcome, exit: None, error, arguments: None }
    }
}

/// Returns a name as shown in parts and sent back to the model: other characters become `_`.
fn shown_name(name: &str) -> String {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || "_-.".contains(*c);
    let plain = name.chars().map(|c| if is_plain(&c) { c } else { '_' });
    let shown: String = plain.take(limits::AGENT_TOOL_NAME_BYTES_MAX).collect();
    if shown.is_empty() { "_".to_owned() } else { shown }
}

/// Parses arguments, or returns the reason for which they are no object.
fn parse_arguments(text: &str) -> Result<Value, String> {
    match serde_json::from_str(text) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err("the arguments are not a JSON object".to_owned()),
        Err(_) if text.is_empty() => Err("the arguments are missing".to_owned()),
        Err(error) => Err(format!("the arguments are not JSON: {error}")),
    }
}

impl RunMachine {
    fn call_at(&mut self, at: usize) -> &mut RunCall {
        &mut self.step.as_mut().expect("a call is part of a step").calls[at]
    }

    /// Returns the position of the call with this number, if its tool runs.
    fn running(&self, number: u32) -> Option<usize> {
        let calls = &self.step.as_ref()?.calls;
        calls.iter().position(|call| call.number == number && call.is_running())
    }

    fn arguments_text(&self, at: usize) -> &str {
        let step = self.step.as_ref().expect("a call is part of a step");
        &step.assembly.message.calls[at].arguments
    }

    /// Handles the end of a call's arguments.
    pub(super) fn complete_arguments(&mut self, at: usize) {
        let parsed = parse_arguments(self.arguments_text(at));
        let problem = self.problem_of_call(at);
        match (parsed, problem) {
            (Err(problem), None) => self.call_at(at).state = CallState::Broken { problem },
            (_, Some(problem)) => self.refuse_arguments(at, &problem),
            (Ok(value), None) => {
                self.emit_arguments(at, Arguments::Valid(value.clone()));
                let output_bytes_max = self.config.output_bytes_max;
                let call = self.call_at(at);
                call.state = CallState::Ready(value);
                call.output = KeptOutput::new(output_bytes_max);
                self.step.as_mut().expect("a call is part of a step").accepted_count += 1;
            }
        }
    }

    /// Returns the reason for which the call cannot be carried out, whatever its arguments.
    fn problem_of_call(&self, at: usize) -> Option<String> {
        let step = self.step.as_ref().expect("a call is part of a step");
        let call = &step.calls[at];
        let is_known = |name: &str| self.config.tools.iter().any(|tool| tool.name == name);
        if call.raw_name.is_some() || !is_known(&call.name) {
            let name = call.raw_name.as_deref().unwrap_or(&call.name);
            let mut problem = format!("unknown tool {name:?}");
            if let Some(first) = self.config.tools.first() {
                let names = self.config.tools[1..].iter().map(|tool| tool.name.as_str());
                problem.push_str("; the tools are: ");
                problem.push_str(&first.name);
                names.for_each(|name| problem.extend([", ", name]));
            }
            return Some(words(&problem, limits::AGENT_WORDS_BYTES_MAX));
        }
        let calls_max = self.config.calls_per_step_max;
        (step.accepted_count >= calls_max).then(|| {
            format!(
                "only {calls_max} calls are allowed in one turn; call it again in the next turn"
            )
        })
    }

    /// Refuses the arguments of a call that may be incomplete, after the turn ended for this
    /// reason.
    pub(super) fn settle_arguments(&mut self, at: usize, reason: &FinishReason) {
        let problem = match &self.call_at(at).state {
            CallState::Writing => "the arguments were cut off".to_owned(),
            CallState::Broken { .. } if *reason == FinishReason::Length => {
                "the arguments were cut off, because the turn reached its length limit".to_owned()
            }
            CallState::Broken { problem } => problem.clone(),
            CallState::Ready(_) | CallState::Running(_) | CallState::Over { .. } => return,
        };
        self.refuse_arguments(at, &problem);
    }

    /// Fails a call because of its arguments. No tool is started for it.
    fn refuse_arguments(&mut self, at: usize, problem: &str) {
        let arguments = self.invalid_arguments(at, problem);
        self.emit_arguments(at, arguments.clone());
        let mut end = CallEnd::new(Outcome::Failed, Some(problem));
        end.arguments = Some(arguments);
        self.end_call(at, end);
    }

    fn invalid_arguments(&self, at: usize, problem: &str) -> Arguments {
        let text = self.arguments_text(at);
        let shown = front(text, self.out.part_bytes_max());
        Arguments::Invalid {
            text: shown.to_owned(),
            text_truncated: shown.len() < text.len(),
            problem: words(problem, limits::AGENT_WORDS_BYTES_MAX),
        }
    }

    fn emit_arguments(&mut self, at: usize, arguments: Arguments) {
        let call = self.call_at(at);
        let (tool_call_id, tool_name) = (Arc::clone(&call.id), Arc::clone(&call.name));
        self.out.push_final(Final::ToolCallArgsCompleted { tool_call_id, tool_name, arguments });
    }

    /// Starts as many ready tools as the limit allows.
    pub(super) fn start_calls(&mut self) {
        let Some(step) = &mut self.step else { return };
        if self.config.strategy == Strategy::AfterTurn && !step.is_turn_over() {
            return;
        }
        let running_count = step.calls.iter().filter(|call| call.is_running()).count();
        let room = (self.config.parallel_calls_max as usize).saturating_sub(running_count);
        let is_ready = |call: &&mut RunCall| matches!(call.state, CallState::Ready(_));
        for call in step.calls.iter_mut().filter(is_ready).take(room) {
            let CallState::Ready(arguments) = &mut call.state else { unreachable!("it is") };
            let arguments = arguments.take();
            let (number, tool) = (call.number, call.name.to_string());
            (call.begun, call.begun_us) = (self.now, self.out.wall_us);
            call.state = CallState::Running(arguments.clone());
            self.actions.push_back(RunAction::Start { call: number, tool, arguments });
        }
    }

    pub(super) fn tool_started(&mut self, number: u32, execution: ExecutionId) {
        if let Some(at) = self.running(number) {
            self.call_at(at).execution = Some(execution);
        }
    }

    pub(super) fn tool_refused(&mut self, number: u32, text: &str) {
        if let Some(at) = self.running(number) {
            self.end_call(at, CallEnd::new(Outcome::Failed, Some(text)));
        }
    }

    pub(super) fn tool_chunk(&mut self, event: &RunEvent<'_>) {
        let RunEvent::ToolChunk { call, seq, offset, kind, bytes, more } = *event else {
            unreachable!("the caller has looked");
        };
        let Some(at) = self.running(call) else { return };
        let call = self.call_at(at);
        call.output.push(bytes);
        let tool_call_id = &Arc::clone(&call.id);
        let execution = call.execution;
        self.out.push_output(&OutputChunk {
            tool_call_id,
            execution,
            output_seq: seq,
            offset,
            kind,
            bytes,
            more,
        });
    }

    pub(super) fn tool_progress(&mut self, number: u32, said: &ToolProgress<'_>) {
        let Some(at) = self.running(number) else { return };
        let tool_call_id = Arc::clone(&self.call_at(at).id);
        let finite = |number: Option<f64>| number.filter(|number| number.is_finite());
        let Some(progress) = finite(Some(said.progress)) else { return };
        let message = said.message.map(|text| words(text, limits::AGENT_WORDS_BYTES_MAX));
        let progress = PartProgress {
            progress,
            total: finite(said.total),
            percentage: finite(said.percentage),
            message,
            context: said.context.and_then(|context| serde_json::from_str(context).ok()),
        };
        self.out.push_partial(Partial::ToolProgress { tool_call_id, progress });
    }

    pub(super) fn tool_gap(&mut self, number: u32, gap: Gap) {
        let Some(at) = self.running(number) else { return };
        let call = self.call_at(at);
        call.output.miss(gap.byte_count);
        let tool_call_id = Arc::clone(&call.id);
        self.out.push_partial(Partial::Gap { tool_call_id, gap });
    }

    pub(super) fn tool_ended(
        &mut self,
        number: u32,
        outcome: Outcome,
        exit: Option<Exit>,
        error: Option<&str>,
    ) {
        let Some(at) = self.running(number) else { return };
        let silent = match outcome {
            Outcome::Completed => None,
            Outcome::Failed => Some("the tool failed"),
            Outcome::Cancelled => Some("the tool was cancelled"),
            Outcome::TimedOut => Some("the tool took too long"),
        };
        self.end_call(at, CallEnd { outcome, exit, error: error.or(silent), arguments: None });
    }

    /// Stops running tools, starts no other, and cancels all calls that are not over.
    pub(super) fn give_up_calls(&mut self, why: &str) {
        let call_count = self.step.as_ref().map_or(0, |step| step.calls.len());
        for at in 0..call_count {
            let call = self.call_at(at);
            if call.is_over() {
                continue;
            }
            let mut end = CallEnd::new(Outcome::Cancelled, Some(why));
            if call.is_running() {
                let number = call.number;
                self.actions.push_back(RunAction::Stop { call: number });
            } else if !matches!(call.state, CallState::Ready(_)) {
                end.arguments = Some(self.invalid_arguments(at, why));
            }
            self.end_call(at, end);
        }
    }

    /// Ends a call and pushes its last part.
    fn end_call(&mut self, at: usize, end: CallEnd<'_>) {
        let (now, part_bytes_max) = (self.now, self.out.part_bytes_max());
        let call = self.call_at(at);
        let text = call.output.text();
        let mut execution = call.execution(&end, now, front(&text, part_bytes_max));
        execution.output_truncated |= execution.output.len() < text.len();
        let execution = Box::new(execution);
        let tool_call_id = Arc::clone(&call.id);
        let last = match end.outcome {
            Outcome::Completed => Final::ToolCallCompleted { tool_call_id, execution },
            Outcome::Failed | Outcome::TimedOut => {
                Final::ToolCallFailed { tool_call_id, execution }
            }
            Outcome::Cancelled => Final::ToolCallCancelled { tool_call_id, execution },
        };
        let call_id = call.id.to_string();
        let is_error = end.outcome != Outcome::Completed;
        let result = Some(ToolResult { call_id, output: result_text(text, &end), is_error });
        call.state = CallState::Over { outcome: end.outcome, result };
        call.output = KeptOutput::new(0);
        self.out.push_final(last);
    }
}

/// Returns the text for the model: the output, followed by the error or an unsuccessful exit.
fn result_text(mut output: String, end: &CallEnd<'_>) -> String {
    let mut tell = |text: &str| {
        if !output.is_empty() {
            output.push_str(if output.ends_with('\n') { "\n" } else { "\n\n" });
        }
        output.push_str(text);
    };
    match (end.error, end.exit.filter(|exit| !exit.is_success())) {
        (Some(error), _) => tell(&format!("Error: {error}")),
        (None, Some(exit)) => tell(&format!("({exit})")),
        (None, None) => {}
    }
    output
}

/// Checks R2 and R3.
pub(super) fn audit(step: &OpenStep, config: &Config) {
    let running_count = step.calls.iter().filter(|call| call.is_running()).count();
    assert!(running_count <= config.parallel_calls_max as usize);
    assert!(step.accepted_count <= config.calls_per_step_max);
    assert!(step.calls.len() == step.assembly.message.calls.len());
    for call in &step.calls {
        if let CallState::Ready(arguments) | CallState::Running(arguments) = &call.state {
            assert!(arguments.is_object());
            assert!(config.tools.iter().any(|tool| tool.name == *call.name));
        }
        let may_run = config.strategy == Strategy::Eager || step.is_turn_over();
        assert!(may_run || !call.is_running());
        let is_open = matches!(call.state, CallState::Writing | CallState::Broken { .. });
        assert!(!is_open || !step.is_turn_over());
    }
}

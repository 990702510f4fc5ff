//! Random runs, and what a client should read from them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::check::{SeenCall, SeenEnd, SeenStep, SeenStream};
use crate::agent::model::FinishReason;
use crate::agent::order::Order;
use crate::agent::{
    Arguments, Body, CancelReason, Continuation, Data, Decision, Failure, Final, FinalState,
    PartProgress, Partial, Reason, RunPart, StepCall, StepSummary, ToolExecution, Usage,
};
use crate::base::Random;
use crate::stream::{Gap, GapReason, Kind, Outcome};

/// A random run.
pub struct RandomRun {
    pub parts: Vec<RunPart>,
    /// The content of the whole run. Results are those that the model receives.
    pub seen: SeenStream,
}

/// The size of a random run.
#[derive(Clone, Copy)]
pub struct Size {
    pub steps_max: u64,
    pub calls_max: u64,
    /// Maximum number of pieces of a text, of arguments, and of an output.
    pub pieces_max: u64,
}

impl Default for Size {
    fn default() -> Size {
        Size { steps_max: 4, calls_max: 3, pieces_max: 6 }
    }
}

struct RunWriter<'r> {
    random: &'r mut Random,
    size: Size,
    parts: Vec<RunPart>,
    seen: SeenStream,
    step: u32,
    text_bytes: u64,
    reasoning_bytes: u64,
    calls: Vec<RandomCall>,
    call_count: u64,
    is_broken: bool,
}

/// A call that has not ended.
struct RandomCall {
    id: Arc<str>,
    name: Arc<str>,
    arguments: Option<Arguments>,
    /// The whole text of the arguments.
    text: String,
    sent_bytes: usize,
    output: Vec<u8>,
    output_seq: u64,
}

impl RandomRun {
    pub fn new(random: &mut Random, size: Size) -> RandomRun {
        let (parts, seen) = (Vec::new(), SeenStream::default());
        let mut writer = RunWriter {
            random,
            size,
            parts,
            seen,
            step: 0,
            text_bytes: 0,
            reasoning_bytes: 0,
            calls: Vec::new(),
            call_count: 0,
            is_broken: false,
        };
        writer.run();
        let mut order = Order::default();
        for part in &writer.parts {
            order.take(part).expect("the parts are a valid run");
        }
        assert!(order.is_over());
        RandomRun { parts: writer.parts, seen: writer.seen }
    }
}

impl RunWriter<'_> {
    fn run(&mut self) {
        self.partial(Partial::ExecutionStarted {
            task: "find \"it\"\n".to_owned(),
            task_truncated: false,
            model: "a-model".to_owned(),
            tools: vec!["search".to_owned()],
            tools_truncated: false,
        });
        let step_count = self.random.between(1, self.size.steps_max);
        for number in 1..=step_count {
            self.step = number as u32;
            self.one_step(number == step_count);
            if self.is_broken {
                break;
            }
        }
        let (step_count, tool_call_count) = (self.step, self.call_count as u32);
        let cancelled = self.random.below(3) as usize;
        let state = |reason| FinalState {
            step_count,
            text: "the end".to_owned(),
            text_truncated: false,
            usage: Usage { input_tokens: 9, output_tokens: 4, ..Usage::default() },
            reason,
            tool_call_count,
            duration_us: 77,
        };
        let (last, end) = if !self.is_broken {
            (Final::ExecutionCompleted { final_state: state(Reason::Stop) }, SeenEnd::Completed)
        } else if self.random.chance(1, 2) {
            let (code, message) = ("overloaded".to_owned(), "no\nroom \u{2028}".to_owned());
            let error = Failure { code, message: message.clone(), ..Failure::default() };
            let last = Final::ExecutionFailed { error, final_state: state(Reason::Failed) };
            (last, SeenEnd::Failed(message))
        } else {
            let reason = CancelReason::ALL[cancelled];
            let final_state = state(Reason::Cancelled(reason));
            let end = match reason {
                CancelReason::Cancelled => SeenEnd::Cancelled,
                CancelReason::TimedOut => SeenEnd::Failed("it took too long".to_owned()),
                CancelReason::Shutdown => SeenEnd::Failed("the server stops".to_owned()),
            };
            (Final::ExecutionCancelled { reason, final_state }, end)
        };
        self.last(last);
        self.seen.end = end;
    }

    fn one_step(&mut self, is_last: bool) {
        (self.text_bytes, self.reasoning_bytes) = (0, 0);
        self.seen.steps.push(SeenStep::default());
        self.partial(Partial::StepStarted);
        let will_break = self.random.chance(1, 6);
        let call_count = self.random.below(self.size.calls_max + 1);
        let mut calls_left = call_count;
        for _ in 0..self.random.below(4 * self.size.pieces_max + 1) {
            if will_break && self.random.chance(1, 8) {
                break;
            }
            match self.random.below(6) {
                0 => self.reasoning(),
                1 | 2 => self.text(),
                3 if calls_left > 0 => {
                    calls_left -= 1;
                    self.begin_call();
                }
                _ => self.write_arguments(),
            }
        }
        if will_break {
            self.break_off();
        } else {
            self.run_tools();
            let (decision, reason, finish) = match is_last {
                true => (Decision::Stop, Reason::Stop, FinishReason::Stop),
                false => (Decision::Continue, Reason::ToolCalls, FinishReason::ToolCalls),
            };
            self.end_step(decision, reason, Some(finish));
        }
    }

    fn reasoning(&mut self) {
        let (delta, offset) = (self.words(), self.reasoning_bytes);
        self.reasoning_bytes += delta.len() as u64;
        self.seen_step().reasoning.push_str(&delta);
        self.partial(Partial::ReasoningDelta { delta, offset });
    }

    fn text(&mut self) {
        let (delta, offset) = (self.words(), self.text_bytes);
        self.text_bytes += delta.len() as u64;
        self.seen_step().text.push_str(&delta);
        self.partial(Partial::TextDelta {
            delta,
            offset,
            accumulated_text: None,
            accumulated_truncated: false,
        });
    }

    fn begin_call(&mut self) {
        self.call_count += 1;
        let id: Arc<str> = format!("call_{}\"", self.call_count).into();
        let name: Arc<str> = ["search", "run_command"][self.random.below(2) as usize].into();
        let text = match self.random.below(4) {
            0 => "{}".to_owned(),
            1 => "{\"pattern\": 7".to_owned(), // Cut off.
            _ => json!({"pattern": self.words(), "deep": [1, {"a": null}]}).to_string(),
        };
        self.calls.push(RandomCall {
            id: Arc::clone(&id),
            name: Arc::clone(&name),
            arguments: None,
            text,
            sent_bytes: 0,
            output: Vec::new(),
            output_seq: 0,
        });
        let call = SeenCall { id: id.to_string(), name: name.to_string(), ..SeenCall::default() };
        self.seen_step().calls.push(call);
        self.partial(Partial::ToolCallStarted { tool_call_id: id, tool_name: name });
    }

    /// Writes one more piece of some call's arguments, or their end.
    fn write_arguments(&mut self) {
        let open: Vec<usize> =
            (0..self.calls.len()).filter(|at| self.calls[*at].arguments.is_none()).collect();
        // Most calls are written one after the other.
        let at = match (open.first(), open.last()) {
            (Some(first), _) if self.random.chance(3, 4) => *first,
            (_, Some(last)) => *last,
            _ => return,
        };
        let call = &self.calls[at];
        let rest = call.text[call.sent_bytes..].to_owned();
        if rest.is_empty() || self.random.chance(1, self.size.pieces_max) {
            return self.end_arguments(at);
        }
        let wanted = 1 + self.random.below(rest.len() as u64) as usize;
        let delta = rest[..rest.ceil_char_boundary(wanted)].to_owned();
        self.emit_arguments(at, delta);
    }

    fn emit_arguments(&mut self, at: usize, delta: String) {
        let call = &mut self.calls[at];
        let offset = call.sent_bytes as u64;
        call.sent_bytes += delta.len();
        let tool_call_id = Arc::clone(&call.id);
        self.partial(Partial::ToolCallArgsDelta { tool_call_id, delta, offset });
    }

    fn end_arguments(&mut self, at: usize) {
        let rest = self.calls[at].text[self.calls[at].sent_bytes..].to_owned();
        let (is_silent, is_cut) = (self.calls[at].sent_bytes == 0, self.random.chance(1, 4));
        // A provider may send them in one piece. Then no delta comes.
        let is_skipped = is_silent && self.random.chance(1, 2);
        if !rest.is_empty() && !is_skipped {
            self.emit_arguments(at, rest);
        }
        let call = &mut self.calls[at];
        let value: Option<Value> = serde_json::from_str(&call.text).ok();
        let arguments = match value {
            Some(_) if is_cut && call.sent_bytes > 0 => Arguments::Cut(call.text[..1].to_owned()),
            Some(value) => Arguments::Valid(value),
            None => Arguments::Invalid {
                text: call.text.clone(),
                text_truncated: false,
                problem: "it ends too early".to_owned(),
            },
        };
        call.arguments = Some(arguments.clone());
        let (tool_call_id, tool_name) = (Arc::clone(&call.id), Arc::clone(&call.name));
        let (id, seen) = (call.id.to_string(), super::check::arguments(&call.text));
        self.seen_call(&id).arguments = seen;
        self.last(Final::ToolCallArgsCompleted { tool_call_id, tool_name, arguments });
    }

    /// Finishes what the model has begun, and runs the tools side by side.
    fn run_tools(&mut self) {
        for at in 0..self.calls.len() {
            if self.calls[at].arguments.is_none() {
                self.end_arguments(at);
            }
        }
        while !self.calls.is_empty() {
            let at = self.random.below(self.calls.len() as u64) as usize;
            let is_invalid = matches!(self.calls[at].arguments, Some(Arguments::Invalid { .. }));
            if is_invalid || self.random.chance(1, self.size.pieces_max) {
                let outcomes =
                    [Outcome::Completed, Outcome::Completed, Outcome::Failed, Outcome::TimedOut];
                let chosen = outcomes[self.random.below(4) as usize];
                self.end_call(at, if is_invalid { Outcome::Failed } else { chosen });
                continue;
            }
            self.put_out(at);
        }
    }

    fn put_out(&mut self, at: usize) {
        let tool_call_id = Arc::clone(&self.calls[at].id);
        if self.random.chance(1, 6) {
            let message = Some(self.words());
            let progress = PartProgress { progress: 0.5, message, ..PartProgress::default() };
            return self.partial(Partial::ToolProgress { tool_call_id, progress });
        }
        let mut bytes = self.words().into_bytes();
        if self.random.chance(1, 3) {
            // Cuts a character, or writes an invalid byte. The next piece may have the rest.
            bytes.extend_from_slice(
                [&b"\xf0\x9f"[..], b"\x98\x80", b"\xff"][self.random.below(3) as usize],
            );
        }
        let call = &mut self.calls[at];
        call.output_seq += 1;
        let offset = call.output.len() as u64;
        call.output.extend_from_slice(&bytes);
        let output_seq = call.output_seq;
        let data = String::from_utf8(bytes)
            .map_or_else(|error| Data::Bytes(error.into_bytes()), Data::Text);
        self.partial(Partial::ToolOutputChunk {
            tool_call_id,
            execution: None,
            output_seq,
            offset,
            kind: Kind::Output,
            data,
            more: false,
        });
    }

    fn end_call(&mut self, at: usize, outcome: Outcome) {
        let is_told_less = self.random.chance(1, 4);
        let RandomCall { id, name, arguments, output, .. } = self.calls.remove(at);
        let whole = String::from_utf8_lossy(&output).into_owned();
        let told = match is_told_less {
            true => whole[..whole.floor_char_boundary(whole.len() / 2)].to_owned(),
            false => whole.clone(),
        };
        let error = (outcome == Outcome::Failed).then(|| "exit code 3".to_owned());
        let result = match outcome {
            Outcome::Completed => Ok(told.clone()),
            Outcome::Failed => Err("exit code 3".to_owned()),
            Outcome::Cancelled => Err("it was cancelled".to_owned()),
            Outcome::TimedOut => Err("it took too long".to_owned()),
        };
        let seen = self.seen_call(&id);
        (seen.pieces, seen.result) = (whole.clone(), Some(result));
        let execution = Box::new(ToolExecution {
            tool_call_id: id.to_string(),
            name: name.to_string(),
            execution: None,
            arguments: arguments.unwrap_or_else(|| Arguments::Valid(json!({}))),
            output_truncated: told.len() < whole.len(),
            output: told,
            output_bytes: output.len() as u64,
            outcome,
            exit: None,
            error,
            started_us: 1,
            duration_us: 2,
        });
        self.last(match outcome {
            Outcome::Completed => Final::ToolCallCompleted { tool_call_id: id, execution },
            Outcome::Cancelled => Final::ToolCallCancelled { tool_call_id: id, execution },
            _ => Final::ToolCallFailed { tool_call_id: id, execution },
        });
    }

    /// Breaks off the step.
    fn break_off(&mut self) {
        self.is_broken = true;
        while let Some(call) = self.calls.first_mut() {
            if call.arguments.is_none() {
                let told = call.text[..call.sent_bytes].to_owned();
                let problem = "it was not finished".to_owned();
                let (id, seen) = (call.id.to_string(), super::check::arguments(&told));
                call.arguments =
                    Some(Arguments::Invalid { text: told, text_truncated: false, problem });
                self.seen_call(&id).arguments = seen;
            }
            self.end_call(0, Outcome::Cancelled);
        }
        self.end_step(Decision::Stop, Reason::Failed, None);
    }

    fn end_step(&mut self, decision: Decision, reason: Reason, finish: Option<FinishReason>) {
        let (number, text) = (self.step, self.seen_step().text.clone());
        let step = StepSummary {
            number,
            text,
            text_truncated: false,
            tool_calls: Vec::<StepCall>::new(),
            tool_calls_truncated: false,
            finish_reason: finish,
            duration_us: 5,
        };
        let outcome = Continuation { decision, reason };
        let usage = Some(Usage { input_tokens: 3, output_tokens: 2, ..Usage::default() });
        self.last(Final::StepCompleted { step, outcome, usage });
    }

    fn seen_step(&mut self) -> &mut SeenStep {
        self.seen.steps.last_mut().expect("a step has begun")
    }

    fn seen_call(&mut self, id: &str) -> &mut SeenCall {
        let mut calls = self.seen_step().calls.iter_mut();
        calls.find(|call| call.id == id).expect("the call has begun")
    }

    /// Returns some words, with everything that needs escaping; never empty.
    fn words(&mut self) -> String {
        const WORDS: [&str; 9] = [
            "plain ",
            "\"quoted\"",
            "\\",
            "\n\n",
            "data: [DONE]\n",
            "\r\n",
            "ä€😀",
            "\u{2028}",
            "{",
        ];
        let count = self.random.between(1, 5);
        (0..count).map(|_| WORDS[self.random.below(WORDS.len() as u64) as usize]).collect()
    }

    fn partial(&mut self, partial: Partial) {
        self.part(Body::Partial(partial));
    }

    fn last(&mut self, last: Final) {
        self.part(Body::Final(last));
    }

    fn part(&mut self, body: Body) {
        let seq = self.parts.len() as u64 + 1;
        let (agent_id, step_number) = ("agent-1".into(), self.step);
        let timestamp_us = 1_700_000_000_000_000 + seq;
        self.parts.push(RunPart { seq, agent_id, step_number, timestamp_us, body });
    }
}

/// Returns a gap in a tool's output, as a part of a run.
pub fn tool_gap(id: &str) -> Partial {
    let reason = GapReason::Lag;
    let gap = Gap { from_seq: 2, to_seq: 4, chunk_count: 3, byte_count: 30, reason };
    Partial::Gap { tool_call_id: id.into(), gap }
}

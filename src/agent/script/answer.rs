//! One answer in progress: its events and tokens, each of which is written when its time comes.

use super::encode::{AnswerEncoder, TokenKind, refused, status_of};
use super::pieces::split_token;
use super::request::ModelRequest;
use super::{Cut, Finish, Script, ScriptEvent, ScriptedStatus, ScriptedUsage, Speech};
use crate::base::Instant;
use crate::limits::SCRIPT_ANSWER_BYTES_MAX;

/// An answer and its progress.
#[derive(Debug)]
pub(super) struct ScriptedAnswer {
    model_request: ModelRequest,
    /// The index of the turn in the script.
    turn: usize,
    /// The index of the turn's next event.
    place: usize,
    /// The rest of the text of the event before that.
    speech: Option<ScriptPosition>,
    encoder: AnswerEncoder,
    /// True if the first frames were written.
    is_begun: bool,
    /// The time before which nothing is written.
    ready_at: Instant,
    usage: Option<ScriptedUsage>,
    tokens_said: u64,
    has_called: bool,
    /// True if the next frame is cut.
    cuts_frame: bool,
    /// Number of bytes of the body until the cut.
    bytes_left: Option<u64>,
}

#[derive(Debug)]
struct ScriptPosition {
    /// The text of the script, with its variables filled in.
    text: String,
    /// Number of its bytes that were written.
    at: usize,
    speech: Speech,
    kind: TokenKind,
    repeats_left: u64,
}

/// The result of a step.
#[derive(Debug, PartialEq)]
pub(super) enum AnswerStep {
    /// More follows, now or later.
    On,
    /// Nothing follows, and the connection stays open.
    Hang,
    /// The stream ends. Its body ends properly if `is_whole`.
    End { is_whole: bool },
    /// The answer is this document instead of a stream. It is cut off at `cut_at`, if set.
    Document { status: ScriptedStatus, body: Vec<u8>, cut_at: Option<usize> },
}

impl ScriptedAnswer {
    pub fn new(
        script: &Script,
        turn: usize,
        mut model_request: ModelRequest,
        (now, wall_us): (Instant, u64),
    ) -> ScriptedAnswer {
        model_request.stream &= !script.plain;
        let mut encoder = AnswerEncoder::new(
            model_request.wire,
            &model_request.model,
            model_request.request,
            wall_us / 1_000_000,
        );
        encoder.include_usage(model_request.includes_usage);
        if !model_request.stream {
            encoder.keep_texts();
        }
        ScriptedAnswer {
            turn,
            place: 0,
            speech: None,
            encoder,
            is_begun: false,
            ready_at: now,
            usage: None,
            tokens_said: 0,
            has_called: false,
            cuts_frame: false,
            bytes_left: script.turns[turn].cut_after_bytes,
            model_request,
        }
    }

    /// Returns the time at which more can be written.
    pub fn ready_at(&self) -> Instant {
        self.ready_at
    }

    pub fn is_stream(&self) -> bool {
        self.model_request.stream
    }

    /// Writes the next piece, whose time has come, to the body in `out`.
    pub fn step(&mut self, script: &Script, wall_us: u64, out: &mut Vec<u8>) -> AnswerStep {
        let from = out.len();
        let step = self.next(script, wall_us, out);
        if self.encoder.kept_bytes() > SCRIPT_ANSWER_BYTES_MAX {
            return AnswerStep::End { is_whole: false };
        }
        if !self.model_request.stream {
            out.truncate(from); // The document is written at the end.
            return step;
        }
        if self.cuts_frame && out.len() > from {
            out.truncate(from + (out.len() - from).div_ceil(2));
            return AnswerStep::End { is_whole: false };
        }
        if let Some(left) = &mut self.bytes_left {
            let new = (out.len() - from) as u64;
            if new >= *left {
                out.truncate(from + *left as usize);
                return AnswerStep::End { is_whole: false };
            }
            *left -= new;
        }
        step
    }

    fn next(&mut self, script: &Script, wall_us: u64, out: &mut Vec<u8>) -> AnswerStep {
        if let Some(mut saying) = self.speech.take() {
            if self.say(&mut saying, wall_us, out) {
                self.speech = Some(saying);
            }
            return AnswerStep::On;
        }
        let event = script.turns[self.turn].events.get(self.place).cloned();
        self.place += 1;
        match event {
            Some(event) => self.event(event, wall_us, out),
            None => {
                let finish = if self.has_called { Finish::ToolCalls } else { Finish::Stop };
                self.finish(finish, out)
            }
        }
    }

    fn event(&mut self, event: ScriptEvent, wall_us: u64, out: &mut Vec<u8>) -> AnswerStep {
        if let ScriptEvent::Pause(pause) = event {
            self.ready_at += pause;
            return AnswerStep::On;
        }
        if let ScriptEvent::Status(status) = event {
            return self.status(status);
        }
        if !matches!(
            event,
            ScriptEvent::Usage(_) | ScriptEvent::Cut(_) | ScriptEvent::Hang | ScriptEvent::Raw(_)
        ) {
            self.begin(out);
        }
        match event {
            ScriptEvent::Text(speech) => self.speak(speech, TokenKind::Text, wall_us),
            ScriptEvent::Reasoning(speech) => self.speak(speech, TokenKind::Reasoning, wall_us),
            ScriptEvent::Refusal(speech) => self.speak(speech, TokenKind::Refusal, wall_us),
            ScriptEvent::Call { id, name, arguments } => {
                self.encoder.call(id.as_deref(), &name, out);
                self.has_called = true;
                self.speak(arguments, TokenKind::Call, wall_us);
            }
            ScriptEvent::Ping => self.encoder.ping(out),
            ScriptEvent::Usage(usage) => self.usage = Some(usage),
            ScriptEvent::Finish(finish) => return self.finish(finish, out),
            ScriptEvent::Error { kind, message } => return self.error(&kind, &message, out),
            ScriptEvent::Raw(bytes) => out.extend_from_slice(&bytes),
            ScriptEvent::Cut(Cut::Connection) => return AnswerStep::End { is_whole: false },
            ScriptEvent::Cut(Cut::Answer) => return AnswerStep::End { is_whole: true },
            ScriptEvent::Cut(Cut::Frame) => self.cuts_frame = true,
            ScriptEvent::Hang => return AnswerStep::Hang,
            ScriptEvent::Pause(_) | ScriptEvent::Status(_) => unreachable!("they were seen to"),
        }
        AnswerStep::On
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.is_begun, true) {
            let usage = self.scripted_usage();
            self.encoder.begin(usage, out);
        }
    }

    fn speak(&mut self, speech: Speech, kind: TokenKind, wall_us: u64) {
        let text = self.model_request.fill(&speech.text, wall_us);
        let repeats_left = speech.repeat;
        self.speech = Some(ScriptPosition { text, at: 0, speech, kind, repeats_left });
    }

    /// Writes one token. True if another one follows.
    fn say(&mut self, saying: &mut ScriptPosition, wall_us: u64, out: &mut Vec<u8>) -> bool {
        if saying.repeats_left == 0 {
            if saying.kind == TokenKind::Call {
                self.encoder.end_call(out);
            }
            return false;
        }
        let (token, behind) = split_token(&saying.text[saying.at..], saying.speech.tokens);
        if !token.is_empty() {
            match saying.kind {
                TokenKind::Call => self.encoder.add(token, out),
                kind => self.encoder.token(kind, token, out),
            }
            self.tokens_said += 1;
            self.ready_at += saying.speech.pace;
        }
        saying.at = saying.text.len() - behind.len();
        if behind.is_empty() {
            saying.repeats_left -= 1;
            saying.at = 0;
            if saying.repeats_left > 0 {
                saying.text = self.model_request.fill(&saying.speech.text, wall_us);
            }
        }
        let goes_on = saying.repeats_left > 0 && !saying.text.is_empty();
        if !goes_on && saying.kind == TokenKind::Call {
            self.encoder.end_call(out);
        }
        goes_on
    }

    fn scripted_usage(&self) -> ScriptedUsage {
        // A token has about four bytes.
        let counted = || ScriptedUsage {
            input_tokens: self.model_request.body_bytes / 4,
            output_tokens: self.tokens_said,
            ..Default::default()
        };
        self.usage.unwrap_or_else(counted)
    }

    fn finish(&mut self, finish: Finish, out: &mut Vec<u8>) -> AnswerStep {
        self.begin(out);
        let usage = self.scripted_usage();
        if self.model_request.stream {
            self.encoder.finish(finish, usage, out);
            return AnswerStep::End { is_whole: true };
        }
        let body = self.encoder.whole(finish, usage).to_string().into_bytes();
        let cut_at = if self.cuts_frame { Some(body.len() / 2) } else { None };
        let cut_at = cut_at.or_else(|| self.cut_of(&body));
        let (kind, message) = (None, String::new());
        let status = ScriptedStatus { status: 200, headers: Vec::new(), kind, message, body: None };
        AnswerStep::Document { status, body, cut_at }
    }

    fn error(&mut self, kind: &str, message: &str, out: &mut Vec<u8>) -> AnswerStep {
        if self.model_request.stream {
            self.encoder.error(kind, message, out);
            return AnswerStep::End { is_whole: true };
        }
        let (status, headers) = (status_of(kind), Vec::new());
        let (kind, message) = (Some(kind.to_owned()), message.to_owned());
        self.status(ScriptedStatus { status, headers, kind, message, body: None })
    }

    fn status(&self, status: ScriptedStatus) -> AnswerStep {
        let spelled = || {
            let (kind, message) = (status.kind.as_deref(), &status.message);
            refused(self.model_request.wire, status.status, kind, message).to_string()
        };
        let body = status.body.clone().unwrap_or_else(spelled).into_bytes();
        let cut_at = self.cut_of(&body);
        AnswerStep::Document { status, body, cut_at }
    }

    fn cut_of(&self, body: &[u8]) -> Option<usize> {
        let left = self.bytes_left.and_then(|left| usize::try_from(left).ok());
        left.filter(|left| *left < body.len())
    }
}

//! One answer in progress: its events and tokens, each of which is written when its time comes.

use super::asked::Asked;
use super::pieces::split_token;
use super::spell::{Kind, Speller, refused, status_of};
use super::{Cut, Event, Finish, Script, Speech, StatusSaid, UsageSaid};
use crate::base::Instant;
use crate::limits::SCRIPT_ANSWER_BYTES_MAX;

/// An answer and its progress.
#[derive(Debug)]
pub(super) struct Answer {
    asked: Asked,
    /// The index of the turn in the script.
    turn: usize,
    /// The index of the turn's next event.
    place: usize,
    /// The rest of the text of the event before that.
    speech: Option<Saying>,
    speller: Speller,
    /// True if the first frames were written.
    is_begun: bool,
    /// The time before which nothing is written.
    ready_at: Instant,
    usage: Option<UsageSaid>,
    tokens_said: u64,
    has_called: bool,
    /// True if the next frame is cut.
    cuts_frame: bool,
    /// Number of bytes of the body until the cut.
    bytes_left: Option<u64>,
}

#[derive(Debug)]
struct Saying {
    /// The text of the script, with its variables filled in.
    text: String,
    /// Number of its bytes that were written.
    at: usize,
    speech: Speech,
    kind: Kind,
    repeats_left: u64,
}

/// The result of a step.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// More follows, now or later.
    On,
    /// Nothing follows, and the connection stays open.
    Hang,
    /// The stream ends. Its body ends properly if `is_whole`.
    End { is_whole: bool },
    /// The answer is this document instead of a stream. It is cut off at `cut_at`, if set.
    Document { status: StatusSaid, body: Vec<u8>, cut_at: Option<usize> },
}

impl Answer {
    pub fn new(
        script: &Script,
        turn: usize,
        mut asked: Asked,
        (now, wall_us): (Instant, u64),
    ) -> Answer {
        asked.stream &= !script.plain;
        let mut speller =
            Speller::new(asked.wire, &asked.model, asked.request, wall_us / 1_000_000);
        speller.include_usage(asked.includes_usage);
        if !asked.stream {
            speller.keep_texts();
        }
        Answer {
            turn,
            place: 0,
            speech: None,
            speller,
            is_begun: false,
            ready_at: now,
            usage: None,
            tokens_said: 0,
            has_called: false,
            cuts_frame: false,
            bytes_left: script.turns[turn].cut_after_bytes,
            asked,
        }
    }

    /// Returns the time at which more can be written.
    pub fn ready_at(&self) -> Instant {
        self.ready_at
    }

    pub fn is_stream(&self) -> bool {
        self.asked.stream
    }

    /// Writes the next piece, whose time has come, to the body in `out`.
    pub fn step(&mut self, script: &Script, wall_us: u64, out: &mut Vec<u8>) -> Step {
        let from = out.len();
        let step = self.next(script, wall_us, out);
        if self.speller.kept_bytes() > SCRIPT_ANSWER_BYTES_MAX {
            return Step::End { is_whole: false };
        }
        if !self.asked.stream {
            out.truncate(from); // The document is written at the end.
            return step;
        }
        if self.cuts_frame && out.len() > from {
            out.truncate(from + (out.len() - from).div_ceil(2));
            return Step::End { is_whole: false };
        }
        if let Some(left) = &mut self.bytes_left {
            let new = (out.len() - from) as u64;
            if new >= *left {
                out.truncate(from + *left as usize);
                return Step::End { is_whole: false };
            }
            *left -= new;
        }
        step
    }

    fn next(&mut self, script: &Script, wall_us: u64, out: &mut Vec<u8>) -> Step {
        if let Some(mut saying) = self.speech.take() {
            if self.say(&mut saying, wall_us, out) {
                self.speech = Some(saying);
            }
            return Step::On;
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

    fn event(&mut self, event: Event, wall_us: u64, out: &mut Vec<u8>) -> Step {
        if let Event::Pause(pause) = event {
            self.ready_at += pause;
            return Step::On;
        }
        if let Event::Status(status) = event {
            return self.status(status);
        }
        if !matches!(event, Event::Usage(_) | Event::Cut(_) | Event::Hang | Event::Raw(_)) {
            self.begin(out);
        }
        match event {
            Event::Text(speech) => self.speak(speech, Kind::Text, wall_us),
            Event::Reasoning(speech) => self.speak(speech, Kind::Reasoning, wall_us),
            Event::Refusal(speech) => self.speak(speech, Kind::Refusal, wall_us),
            Event::Call { id, name, arguments } => {
                self.speller.call(id.as_deref(), &name, out);
                self.has_called = true;
                self.speak(arguments, Kind::Call, wall_us);
            }
            Event::Ping => self.speller.ping(out),
            Event::Usage(usage) => self.usage = Some(usage),
            Event::Finish(finish) => return self.finish(finish, out),
            Event::Error { kind, message } => return self.error(&kind, &message, out),
            Event::Raw(bytes) => out.extend_from_slice(&bytes),
            Event::Cut(Cut::Connection) => return Step::End { is_whole: false },
            Event::Cut(Cut::Answer) => return Step::End { is_whole: true },
            Event::Cut(Cut::Frame) => self.cuts_frame = true,
            Event::Hang => return Step::Hang,
            Event::Pause(_) | Event::Status(_) => unreachable!("they were seen to"),
        }
        Step::On
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.is_begun, true) {
            let usage = self.usage_said();
            self.speller.begin(usage, out);
        }
    }

    fn speak(&mut self, speech: Speech, kind: Kind, wall_us: u64) {
        let text = self.asked.fill(&speech.text, wall_us);
        let repeats_left = speech.repeat;
        self.speech = Some(Saying { text, at: 0, speech, kind, repeats_left });
    }

    /// Writes one token. True if another one follows.
    fn say(&mut self, saying: &mut Saying, wall_us: u64, out: &mut Vec<u8>) -> bool {
        if saying.repeats_left == 0 {
            if saying.kind == Kind::Call {
                self.speller.end_call(out);
            }
            return false;
        }
        let (token, behind) = split_token(&saying.text[saying.at..], saying.speech.tokens);
        if !token.is_empty() {
            match saying.kind {
                Kind::Call => self.speller.add(token, out),
                kind => self.speller.token(kind, token, out),
            }
            self.tokens_said += 1;
            self.ready_at += saying.speech.pace;
        }
        saying.at = saying.text.len() - behind.len();
        if behind.is_empty() {
            saying.repeats_left -= 1;
            saying.at = 0;
            if saying.repeats_left > 0 {
                saying.text = self.asked.fill(&saying.speech.text, wall_us);
            }
        }
        let goes_on = saying.repeats_left > 0 && !saying.text.is_empty();
        if !goes_on && saying.kind == Kind::Call {
            self.speller.end_call(out);
        }
        goes_on
    }

    fn usage_said(&self) -> UsageSaid {
        // A token has about four bytes.
        let counted = || UsageSaid {
            input_tokens: self.asked.body_bytes / 4,
            output_tokens: self.tokens_said,
            ..Default::default()
        };
        self.usage.unwrap_or_else(counted)
    }

    fn finish(&mut self, finish: Finish, out: &mut Vec<u8>) -> Step {
        self.begin(out);
        let usage = self.usage_said();
        if self.asked.stream {
            self.speller.finish(finish, usage, out);
            return Step::End { is_whole: true };
        }
        let body = self.speller.whole(finish, usage).to_string().into_bytes();
        let cut_at = if self.cuts_frame { Some(body.len() / 2) } else { None };
        let cut_at = cut_at.or_else(|| self.cut_of(&body));
        let (kind, message) = (None, String::new());
        let status = StatusSaid { status: 200, headers: Vec::new(), kind, message, body: None };
        Step::Document { status, body, cut_at }
    }

    fn error(&mut self, kind: &str, message: &str, out: &mut Vec<u8>) -> Step {
        if self.asked.stream {
            self.speller.error(kind, message, out);
            return Step::End { is_whole: true };
        }
        let (status, headers) = (status_of(kind), Vec::new());
        let (kind, message) = (Some(kind.to_owned()), message.to_owned());
        self.status(StatusSaid { status, headers, kind, message, body: None })
    }

    fn status(&self, status: StatusSaid) -> Step {
        let spelled = || {
            let (kind, message) = (status.kind.as_deref(), &status.message);
            refused(self.asked.wire, status.status, kind, message).to_string()
        };
        let body = status.body.clone().unwrap_or_else(spelled).into_bytes();
        let cut_at = self.cut_of(&body);
        Step::Document { status, body, cut_at }
    }

    fn cut_of(&self, body: &[u8]) -> Option<usize> {
        let left = self.bytes_left.and_then(|left| usize::try_from(left).ok());
        left.filter(|left| *left < body.len())
    }
}

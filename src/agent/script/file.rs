//! Reads scripts from files and checks them. An error names the place of the problem.

use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value};

use super::{
    Cut, Finish, Script, ScriptEvent, ScriptedStatus, ScriptedUsage, Speech, Tokens, Turn, When,
};
use crate::agent::model::Wire;
use crate::limits::{SCRIPT_PAUSE_MAX, SCRIPT_TURNS_MAX};
use crate::wire;

/// The error for an invalid script. The text names the place, counted from 1:
/// `turns[2].events[1].pace`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptError(String);

impl fmt::Display for ScriptError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for ScriptError {}

/// The result of checking one field. The error does not contain the field's name.
type Checked<T> = Result<T, String>;

#[derive(Clone, Copy)]
struct Pace {
    tokens: Tokens,
    pace: Duration,
}

impl Script {
    /// Reads a script from TOML.
    ///
    /// # Errors
    /// [`ScriptError`] names the place.
    pub fn from_toml(text: &str) -> Result<Script, ScriptError> {
        let value = wire::toml::parse(text).map_err(ScriptError)?;
        Script::from_value(value)
    }

    /// Reads a script from JSON.
    ///
    /// # Errors
    /// [`ScriptError`] names the place.
    pub fn from_json(text: &str) -> Result<Script, ScriptError> {
        let value = serde_json::from_str(text).map_err(|error| ScriptError(error.to_string()))?;
        Script::from_value(value)
    }

    fn from_value(value: Value) -> Result<Script, ScriptError> {
        let mut fields = TableFields::of(value).map_err(ScriptError)?;
        script(&mut fields).and_then(|script| fields.end(script)).map_err(ScriptError)
    }
}

fn script(fields: &mut TableFields) -> Checked<Script> {
    let models = fields.take("models", |value| items(value, text))?.unwrap_or_default();
    let key = fields.take("key", text)?;
    let plain = fields.take("plain", flag)?.unwrap_or(false);
    let pace = pace(fields, Pace { tokens: Tokens::Words, pace: Duration::ZERO })?;
    let turns = fields.take("turns", |value| items(value, |value| turn(value, pace)))?;
    let turns = turns.filter(|turns| !turns.is_empty()).ok_or("turns: at least one is needed")?;
    if turns.len() > SCRIPT_TURNS_MAX {
        return Err(format!("turns: at most {SCRIPT_TURNS_MAX} are allowed"));
    }
    Ok(Script { models, key, plain, turns })
}

fn turn(value: Value, pace_of_script: Pace) -> Checked<Turn> {
    let mut fields = TableFields::of(value)?;
    let when = fields.take("when", when)?;
    let cut_after_bytes = fields.take("cut_after_bytes", number)?;
    let pace = pace(&mut fields, pace_of_script)?;
    let events = fields.take("events", |value| items(value, |value| event(value, pace)))?;
    let events = events.ok_or("events: is missing")?;
    let mut is_begun = false;
    for (at, event) in events.iter().enumerate() {
        if matches!(event, ScriptEvent::Status(_)) && is_begun {
            return Err(format!(
                "events[{}]: status: must come before all other events except pauses",
                at + 1
            ));
        }
        is_begun |= !matches!(event, ScriptEvent::Pause(_));
    }
    fields.end(Turn { when, events, cut_after_bytes })
}

fn when(value: Value) -> Checked<When> {
    let mut fields = TableFields::of(value)?;
    let when = When {
        step: fields.take("step", number)?,
        tool_results: fields.take("tool_results", number)?,
        user: fields.take("user", text)?,
        system: fields.take("system", text)?,
        result: fields.take("result", text)?,
        model: fields.take("model", text)?,
        wire: fields.take("wire", |value| one_of(value, WIRES))?,
        attempt: fields.take("attempt", number)?,
        request: fields.take("request", number)?,
        stream: fields.take("stream", flag)?,
    };
    fields.end(when)
}

const WIRES: &[(&str, Wire)] = &[
    ("chat", Wire::ChatCompletions),
    ("responses", Wire::Responses),
    ("messages", Wire::Messages),
];

/// Number of characters in a token of a call's arguments, unless the script sets another size.
const ARGUMENTS_TOKEN_CHARACTERS: usize = 8;

const EVENTS: &str = "text, reasoning, refusal, call, pause, ping, usage, finish, error, status, \
                      raw, raw_base64, cut, hang";

fn event(value: Value, pace: Pace) -> Checked<ScriptEvent> {
    let mut fields = TableFields::of(value)?;
    let event = one_event(&mut fields, pace)?;
    let event = event.ok_or_else(|| format!("must be one of {EVENTS}"))?;
    fields.end(event)
}

fn one_event(fields: &mut TableFields, pace: Pace) -> Checked<Option<ScriptEvent>> {
    if let Some(said) = fields.take("text", text)? {
        return Ok(Some(ScriptEvent::Text(speech(fields, said, pace)?)));
    }
    if let Some(said) = fields.take("reasoning", text)? {
        return Ok(Some(ScriptEvent::Reasoning(speech(fields, said, pace)?)));
    }
    if let Some(said) = fields.take("refusal", text)? {
        return Ok(Some(ScriptEvent::Refusal(speech(fields, said, pace)?)));
    }
    if let Some(name) = fields.take("call", text)? {
        return call(fields, name, pace).map(Some);
    }
    if let Some(pause) = fields.take("pause", duration)? {
        return Ok(Some(ScriptEvent::Pause(pause)));
    }
    if let Some(true) = fields.take("ping", flag)? {
        return Ok(Some(ScriptEvent::Ping));
    }
    if let Some(usage) = fields.take("usage", usage)? {
        return Ok(Some(ScriptEvent::Usage(usage)));
    }
    if let Some(finish) = fields.take("finish", |value| one_of(value, FINISHES))? {
        return Ok(Some(ScriptEvent::Finish(finish)));
    }
    if let Some(kind) = fields.take("error", text)? {
        let message = fields.take("message", text)?.unwrap_or_else(|| kind.clone());
        return Ok(Some(ScriptEvent::Error { kind, message }));
    }
    if let Some(code) = fields.take("status", number)? {
        return status(fields, code).map(Some);
    }
    if let Some(raw) = fields.take("raw", text)? {
        return Ok(Some(ScriptEvent::Raw(raw.into_bytes())));
    }
    if let Some(raw) = fields.take("raw_base64", base64)? {
        return Ok(Some(ScriptEvent::Raw(raw)));
    }
    if let Some(cut) = fields.take("cut", |value| one_of(value, CUTS))? {
        return Ok(Some(ScriptEvent::Cut(cut)));
    }
    let hangs = fields.take("hang", flag)?;
    Ok(hangs.filter(|hangs| *hangs).map(|_| ScriptEvent::Hang))
}

const FINISHES: &[(&str, Finish)] = &[
    ("stop", Finish::Stop),
    ("tool_calls", Finish::ToolCalls),
    ("length", Finish::Length),
    ("content_filter", Finish::ContentFilter),
    ("refusal", Finish::Refusal),
    ("pause", Finish::Pause),
];
const CUTS: &[(&str, Cut)] =
    &[("connection", Cut::Connection), ("frame", Cut::Frame), ("answer", Cut::Answer)];

fn speech(fields: &mut TableFields, text: String, pace_of_turn: Pace) -> Checked<Speech> {
    let Pace { tokens, pace } = pace(fields, pace_of_turn)?;
    let repeat = fields.take("repeat", number)?.unwrap_or(1);
    Ok(Speech { text, tokens, pace, repeat })
}

fn call(fields: &mut TableFields, name: String, pace: Pace) -> Checked<ScriptEvent> {
    let id = fields.take("id", text)?;
    let spelled = fields.take("arguments_text", text)?;
    let arguments = fields.take("arguments", |value| match value {
        Value::Object(_) => Ok(value.to_string()),
        _ => Err("must be a table; `arguments_text` can be any text".to_owned()),
    })?;
    if spelled.is_some() && arguments.is_some() {
        return Err("`arguments` and `arguments_text` cannot be given together".to_owned());
    }
    let arguments = spelled.or(arguments).unwrap_or_else(|| "{}".to_owned());
    // JSON has few words, so arguments are cut into characters.
    let tokens = Tokens::Characters(ARGUMENTS_TOKEN_CHARACTERS);
    let arguments = speech(fields, arguments, Pace { tokens, ..pace })?;
    Ok(ScriptEvent::Call { id, name, arguments })
}

fn usage(value: Value) -> Checked<ScriptedUsage> {
    let mut fields = TableFields::of(value)?;
    let usage = ScriptedUsage {
        input_tokens: fields.take("input_tokens", number)?.unwrap_or(0),
        output_tokens: fields.take("output_tokens", number)?.unwrap_or(0),
        reasoning_tokens: fields.take("reasoning_tokens", number)?,
        cached_input_tokens: fields.take("cached_input_tokens", number)?,
    };
    fields.end(usage)
}

fn status(fields: &mut TableFields, code: u64) -> Checked<ScriptEvent> {
    let status = u16::try_from(code).ok().filter(|code| (200..1_000).contains(code));
    let status = status.ok_or("status: must be from 200 to 999")?;
    let mut headers = fields.take("headers", headers)?.unwrap_or_default();
    if let Some(seconds) = fields.take("retry_after", text)? {
        headers.push(("retry-after".to_owned(), seconds));
    }
    if headers.iter().any(|(_, value)| value.chars().any(char::is_control)) {
        return Err("headers: a value has a control character".to_owned());
    }
    let kind = fields.take("type", text)?;
    let message = fields.take("message", text)?;
    let message = message.unwrap_or_else(|| format!("the script says {status}"));
    let body = fields.take("body", text)?;
    Ok(ScriptEvent::Status(ScriptedStatus { status, headers, kind, message, body }))
}

/// Headers that the connection sets itself, because they say where the body ends.
const OUR_HEADERS: [&str; 4] = ["content-length", "transfer-encoding", "connection", "date"];

fn headers(value: Value) -> Checked<Vec<(String, String)>> {
    let Value::Object(members) = value else { return Err("must be a table".to_owned()) };
    let header = |(name, value): (String, Value)| {
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let is_name = !name.is_empty() && name.bytes().all(is_token);
        if !is_name || OUR_HEADERS.iter().any(|ours| name.eq_ignore_ascii_case(ours)) {
            return Err(format!("{name:?} is not a header that a script can set"));
        }
        Ok((name.clone(), text(value).map_err(|problem| format!("{name}: {problem}"))?))
    };
    members.into_iter().map(header).collect()
}

fn pace(fields: &mut TableFields, or: Pace) -> Checked<Pace> {
    let tokens = fields.take("tokens", |value| match value {
        Value::Number(_) => match number(value)? {
            0 => Err("must be at least 1".to_owned()),
            characters => Ok(Tokens::Characters(characters.try_into().unwrap_or(usize::MAX))),
        },
        _ => one_of(value, TOKENS),
    })?;
    let pace = fields.take("pace", duration)?;
    Ok(Pace { tokens: tokens.unwrap_or(or.tokens), pace: pace.unwrap_or(or.pace) })
}

const TOKENS: &[(&str, Tokens)] =
    &[("words", Tokens::Words), ("characters", Tokens::Characters(1)), ("whole", Tokens::Whole)];

/// A table whose fields are taken one by one. A field that is left at the end is an error.
struct TableFields(Map<String, Value>);

impl TableFields {
    fn of(value: Value) -> Checked<TableFields> {
        match value {
            Value::Object(members) => Ok(TableFields(members)),
            _ => Err("must be a table".to_owned()),
        }
    }

    fn take<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(Value) -> Checked<T>,
    ) -> Checked<Option<T>> {
        let value = self.0.shift_remove(name).filter(|value| !value.is_null());
        value.map(read).transpose().map_err(|problem| placed(name, &problem))
    }

    fn end<T>(&self, value: T) -> Checked<T> {
        match self.0.keys().next() {
            Some(name) => Err(format!("{:?} is not a field here", shortened(name))),
            None => Ok(value),
        }
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

fn items<T>(value: Value, read: impl Fn(Value) -> Checked<T>) -> Checked<Vec<T>> {
    let Value::Array(values) = value else { return Err("must be a list".to_owned()) };
    let item =
        |(at, value)| read(value).map_err(|problem| placed(&format!("[{}]", at + 1), &problem));
    values.into_iter().enumerate().map(item).collect()
}

/// Puts the place before a problem: `place.inner: problem` if the problem names an inner place
/// already.
fn placed(place: &str, problem: &str) -> String {
    let is_path = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.[]".contains(&byte))
    };
    match problem.split_once(": ") {
        Some((inner, _)) if is_path(inner) && inner.starts_with('[') => format!("{place}{problem}"),
        Some((inner, _)) if is_path(inner) => format!("{place}.{problem}"),
        _ => format!("{place}: {problem}"),
    }
}

fn text(value: Value) -> Checked<String> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err("must be a text".to_owned()),
    }
}

fn flag(value: Value) -> Checked<bool> {
    value.as_bool().ok_or_else(|| "must be true or false".to_owned())
}

fn number(value: Value) -> Checked<u64> {
    value.as_u64().ok_or_else(|| "must be a whole number".to_owned())
}

fn base64(value: Value) -> Checked<Vec<u8>> {
    let text = text(value)?;
    wire::base64::read(&text).ok_or_else(|| "must be base64".to_owned())
}

fn one_of<T: Copy>(value: Value, known: &[(&str, T)]) -> Checked<T> {
    let given = text(value)?;
    let found = known.iter().find(|(name, _)| *name == given);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        format!("must be one of {}", names.join(", "))
    })
}

const UNITS_SECONDS: [(&str, f64); 4] = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0)];

fn duration(value: Value) -> Checked<Duration> {
    const PROBLEM: &str = "must be a text such as 500us, 20ms, 1.5s or 2m";
    let text = text(value)?;
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(PROBLEM)?;
    let (number, unit) = text.split_at(unit_at);
    let number: f64 = number.parse().map_err(|_| PROBLEM)?;
    let unit = UNITS_SECONDS.iter().find(|(name, _)| *name == unit).ok_or(PROBLEM)?;
    let duration = Duration::try_from_secs_f64(number * unit.1).map_err(|_| PROBLEM)?;
    if duration > SCRIPT_PAUSE_MAX {
        return Err(format!("must be at most {} s", SCRIPT_PAUSE_MAX.as_secs()));
    }
    Ok(duration)
}

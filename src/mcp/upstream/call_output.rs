//! The output of one call to another server, as a tool of this server publishes it.
//!
//! Text becomes text, structured content becomes a value of its own, and all else stays a content
//! block. Pieces of the result (the draft SEP-2998) are passed on when they come. The final result
//! repeats them, and only its new part is passed on. If it differs from its pieces, all of it is
//! passed on.

use serde_json::{Map, Value};

use super::exchanges::CallNotification;
use super::shown;
use crate::base::plain;
use crate::limits;
use crate::wire::jsonrpc::ErrorObject;

/// A piece of output to publish.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputPiece {
    /// A text block or a part of one. More of it may follow.
    Text {
        /// The text.
        text: String,
        /// True if more of the text may follow.
        more: bool,
    },
    /// A content block of another type, or a text with annotations.
    Block(Value),
    /// Structured content.
    Structured(Value),
    /// A log message: `level`, `data` and perhaps `logger`.
    Log(Value),
    /// The progress of the call.
    Progress {
        /// The progress so far.
        progress: f64,
        /// The total, if known.
        total: Option<f64>,
        /// A text for people.
        message: Option<String>,
    },
}

/// The outcome of a call's reply.
#[derive(Clone, Debug, PartialEq)]
pub enum CallResult {
    /// The call has succeeded, with this output.
    Completed(Vec<OutputPiece>),
    /// The call has failed for this reason. These pieces have to be published first.
    Failed(Vec<OutputPiece>, String),
    /// The call is a task of the handshake era. Its result has to be requested.
    Task(String),
}

/// One call while it runs.
#[derive(Clone, Debug, Default)]
pub struct CallOutput {
    /// True if the tool has a schema of structured content, which makes such content mandatory.
    owes_structure: bool,
    /// The pieces passed on so far; `None` if they are too many to remember.
    published: Option<Vec<PublishedPiece>>,
    next_seq: u64,
    /// True if the last piece was text that may continue.
    is_open: bool,
}

/// A piece of a result, remembered by its digest.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PublishedPiece {
    Text { length: usize, digest: u64 },
    Block(u64),
}

/// The position in a result's content at which the pieces passed on so far end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Reached {
    block: usize,
    /// Bytes of the text in this block.
    offset: usize,
}

/// Returns the FNV-1a digest. A server that constructs two texts with one digest only harms its own
/// result.
fn digest(before: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(before, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

const NOTHING: u64 = 0xcbf2_9ce4_8422_2325;

impl CallOutput {
    /// Returns a new call of a tool that has a schema of structured content, or has none.
    pub fn new(owes_structure: bool) -> CallOutput {
        CallOutput { owes_structure, published: Some(Vec::new()), next_seq: 0, is_open: false }
    }

    /// Takes a notification that belongs to the call.
    pub fn on_notification(&mut self, note: CallNotification) -> Vec<OutputPiece> {
        match note {
            CallNotification::Progress { progress, total, message } => {
                let message = message.map(|message| shown(&message));
                vec![OutputPiece::Progress { progress, total, message }]
            }
            CallNotification::Log(mut line) => {
                if let Some(Value::String(data)) = line.get_mut("data") {
                    *data = plain::plain_text(data);
                }
                vec![OutputPiece::Log(Value::Object(line))]
            }
            CallNotification::Partial { seq, content } => {
                let seq = seq.unwrap_or(self.next_seq);
                if seq < self.next_seq {
                    return Vec::new(); // It came before.
                }
                self.next_seq = seq.saturating_add(1);
                content.into_iter().filter_map(|block| self.partial(block)).collect()
            }
        }
    }

    fn partial(&mut self, block: Value) -> Option<OutputPiece> {
        if kind_of(&block).is_none() || plain_text(&block) == Some("") {
            return None;
        }
        if let Some(text) = plain_text(&block) {
            let text = text.to_owned();
            let last = self.published.as_mut().and_then(|published| published.last_mut());
            match last {
                Some(PublishedPiece::Text { length, digest: so_far }) => {
                    *length += text.len();
                    *so_far = digest(*so_far, text.as_bytes());
                }
                _ => self.remember(PublishedPiece::Text {
                    length: text.len(),
                    digest: digest(NOTHING, text.as_bytes()),
                }),
            }
            self.is_open = true;
            return Some(OutputPiece::Text { text, more: true });
        }
        self.remember(PublishedPiece::Block(digest(NOTHING, block.to_string().as_bytes())));
        self.is_open = false;
        Some(OutputPiece::Block(block))
    }

    fn remember(&mut self, one: PublishedPiece) {
        match &mut self.published {
            Some(published) if published.len() < limits::UPSTREAM_PARTS_MAX => published.push(one),
            _ => self.published = None,
        }
    }

    /// Takes the reply to the call.
    pub fn answered(&mut self, answer: Result<Value, ErrorObject>) -> CallResult {
        match answer {
            Ok(Value::Object(result)) => self.result(result),
            Ok(_) => CallResult::Failed(Vec::new(), "its result is not an object".to_owned()),
            Err(error) => {
                let text = match error.message.trim() {
                    "" => format!("its server refused the call with code {}", error.code),
                    said => shown(said),
                };
                CallResult::Failed(Vec::new(), text)
            }
        }
    }

    fn result(&mut self, mut result: Map<String, Value>) -> CallResult {
        let fail = |text: String| CallResult::Failed(Vec::new(), text);
        match result.get("resultType").and_then(Value::as_str) {
            None | Some("complete") => {}
            Some("input_required") => return fail(questions_text(&result)),
            Some(other) => {
                return fail(format!(
                    "its result has the type {:?}, which is unknown",
                    shown(other)
                ));
            }
        }
        if let Some(task) = result.get("task") {
            let id = task.get("taskId").and_then(Value::as_str);
            return match id.filter(|id| id.len() <= limits::MCP_ID_BYTES_MAX) {
                Some(id) => CallResult::Task(id.to_owned()),
                None => fail("its task has no id".to_owned()),
            };
        }
        let structured = result.remove("structuredContent").filter(|value| !value.is_null());
        let content = match result.remove("content") {
            Some(Value::Array(content)) => content,
            None if structured.is_some() => Vec::new(),
            _ => return fail("its result has no list of content".to_owned()),
        };
        if content.iter().any(|block| kind_of(block).is_none()) {
            return fail("its result has an invalid content block".to_owned());
        }
        if result.get("isError") == Some(&Value::Bool(true)) {
            return self.failed(content);
        }
        let is_bare = content.is_empty() && self.published.as_ref().is_some_and(Vec::is_empty);
        let mut pieces = self.rest(content);
        if let Some(value) = structured.as_ref().filter(|_| is_bare) {
            // Some clients read only text, so structured content should be there as text too (A35).
            pieces.push(OutputPiece::Text { text: value.to_string(), more: false });
        }
        match structured {
            Some(value) => pieces.push(OutputPiece::Structured(value)),
            None if self.owes_structure => {
                let text = "it promised structured content, but its result has none";
                return CallResult::Failed(pieces, text.to_owned());
            }
            None => {}
        }
        CallResult::Completed(pieces)
    }

    /// Makes a failure of a result with `isError`. Its text is the reason, and its other content is
    /// passed on if no pieces were. A text that is too long for a reason is passed on too, and the
    /// reason is its beginning.
    fn failed(&mut self, content: Vec<Value>) -> CallResult {
        const REASON_BYTES_MAX: usize = limits::ERROR_TEXT_BYTES_MAX;
        let texts: Vec<&str> = content.iter().filter_map(plain_text).collect();
        let text = texts.join("\n");
        if text.trim().is_empty() {
            let text = "the tool failed without a reason".to_owned();
            return CallResult::Failed(self.rest(content), text);
        }
        if text.len() <= REASON_BYTES_MAX {
            let others = content.into_iter().filter(|block| plain_text(block).is_none());
            let pieces = match self.published.as_ref().is_some_and(Vec::is_empty) {
                true => others.map(OutputPiece::Block).collect(),
                false => Vec::new(), // Pieces were passed on already.
            };
            return CallResult::Failed(pieces, shown(&text));
        }
        let mut end = REASON_BYTES_MAX - '…'.len_utf8();
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let reason = format!("{}…", shown(&text[..end]));
        CallResult::Failed(self.rest(content), reason)
    }

    /// Returns the part of the content that was not passed on yet.
    fn rest(&mut self, content: Vec<Value>) -> Vec<OutputPiece> {
        let reached = self.reached(&content);
        let Reached { block: first, offset } = reached.unwrap_or_default();
        let mut pieces = Vec::new();
        for (at, value) in content.into_iter().enumerate().skip(first) {
            let from = if at == first { offset } else { 0 };
            let Some(text) = plain_text(&value) else {
                pieces.push(OutputPiece::Block(value));
                self.is_open = false;
                continue;
            };
            let text = text.get(from..).unwrap_or_default().to_owned();
            if from > 0 && text.is_empty() {
                continue; // All of it was passed on.
            }
            if from == 0 && self.is_open {
                // This text is a block of its own, so the open one ends here.
                pieces.push(OutputPiece::Text { text: String::new(), more: false });
            }
            pieces.push(OutputPiece::Text { text, more: false });
            self.is_open = false;
        }
        pieces
    }

    /// The position at which the pieces passed on end in this content; `None` if they differ from
    /// it.
    fn reached(&self, content: &[Value]) -> Option<Reached> {
        let mut reached = Reached::default();
        for one in self.published.as_ref()? {
            match *one {
                PublishedPiece::Text { length, digest: wanted } => {
                    let (mut left, mut found) = (length, NOTHING);
                    loop {
                        let text = plain_text(content.get(reached.block)?)?;
                        let rest = text.as_bytes().get(reached.offset..)?;
                        let taken = left.min(rest.len());
                        found = digest(found, &rest[..taken]);
                        left -= taken;
                        reached.offset += taken;
                        if left == 0 {
                            break;
                        }
                        reached = Reached { block: reached.block + 1, offset: 0 };
                    }
                    let text = plain_text(&content[reached.block])?;
                    if found != wanted || !text.is_char_boundary(reached.offset) {
                        return None;
                    }
                }
                PublishedPiece::Block(wanted) => {
                    if reached.offset > 0 {
                        let text = plain_text(content.get(reached.block)?)?;
                        if reached.offset != text.len() {
                            return None;
                        }
                        reached = Reached { block: reached.block + 1, offset: 0 };
                    }
                    let block = content.get(reached.block)?;
                    if digest(NOTHING, block.to_string().as_bytes()) != wanted {
                        return None;
                    }
                    reached.block += 1;
                }
            }
        }
        Some(reached)
    }
}

/// The type of a content block; `None` if the value is no content block.
fn kind_of(block: &Value) -> Option<&str> {
    block.as_object()?.get("type")?.as_str()
}

/// The text of a text block that has no other members.
fn plain_text(block: &Value) -> Option<&str> {
    let members = block.as_object()?;
    let is_plain = members
        .iter()
        .all(|(name, value)| matches!(name.as_str(), "type" | "text") || value.is_null());
    let is_text = is_plain && kind_of(block) == Some("text");
    members.get("text").filter(|_| is_text)?.as_str()
}

/// Describes the questions that a server asks before it continues (B16). They cannot be passed on
/// to the caller.
fn questions_text(result: &Map<String, Value>) -> String {
    let requests = result.get("inputRequests").and_then(Value::as_object);
    let methods = requests.into_iter().flatten().filter_map(|(_, request)| {
        let method = request.get("method")?.as_str()?;
        let message = request.pointer("/params/message").and_then(Value::as_str);
        Some(match message {
            Some(message) => format!("{method} (“{}”)", shown(message)),
            None => shown(method),
        })
    });
    let methods: Vec<String> = methods.take(limits::MCP_QUESTIONS_MAX).collect();
    let what = match methods.is_empty() {
        true => "to be called again".to_owned(),
        false => methods.join(", "),
    };
    format!("its server requires input from the client first, which is not passed on: {what}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(text: &str, more: bool) -> OutputPiece {
        OutputPiece::Text { text: text.to_owned(), more }
    }

    fn texts(texts: &[&str]) -> Vec<Value> {
        texts.iter().map(|text| json!({"type": "text", "text": text})).collect()
    }

    fn partial(seq: u64, content: Vec<Value>) -> CallNotification {
        CallNotification::Partial { seq: Some(seq), content }
    }

    fn completed(output: &mut CallOutput, result: Value) -> Vec<OutputPiece> {
        match output.answered(Ok(result)) {
            CallResult::Completed(pieces) => pieces,
            other => panic!("{other:?}"),
        }
    }

    fn reason(result: Value) -> String {
        match CallOutput::new(false).answered(Ok(result)) {
            CallResult::Failed(_, reason) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn reasons_and_logs_turn_no_direction_and_content_is_untouched() {
        let unoffered = "a\u{202e}b";
        let failed = |text: &str| reason(json!({"isError": true, "content": texts(&[text])}));
        assert_eq!(failed(unoffered), "ab");
        assert!(!failed(&unoffered.repeat(1_000)).contains('\u{202e}'));
        let refused = ErrorObject { code: 1, message: unoffered.to_owned(), data: None };
        let refused = CallOutput::new(false).answered(Err(refused));
        assert_eq!(refused, CallResult::Failed(Vec::new(), "ab".to_owned()));
        let line = json!({"level": "info", "data": unoffered}).as_object().cloned().unwrap();
        let published = CallOutput::new(false).on_notification(CallNotification::Log(line));
        assert_eq!(published, [OutputPiece::Log(json!({"level": "info", "data": "ab"}))]);
        let pieces =
            completed(&mut CallOutput::new(false), json!({"content": texts(&[unoffered])}));
        assert_eq!(pieces, [text(unoffered, false)]);
    }

    #[test]
    fn each_block_of_a_result_is_what_it_was() {
        let image = json!({"type": "image", "data": "aGk=", "mimeType": "image/png"});
        let noted = json!({"type": "text", "text": "b", "annotations": {"priority": 1.0}});
        let content = json!([{"type": "text", "text": "a"}, image, noted, {"type": "text",
            "text": "c", "annotations": null}]);
        let result = json!({"content": content, "structuredContent": {"x": 1}});
        let pieces = completed(&mut CallOutput::new(true), result);
        let structured = OutputPiece::Structured(json!({"x": 1}));
        let blocks = [OutputPiece::Block(image), OutputPiece::Block(noted)];
        let [first, second] = blocks;
        assert_eq!(pieces, [text("a", false), first, second, text("c", false), structured]);
        let alone = completed(&mut CallOutput::new(false), json!({"structuredContent": 1}));
        assert_eq!(alone, [text("1", false), OutputPiece::Structured(json!(1))]);
    }

    #[test]
    fn what_was_passed_on_in_pieces_is_not_passed_on_again() {
        let image = json!({"type": "image", "data": "aGk=", "mimeType": "image/png"});
        // The pieces, the content of the result, and its new part.
        type Case = (Vec<Vec<Value>>, Vec<Value>, Vec<OutputPiece>);
        let cases: Vec<Case> = vec![
            (vec![texts(&["a", "b"])], texts(&["ab"]), vec![]),
            (vec![texts(&["a"]), texts(&["b"])], texts(&["abc"]), vec![text("c", false)]),
            (vec![texts(&["ab"])], texts(&["a", "b"]), vec![]),
            (vec![texts(&["a"])], texts(&["a", "b"]), vec![text("", false), text("b", false)]),
            (
                vec![texts(&["a"]), vec![image.clone()]],
                vec![texts(&["a"]).remove(0), image.clone(), texts(&["z"]).remove(0)],
                vec![text("z", false)],
            ),
            // The result differs from its pieces: all of it is passed on.
            (vec![texts(&["a"])], texts(&["b"]), vec![text("", false), text("b", false)]),
            (vec![texts(&["ab"])], texts(&["a"]), vec![text("", false), text("a", false)]),
            (vec![vec![image.clone()]], texts(&["a"]), vec![text("a", false)]),
            (
                vec![texts(&["\u{c3}"])],
                texts(&["\u{c4}"]),
                vec![text("", false), text("\u{c4}", false)],
            ),
            (vec![texts(&["a"])], vec![], vec![]),
        ];
        for (parts, content, rest) in cases {
            let mut output = CallOutput::new(false);
            for (seq, part) in parts.iter().enumerate() {
                let pieces = output.on_notification(partial(seq as u64, part.clone()));
                assert_eq!(pieces.len(), part.len());
            }
            let result = json!({ "content": content });
            assert_eq!(completed(&mut output, result), rest, "{parts:?} {content:?}");
        }
    }

    #[test]
    fn a_piece_that_comes_twice_is_passed_on_once() {
        let mut output = CallOutput::new(false);
        assert_eq!(output.on_notification(partial(0, texts(&["a"]))), [text("a", true)]);
        assert_eq!(output.on_notification(partial(0, texts(&["a"]))), []);
        assert_eq!(output.on_notification(partial(1, texts(&["", "b"]))), [text("b", true)]);
        assert_eq!(output.on_notification(partial(2, vec![json!(1), json!({"text": "x"})])), []);
        assert_eq!(completed(&mut output, json!({"content": texts(&["ab"])})), []);
    }

    #[test]
    fn pieces_without_end_are_not_remembered_without_end() {
        let mut output = CallOutput::new(false);
        let block = json!({"type": "image", "data": "aGk=", "mimeType": "image/png"});
        for seq in 0..2 * limits::UPSTREAM_PARTS_MAX as u64 {
            assert_eq!(output.on_notification(partial(seq, vec![block.clone()])).len(), 1);
        }
        assert_eq!(output.published, None);
        let pieces = completed(&mut output, json!({"content": [block]}));
        assert_eq!(pieces.len(), 1);
    }

    #[test]
    fn a_tool_that_says_it_failed_has_failed_with_its_words() {
        let result = json!({"content": texts(&["no such file", "sorry"]), "isError": true});
        assert_eq!(reason(result), "no such file\nsorry");
        assert!(reason(json!({"content": [], "isError": true})).contains("without a reason"));
        let long = "é".repeat(1_000);
        let result = json!({"content": texts(&[&long]), "isError": true});
        let CallResult::Failed(pieces, reason) = CallOutput::new(true).answered(Ok(result)) else {
            panic!("expected a failure")
        };
        assert_eq!(pieces, [text(&long, false)]);
        assert!(reason.len() <= limits::ERROR_TEXT_BYTES_MAX && reason.ends_with("é…"));
    }

    #[test]
    fn results_that_make_no_sense_fail_the_call_and_say_how() {
        for (result, words) in [
            (json!([]), "not an object"),
            (json!({}), "no list of content"),
            (json!({"content": {}}), "no list of content"),
            (json!({"content": ["a"]}), "invalid content block"),
            (json!({"content": [{"text": "a"}]}), "invalid content block"),
            (json!({"content": [], "resultType": "strange"}), "\"strange\", which is unknown"),
            (json!({"task": {"taskId": 1}}), "no id"),
            (
                json!({"resultType": "input_required", "inputRequests": {"a": {
                "method": "elicitation/create", "params": {"message": "Your name?"}}}}),
                "elicitation/create (“Your name?”)",
            ),
            (json!({"resultType": "input_required", "requestState": "x"}), "called again"),
        ] {
            let reason = reason(result.clone());
            assert!(reason.contains(words), "{result}: {reason}");
        }
        let missing = CallOutput::new(true).answered(Ok(json!({"content": []})));
        assert!(matches!(missing, CallResult::Failed(_, reason) if reason.contains("promised")));
        let error = ErrorObject { code: -32_602, message: "no\u{1b}[2J way".into(), data: None };
        let refused = CallOutput::new(false).answered(Err(error));
        assert_eq!(refused, CallResult::Failed(vec![], "no[2J way".to_owned()));
        let task = CallOutput::new(false).answered(Ok(json!({"task": {"taskId": "t"}})));
        assert_eq!(task, CallResult::Task("t".to_owned()));
    }
}

//! What comes of one call, as what a tool of ours publishes.
//!
//! Text becomes text, everything else the content block that it is, structured content a value by
//! itself. Pieces of the result (the draft SEP-2998) are passed on when they come; the result that
//! follows has all of it again, and only what is not passed on yet is. If it says something else
//! than its pieces did, all of it is.

use serde_json::{Map, Value};

use super::hearing::Note;
use super::shown;
use crate::base::plain;
use crate::limits;
use crate::wire::jsonrpc::ErrorObject;

/// Something to publish.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// A text block, or a part of one, behind which more of it may follow.
    Text {
        /// The text.
        text: String,
        /// It is not known to be over.
        more: bool,
    },
    /// A content block of another type, or a text with annotations.
    Block(Value),
    /// Structured content.
    Structured(Value),
    /// A line of a log: `level`, `data` and perhaps `logger`.
    Log(Value),
    /// How far it is.
    Progress {
        /// So far.
        progress: f64,
        /// Of so much.
        total: Option<f64>,
        /// In words.
        message: Option<String>,
    },
}

/// What has become of a call with its answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Passed {
    /// It has done what it should.
    Completed(Vec<Piece>),
    /// It has not, and says why; some of it is still to be published.
    Failed(Vec<Piece>, String),
    /// It is a task of the handshake era now, of which the result is to be asked for.
    Task(String),
}

/// One call, while it runs.
#[derive(Clone, Debug, Default)]
pub struct Passing {
    /// The tool has a schema of its structured content, and so owes some.
    owes_structure: bool,
    /// What pieces were passed on; `None`: too many to be remembered.
    told: Option<Vec<Told>>,
    next_seq: u64,
    /// The last piece was text that may go on.
    is_open: bool,
}

/// A piece of a result, remembered by its digest.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Told {
    Text { length: usize, digest: u64 },
    Block(u64),
}

/// Where in the content of a result what was passed on ends.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Reached {
    block: usize,
    /// Bytes of the text that this block is.
    offset: usize,
}

/// FNV-1a. Whoever finds two texts of one digest has deceived himself.
fn digest(before: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(before, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

const NOTHING: u64 = 0xcbf2_9ce4_8422_2325;

impl Passing {
    /// Of a tool that has a schema of its structured content, or has none.
    pub fn new(owes_structure: bool) -> Passing {
        Passing { owes_structure, told: Some(Vec::new()), next_seq: 0, is_open: false }
    }

    /// Something has come meanwhile.
    pub fn hear(&mut self, note: Note) -> Vec<Piece> {
        match note {
            Note::Progress { progress, total, message } => {
                let message = message.map(|message| shown(&message));
                vec![Piece::Progress { progress, total, message }]
            }
            Note::Log(mut line) => {
                if let Some(Value::String(data)) = line.get_mut("data") {
                    *data = plain::plain_text(data);
                }
                vec![Piece::Log(Value::Object(line))]
            }
            Note::Partial { seq, content } => {
                let seq = seq.unwrap_or(self.next_seq);
                if seq < self.next_seq {
                    return Vec::new(); // It came before.
                }
                self.next_seq = seq.saturating_add(1);
                content.into_iter().filter_map(|block| self.partial(block)).collect()
            }
        }
    }

    fn partial(&mut self, block: Value) -> Option<Piece> {
        if kind_of(&block).is_none() || plain_text(&block) == Some("") {
            return None;
        }
        if let Some(text) = plain_text(&block) {
            let text = text.to_owned();
            let last = self.told.as_mut().and_then(|told| told.last_mut());
            match last {
                Some(Told::Text { length, digest: so_far }) => {
                    *length += text.len();
                    *so_far = digest(*so_far, text.as_bytes());
                }
                _ => self.remember(Told::Text {
                    length: text.len(),
                    digest: digest(NOTHING, text.as_bytes()),
                }),
            }
            self.is_open = true;
            return Some(Piece::Text { text, more: true });
        }
        self.remember(Told::Block(digest(NOTHING, block.to_string().as_bytes())));
        self.is_open = false;
        Some(Piece::Block(block))
    }

    fn remember(&mut self, one: Told) {
        match &mut self.told {
            Some(told) if told.len() < limits::UPSTREAM_PARTS_MAX => told.push(one),
            _ => self.told = None,
        }
    }

    /// The call is answered.
    pub fn answered(&mut self, answer: Result<Value, ErrorObject>) -> Passed {
        match answer {
            Ok(Value::Object(result)) => self.result(result),
            Ok(_) => Passed::Failed(Vec::new(), "its result is not an object".to_owned()),
            Err(error) => {
                let text = match error.message.trim() {
                    "" => format!("its server has refused the call with code {}", error.code),
                    said => shown(said),
                };
                Passed::Failed(Vec::new(), text)
            }
        }
    }

    fn result(&mut self, mut result: Map<String, Value>) -> Passed {
        let fail = |text: String| Passed::Failed(Vec::new(), text);
        match result.get("resultType").and_then(Value::as_str) {
            None | Some("complete") => {}
            Some("input_required") => return fail(asked_for(&result)),
            Some(other) => {
                return fail(format!(
                    "its result is of the type {:?}, which is unknown",
                    shown(other)
                ));
            }
        }
        if let Some(task) = result.get("task") {
            let id = task.get("taskId").and_then(Value::as_str);
            return match id.filter(|id| id.len() <= limits::MCP_ID_BYTES_MAX) {
                Some(id) => Passed::Task(id.to_owned()),
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
            return fail("its result has a content block that is none".to_owned());
        }
        if result.get("isError") == Some(&Value::Bool(true)) {
            return self.failed(content);
        }
        let is_bare = content.is_empty() && self.told.as_ref().is_some_and(Vec::is_empty);
        let mut pieces = self.rest(content);
        if let Some(value) = structured.as_ref().filter(|_| is_bare) {
            // Some read nothing but text (A35: it should be there).
            pieces.push(Piece::Text { text: value.to_string(), more: false });
        }
        match structured {
            Some(value) => pieces.push(Piece::Structured(value)),
            None if self.owes_structure => {
                let text = "it has promised structured content, and its result has none";
                return Passed::Failed(pieces, text.to_owned());
            }
            None => {}
        }
        Passed::Completed(pieces)
    }

    /// What a tool says of its failure is why it has failed; what else it gives is given. What is
    /// too long for a reason is given, too, and the reason is how it begins.
    fn failed(&mut self, content: Vec<Value>) -> Passed {
        const REASON_BYTES_MAX: usize = limits::ERROR_TEXT_BYTES_MAX;
        let texts: Vec<&str> = content.iter().filter_map(plain_text).collect();
        let text = texts.join("\n");
        if text.trim().is_empty() {
            let text = "the tool has failed, and does not say why".to_owned();
            return Passed::Failed(self.rest(content), text);
        }
        if text.len() <= REASON_BYTES_MAX {
            let others = content.into_iter().filter(|block| plain_text(block).is_none());
            let pieces = match self.told.as_ref().is_some_and(Vec::is_empty) {
                true => others.map(Piece::Block).collect(),
                false => Vec::new(), // It has given pieces already.
            };
            return Passed::Failed(pieces, shown(&text));
        }
        let mut end = REASON_BYTES_MAX - '…'.len_utf8();
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let reason = format!("{}…", shown(&text[..end]));
        Passed::Failed(self.rest(content), reason)
    }

    /// What of the content is not passed on yet.
    fn rest(&mut self, content: Vec<Value>) -> Vec<Piece> {
        let reached = self.reached(&content);
        let Reached { block: first, offset } = reached.unwrap_or_default();
        let mut pieces = Vec::new();
        for (at, value) in content.into_iter().enumerate().skip(first) {
            let from = if at == first { offset } else { 0 };
            let Some(text) = plain_text(&value) else {
                pieces.push(Piece::Block(value));
                self.is_open = false;
                continue;
            };
            let text = text.get(from..).unwrap_or_default().to_owned();
            if from > 0 && text.is_empty() {
                continue; // All of it was passed on.
            }
            if from == 0 && self.is_open {
                // It is a text of its own, not the rest of the one before.
                pieces.push(Piece::Text { text: String::new(), more: false });
            }
            pieces.push(Piece::Text { text, more: false });
            self.is_open = false;
        }
        pieces
    }

    /// Where what was passed on ends in this content; `None`: they do not agree.
    fn reached(&self, content: &[Value]) -> Option<Reached> {
        let mut reached = Reached::default();
        for one in self.told.as_ref()? {
            match *one {
                Told::Text { length, digest: wanted } => {
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
                Told::Block(wanted) => {
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

/// Of which type a content block is; `None`: it is none.
fn kind_of(block: &Value) -> Option<&str> {
    block.as_object()?.get("type")?.as_str()
}

/// A text block that is nothing but its text.
fn plain_text(block: &Value) -> Option<&str> {
    let members = block.as_object()?;
    let is_plain = members
        .iter()
        .all(|(name, value)| matches!(name.as_str(), "type" | "text") || value.is_null());
    let is_text = is_plain && kind_of(block) == Some("text");
    members.get("text").filter(|_| is_text)?.as_str()
}

/// What a server wants of whoever calls before it goes on (B16). Nobody can be asked from here.
fn asked_for(result: &Map<String, Value>) -> String {
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
    format!("its server asks its caller for something first, which is not passed on: {what}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(text: &str, more: bool) -> Piece {
        Piece::Text { text: text.to_owned(), more }
    }

    fn texts(texts: &[&str]) -> Vec<Value> {
        texts.iter().map(|text| json!({"type": "text", "text": text})).collect()
    }

    fn partial(seq: u64, content: Vec<Value>) -> Note {
        Note::Partial { seq: Some(seq), content }
    }

    fn completed(passing: &mut Passing, result: Value) -> Vec<Piece> {
        match passing.answered(Ok(result)) {
            Passed::Completed(pieces) => pieces,
            other => panic!("{other:?}"),
        }
    }

    fn reason(result: Value) -> String {
        match Passing::new(false).answered(Ok(result)) {
            Passed::Failed(_, reason) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn reasons_and_logs_turn_no_direction_and_content_is_untouched() {
        let turned = "a\u{202e}b";
        let failed = |text: &str| reason(json!({"isError": true, "content": texts(&[text])}));
        assert_eq!(failed(turned), "ab");
        assert!(!failed(&turned.repeat(1_000)).contains('\u{202e}'));
        let refused = ErrorObject { code: 1, message: turned.to_owned(), data: None };
        let refused = Passing::new(false).answered(Err(refused));
        assert_eq!(refused, Passed::Failed(Vec::new(), "ab".to_owned()));
        let line = json!({"level": "info", "data": turned}).as_object().cloned().unwrap();
        let told = Passing::new(false).hear(Note::Log(line));
        assert_eq!(told, [Piece::Log(json!({"level": "info", "data": "ab"}))]);
        let pieces = completed(&mut Passing::new(false), json!({"content": texts(&[turned])}));
        assert_eq!(pieces, [text(turned, false)]);
    }

    #[test]
    fn each_block_of_a_result_is_what_it_was() {
        let image = json!({"type": "image", "data": "aGk=", "mimeType": "image/png"});
        let noted = json!({"type": "text", "text": "b", "annotations": {"priority": 1.0}});
        let content = json!([{"type": "text", "text": "a"}, image, noted, {"type": "text",
            "text": "c", "annotations": null}]);
        let result = json!({"content": content, "structuredContent": {"x": 1}});
        let pieces = completed(&mut Passing::new(true), result);
        let structured = Piece::Structured(json!({"x": 1}));
        let blocks = [Piece::Block(image), Piece::Block(noted)];
        let [first, second] = blocks;
        assert_eq!(pieces, [text("a", false), first, second, text("c", false), structured]);
        let alone = completed(&mut Passing::new(false), json!({"structuredContent": 1}));
        assert_eq!(alone, [text("1", false), Piece::Structured(json!(1))]);
    }

    #[test]
    fn what_was_passed_on_in_pieces_is_not_passed_on_again() {
        let image = json!({"type": "image", "data": "aGk=", "mimeType": "image/png"});
        // The pieces, the content of the result, and what of it is new.
        type Case = (Vec<Vec<Value>>, Vec<Value>, Vec<Piece>);
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
            // Something else than was said before: all of it.
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
            let mut passing = Passing::new(false);
            for (seq, part) in parts.iter().enumerate() {
                let pieces = passing.hear(partial(seq as u64, part.clone()));
                assert_eq!(pieces.len(), part.len());
            }
            let result = json!({ "content": content });
            assert_eq!(completed(&mut passing, result), rest, "{parts:?} {content:?}");
        }
    }

    #[test]
    fn a_piece_that_comes_twice_is_passed_on_once() {
        let mut passing = Passing::new(false);
        assert_eq!(passing.hear(partial(0, texts(&["a"]))), [text("a", true)]);
        assert_eq!(passing.hear(partial(0, texts(&["a"]))), []);
        assert_eq!(passing.hear(partial(1, texts(&["", "b"]))), [text("b", true)]);
        assert_eq!(passing.hear(partial(2, vec![json!(1), json!({"text": "x"})])), []);
        assert_eq!(completed(&mut passing, json!({"content": texts(&["ab"])})), []);
    }

    #[test]
    fn pieces_without_end_are_not_remembered_without_end() {
        let mut passing = Passing::new(false);
        let block = json!({"type": "image", "data": "aGk=", "mimeType": "image/png"});
        for seq in 0..2 * limits::UPSTREAM_PARTS_MAX as u64 {
            assert_eq!(passing.hear(partial(seq, vec![block.clone()])).len(), 1);
        }
        assert_eq!(passing.told, None);
        let pieces = completed(&mut passing, json!({"content": [block]}));
        assert_eq!(pieces.len(), 1);
    }

    #[test]
    fn a_tool_that_says_it_failed_has_failed_with_its_words() {
        let result = json!({"content": texts(&["no such file", "sorry"]), "isError": true});
        assert_eq!(reason(result), "no such file\nsorry");
        assert!(reason(json!({"content": [], "isError": true})).contains("does not say why"));
        let long = "é".repeat(1_000);
        let result = json!({"content": texts(&[&long]), "isError": true});
        let Passed::Failed(pieces, reason) = Passing::new(true).answered(Ok(result)) else {
            panic!("it failed")
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
            (json!({"content": ["a"]}), "content block that is none"),
            (json!({"content": [{"text": "a"}]}), "content block that is none"),
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
        let missing = Passing::new(true).answered(Ok(json!({"content": []})));
        assert!(matches!(missing, Passed::Failed(_, reason) if reason.contains("promised")));
        let error = ErrorObject { code: -32_602, message: "no\u{1b}[2J way".into(), data: None };
        let refused = Passing::new(false).answered(Err(error));
        assert_eq!(refused, Passed::Failed(vec![], "no[2J way".to_owned()));
        let task = Passing::new(false).answered(Ok(json!({"task": {"taskId": "t"}})));
        assert_eq!(task, Passed::Task("t".to_owned()));
    }
}

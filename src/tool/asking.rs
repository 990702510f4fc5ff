//! Tools that ask their caller before they run: for what he has to say himself, for what his model
//! makes of something, for the folders that he works in.
//!
//! Such a tool is asked first, whether it has everything that it needs. It says so, or puts its
//! questions, with a state of its own to go on from; whoever speaks with the caller gets them
//! answered in the way of his protocol, and asks the tool again with the answers. Nothing runs, and
//! nothing is kept here, until the tool is content: an answer that never comes costs nothing.
//!
//! Answers come from outside, as arguments do, and are in no schema: a tool checks them, and asks
//! again for what is missing or makes no sense.

use serde_json::{Map, Value};

/// What the caller has answered so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replies {
    /// Answers to the last round of questions, by their keys: results as MCP describes them
    /// (`ElicitResult`, `CreateMessageResult`, `ListRootsResult`). Those of earlier rounds are kept
    /// by the tool, in its state.
    pub answers: Map<String, Value>,
    /// What the tool has asked to be told again. It is what the tool said, unchanged.
    pub state: Option<Value>,
}

impl Replies {
    /// What the caller has filled in for this question, if he has accepted it.
    ///
    /// ```
    /// use serde_json::json;
    /// use streamdoor::tool::Replies;
    /// let mut replies = Replies::default();
    /// let answer = json!({"action": "accept", "content": {"name": "Ada"}});
    /// replies.answers.insert("who".to_owned(), answer);
    /// assert_eq!(replies.accepted("who").unwrap()["name"], "Ada");
    /// assert_eq!(replies.accepted("where"), None);
    /// ```
    pub fn accepted(&self, key: &str) -> Option<&Map<String, Value>> {
        let answer = self.answers.get(key)?;
        match answer.get("action")?.as_str()? {
            "accept" => answer.get("content")?.as_object(),
            _ => None,
        }
    }
}

/// What a caller can be asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// He fills in forms.
    pub forms: bool,
    /// He goes to addresses.
    pub urls: bool,
    /// He has a model.
    pub sampling: bool,
    /// And it calls tools.
    pub sampling_tools: bool,
    /// He knows the folders that he works in.
    pub roots: bool,
}

impl Abilities {
    /// Can he be asked this?
    pub fn allow(self, question: &Question) -> bool {
        let has = |field: &str| question.params.get(field).is_some_and(|value| !value.is_null());
        match question.method {
            QuestionMethod::Elicit if question.params["mode"] == "url" => self.urls,
            QuestionMethod::Elicit => self.forms,
            QuestionMethod::Sample if has("tools") || has("toolChoice") => self.sampling_tools,
            QuestionMethod::Sample => self.sampling,
            QuestionMethod::Roots => self.roots,
        }
    }
}

/// What a tool makes of its arguments and the answers that there are.
#[derive(Clone, Debug, PartialEq)]
pub enum Asking {
    /// It has what it needs.
    Run,
    /// It has to know more first.
    Ask {
        /// What, each under a key of its own. Without any, the caller is to come again, with
        /// nothing but the state.
        questions: Vec<Question>,
        /// What it wants to be told again with the answers.
        state: Option<Value>,
    },
    /// It does not run with these answers; the text says why.
    Refuse(String),
}

/// One question to the caller.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Under which his answer comes back.
    pub key: String,
    /// In which way he is asked.
    pub method: QuestionMethod,
    /// The parameters of that method, as MCP describes them.
    pub params: Value,
}

impl Question {
    /// Has him fill in a form: `schema` is an object of strings, numbers, booleans and choices.
    pub fn form(key: impl Into<String>, message: &str, schema: Value) -> Question {
        let params = serde_json::json!({
            "message": message,
            "requestedSchema": schema,
        });
        Question { key: key.into(), method: QuestionMethod::Elicit, params }
    }

    /// Has his model answer `prompt`, in so many tokens at most.
    pub fn sample(key: impl Into<String>, prompt: &str, tokens_max: u32) -> Question {
        let content = serde_json::json!({"type": "text", "text": prompt});
        let params = serde_json::json!({
            "messages": [{"role": "user", "content": content}],
            "maxTokens": tokens_max,
        });
        Question { key: key.into(), method: QuestionMethod::Sample, params }
    }

    /// Has him name the folders that he works in.
    pub fn roots(key: impl Into<String>) -> Question {
        let params = Value::Object(Map::new());
        Question { key: key.into(), method: QuestionMethod::Roots, params }
    }
}

/// The ways to ask a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionMethod {
    /// He himself is asked.
    Elicit,
    /// His model is asked.
    Sample,
    /// His program is asked for folders.
    Roots,
}

impl QuestionMethod {
    /// The method's name in MCP.
    pub fn name(self) -> &'static str {
        match self {
            QuestionMethod::Elicit => "elicitation/create",
            QuestionMethod::Sample => "sampling/createMessage",
            QuestionMethod::Roots => "roots/list",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_was_accepted_counts_as_filled_in() {
        let mut replies = Replies::default();
        for (key, answer) in [
            ("yes", json!({"action": "accept", "content": {"a": 1}})),
            ("no", json!({"action": "decline", "content": {"a": 1}})),
            ("empty", json!({"action": "accept"})),
            ("wrong", json!({"action": 1, "content": {}})),
            ("text", json!("accept")),
            ("null", Value::Null),
        ] {
            replies.answers.insert(key.to_owned(), answer);
        }
        assert_eq!(replies.accepted("yes").unwrap()["a"], 1);
        for key in ["no", "empty", "wrong", "text", "null", "absent"] {
            assert_eq!(replies.accepted(key), None, "{key}");
        }
    }

    #[test]
    fn a_caller_is_asked_only_for_what_he_can_do() {
        let form = Question::form("f", "Who?", json!({"type": "object", "properties": {}}));
        let sample = Question::sample("s", "Say it.", 10);
        let mut with_tools = sample.clone();
        with_tools.params["tools"] = json!([]);
        let mut url = form.clone();
        url.params["mode"] = json!("url");
        let all = [form, url, sample, with_tools, Question::roots("r")];
        let allowed =
            |abilities: Abilities| all.each_ref().map(|question| abilities.allow(question));
        assert_eq!(allowed(Abilities::default()), [false; 5]);
        let forms = Abilities { forms: true, ..Default::default() };
        assert_eq!(allowed(forms), [true, false, false, false, false]);
        let urls = Abilities { urls: true, ..Default::default() };
        assert_eq!(allowed(urls), [false, true, false, false, false]);
        let sampling = Abilities { sampling: true, ..Default::default() };
        assert_eq!(allowed(sampling), [false, false, true, false, false]);
        let tools = Abilities { sampling_tools: true, ..Default::default() };
        assert_eq!(allowed(tools), [false, false, false, true, false]);
        let roots = Abilities { roots: true, ..Default::default() };
        assert_eq!(allowed(roots), [false, false, false, false, true]);
    }
}

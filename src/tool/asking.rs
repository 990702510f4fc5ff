//! Tools that ask their client before they run: for input of the user, for a reply of the client's
//! model, or for the client's folders.
//!
//! Such a tool is first asked if it has everything that it needs. It agrees to run, or returns
//! questions, and a state to continue from. The protocol layer sends the questions to the client in
//! its protocol, and calls the tool again with the answers. Nothing runs and nothing is stored here
//! until the tool agrees. An answer that never comes costs nothing.
//!
//! Answers come from outside, like arguments, but no schema covers them. A tool checks them, and
//! asks again for missing or invalid ones.

use serde_json::{Map, Value};

/// The answers of the client so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replies {
    /// The answers to the last round of questions, by their keys: results of MCP (`ElicitResult`,
    /// `CreateMessageResult`, `ListRootsResult`). The tool stores those of earlier rounds in its
    /// state.
    pub answers: Map<String, Value>,
    /// The state that the tool returned with its last questions, unchanged.
    pub state: Option<Value>,
}

impl Replies {
    /// Returns the content that the user entered for this question, if the user accepted it.
    ///
    /// ```
    /// use serde_json::json;
    /// use streamdoor::tools::Replies;
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

/// The questions that a client can answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// The client shows forms.
    pub forms: bool,
    /// The client opens URLs.
    pub urls: bool,
    /// The client has a model.
    pub sampling: bool,
    /// The client's model calls tools.
    pub sampling_tools: bool,
    /// The client knows its folders.
    pub roots: bool,
}

impl Abilities {
    /// True if the client can answer this question.
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

/// The decision of a tool about its arguments and the answers so far.
#[derive(Clone, Debug, PartialEq)]
pub enum Asking {
    /// The tool has everything that it needs.
    Run,
    /// The tool needs more first.
    Ask {
        /// The questions, each under a key of its own. If there are none, the client calls again
        /// with the state only.
        questions: Vec<Question>,
        /// The state that the tool needs again with the answers.
        state: Option<Value>,
    },
    /// The tool does not run with these answers. The text gives the reason.
    Refuse(String),
}

/// One question to the client.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The key of the answer.
    pub key: String,
    /// The MCP method of the question.
    pub method: QuestionMethod,
    /// The parameters of that method, as MCP describes them.
    pub params: Value,
}

impl Question {
    /// Asks the user to fill in a form. `schema` is an object of strings, numbers, booleans and
    /// choices.
    pub fn form(key: impl Into<String>, message: &str, schema: Value) -> Question {
        let params = serde_json::json!({
            "message": message,
            "requestedSchema": schema,
        });
        Question { key: key.into(), method: QuestionMethod::Elicit, params }
    }

    /// Asks the client's model to answer `prompt`, in at most `tokens_max` tokens.
    pub fn sample(key: impl Into<String>, prompt: &str, tokens_max: u32) -> Question {
        let content = serde_json::json!({"type": "text", "text": prompt});
        let params = serde_json::json!({
            "messages": [{"role": "user", "content": content}],
            "maxTokens": tokens_max,
        });
        Question { key: key.into(), method: QuestionMethod::Sample, params }
    }

    /// Asks the client for its folders.
    pub fn roots(key: impl Into<String>) -> Question {
        let params = Value::Object(Map::new());
        Question { key: key.into(), method: QuestionMethod::Roots, params }
    }
}

/// The MCP methods of questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionMethod {
    /// The user is asked.
    Elicit,
    /// The client's model is asked.
    Sample,
    /// The client is asked for its folders.
    Roots,
}

impl QuestionMethod {
    const ALL: [QuestionMethod; 3] =
        [QuestionMethod::Elicit, QuestionMethod::Sample, QuestionMethod::Roots];

    /// Returns the method of this name in MCP.
    pub fn parse(name: &str) -> Option<QuestionMethod> {
        QuestionMethod::ALL.into_iter().find(|method| method.name() == name)
    }

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

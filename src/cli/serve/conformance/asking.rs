//! Tools that ask the client: its user, its model or the client program.

use serde_json::{Map, Value, json};
use streamdoor::tool::{
    Abilities, Asking, Output, Question, Replies, SpecError, ToolError, ToolSpec, Tools,
};

use super::{say, taking};

pub fn add(tools: &mut Tools) -> Result<(), SpecError> {
    add_forms(tools)?;
    add_models(tools)?;
    add_states(tools)?;
    add_rounds(tools)
}

/// Returns a form with one required field.
pub fn form(key: &str, message: &str, field: &str, kind: &str) -> Question {
    let properties: Map<String, Value> =
        [(field.to_owned(), json!({"type": kind}))].into_iter().collect();
    let schema = json!({"type": "object", "properties": properties, "required": [field]});
    Question::form(key, message, schema)
}

/// Returns the schema of a form.
type MakeForm = fn() -> Value;

/// True if this question was answered, with any kind of answer.
pub fn is_answered(replies: &Replies, key: &str) -> bool {
    let Some(answer) = replies.answers.get(key).and_then(Value::as_object) else { return false };
    let has = |field: &str| answer.contains_key(field);
    answer.get("action").is_some_and(Value::is_string) || has("role") || has("roots")
}

/// Returns the text of a field of an accepted form.
pub fn filled_in<'a>(replies: &'a Replies, key: &str, field: &str) -> Option<&'a str> {
    replies.accepted(key)?.get(field)?.as_str()
}

/// Asks all questions at once, and again until each is answered.
fn until_answered(questions: Vec<Question>, replies: &Replies, state: Option<Value>) -> Asking {
    match questions.iter().all(|question| is_answered(replies, &question.key)) {
        true => Asking::Run,
        false => Asking::Ask { questions, state },
    }
}

/// Publishes the answer as JSON.
fn answer(out: &mut Output, replies: &Replies, key: &str, label: &str) -> Result<(), ToolError> {
    let answer = &replies.answers[key];
    let (action, content) = (answer["action"].as_str().unwrap_or_default(), &answer["content"]);
    let content = if content.is_null() { "{}".to_owned() } else { content.to_string() };
    say(out, &format!("{label}: action={action}, content={content}"))
}

fn add_forms(tools: &mut Tools) -> Result<(), SpecError> {
    let message = json!({"message": {"type": "string", "description": "The question."}});
    tools.insert_asking(
        taking("test_elicitation", "Asks the user.", message),
        |arguments, replies, _| {
            let schema = json!({
                "type": "object",
                "properties": {
                    "username": {"type": "string", "description": "User's response"},
                    "email": {"type": "string", "description": "User's email address"},
                },
                "required": ["username", "email"],
            });
            let message = arguments["message"].as_str().unwrap_or_default();
            until_answered(vec![Question::form("user", message, schema)], replies, None)
        },
        |_, replies, out| answer(out, replies, "user", "User response"),
    )?;
    let table: [(&str, &str, MakeForm); 2] = [
        ("test_elicitation_sep1034_defaults", "Asks with defaults.", form_with_defaults),
        ("test_elicitation_sep1330_enums", "Asks for choices.", form_with_choices),
    ];
    for (name, description, schema) in table {
        tools.insert_asking(
            ToolSpec::new(name, description),
            move |_, replies, _| {
                let question = Question::form("form", "Please fill in the form.", schema());
                until_answered(vec![question], replies, None)
            },
            |_, replies, out| answer(out, replies, "form", "Elicitation completed"),
        )?;
    }
    for name in ["test_input_required_result_elicitation", "test_streaming_elicitation"] {
        tools.insert_asking(
            ToolSpec::new(name, "Asks for a name, and greets."),
            |_, replies, _| match filled_in(replies, "user_name", "name") {
                Some(_) => Asking::Run,
                None if is_declined(replies, "user_name") => {
                    Asking::Refuse("Without a name there is no greeting.".to_owned())
                }
                None => Asking::Ask { questions: vec![ask_name()], state: None },
            },
            greet,
        )?;
    }
    Ok(())
}

pub fn ask_name() -> Question {
    form("user_name", "What is your name?", "name", "string")
}

/// Greets the user by the name in the answer.
pub fn greet(_: &Value, replies: &Replies, out: &mut Output) -> Result<(), ToolError> {
    say(out, &format!("Hello, {}!", filled_in(replies, "user_name", "name").unwrap_or("stranger")))
}

/// True if the user declined or cancelled the form.
pub fn is_declined(replies: &Replies, key: &str) -> bool {
    let action = replies.answers.get(key).and_then(|answer| answer["action"].as_str());
    matches!(action, Some("decline" | "cancel"))
}

fn form_with_defaults() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "User name", "default": "John Doe"},
            "age": {"type": "integer", "description": "User age", "default": 30},
            "score": {"type": "number", "description": "User score", "default": 95.5},
            "status": {
                "type": "string",
                "description": "User status",
                "enum": ["active", "inactive", "pending"],
                "default": "active",
            },
            "verified": {
                "type": "boolean",
                "description": "Verification status",
                "default": true,
            },
        },
        "required": [],
    })
}

fn form_with_choices() -> Value {
    let titled = |words: [&str; 3]| {
        let names = ["value1", "value2", "value3"];
        let choices = names.into_iter().zip(words);
        choices.map(|(name, title)| json!({"const": name, "title": title})).collect::<Value>()
    };
    let plain = ["option1", "option2", "option3"];
    json!({
        "type": "object",
        "properties": {
            "untitledSingle": {
                "type": "string",
                "description": "Select one option",
                "enum": plain,
            },
            "titledSingle": {
                "type": "string",
                "description": "Select one option with titles",
                "oneOf": titled(["First Option", "Second Option", "Third Option"]),
            },
            "legacyEnum": {
                "type": "string",
                "description": "Select one option (legacy)",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {
                "type": "array",
                "description": "Select multiple options",
                "minItems": 1,
                "maxItems": 3,
                "items": {"type": "string", "enum": plain},
            },
            "titledMulti": {
                "type": "array",
                "description": "Select multiple options with titles",
                "minItems": 1,
                "maxItems": 3,
                "items": {"anyOf": titled(["First Choice", "Second Choice", "Third Choice"])},
            },
        },
        "required": [],
    })
}

/// Returns the reply of the client's model.
fn sampled<'a>(replies: &'a Replies, key: &str) -> &'a str {
    let content = replies.answers.get(key).map_or(&Value::Null, |answer| &answer["content"]);
    let first = content.get(0).unwrap_or(content); // The content is one block or a list of blocks.
    first["text"].as_str().unwrap_or("No response")
}

fn add_models(tools: &mut Tools) -> Result<(), SpecError> {
    let prompt = json!({"prompt": {"type": "string", "description": "The prompt for the model."}});
    tools.insert_asking(
        taking("test_sampling", "Asks the caller's model.", prompt),
        |arguments, replies, _| {
            let prompt = arguments["prompt"].as_str().unwrap_or_default();
            until_answered(vec![Question::sample("model", prompt, 100)], replies, None)
        },
        |_, replies, out| say(out, &format!("LLM response: {}", sampled(replies, "model"))),
    )?;
    for name in ["test_input_required_result_sampling", "test_missing_capability"] {
        tools.insert_asking(
            ToolSpec::new(name, "Asks the caller's model for a capital."),
            |_, replies, _| {
                let prompt = "What is the capital of France?";
                let question = Question::sample("capital_question", prompt, 100);
                until_answered(vec![question], replies, None)
            },
            |_, replies, out| say(out, sampled(replies, "capital_question")),
        )?;
    }
    tools.insert_asking(
        ToolSpec::new("test_input_required_result_list_roots", "Asks for the caller's folders."),
        |_, replies, _| until_answered(vec![Question::roots("client_roots")], replies, None),
        |_, replies, out| {
            let roots = replies.answers["client_roots"]["roots"].as_array().map_or(0, Vec::len);
            say(out, &format!("There are {roots} roots."))
        },
    )?;
    tools.insert_asking(
        ToolSpec::new(
            "test_input_required_result_capabilities",
            "Asks for everything that can be asked for.",
        ),
        |_, replies, abilities| until_answered(possible(abilities), replies, None),
        |_, replies, out| say(out, &format!("{} answers were given.", replies.answers.len())),
    )
}

/// Returns the questions of all kinds that this client supports.
fn possible(abilities: Abilities) -> Vec<Question> {
    let mut questions = three_kinds();
    questions.retain(|question| abilities.allow(question));
    questions
}

fn three_kinds() -> Vec<Question> {
    let greeting = Question::sample("greeting", "Generate a greeting", 50);
    vec![ask_name(), greeting, Question::roots("client_roots")]
}

fn add_states(tools: &mut Tools) -> Result<(), SpecError> {
    let names =
        ["test_input_required_result_request_state", "test_input_required_result_tampered_state"];
    for name in names {
        tools.insert_asking(
            ToolSpec::new(name, "Asks, and gets its state back."),
            |_, replies, _| {
                let question = form("confirm", "Please confirm.", "ok", "boolean");
                let state = json!({"asked": "confirm"});
                match &replies.state {
                    Some(given) if *given == state => {
                        until_answered(vec![question], replies, Some(state))
                    }
                    _ => Asking::Ask { questions: vec![question], state: Some(state) },
                }
            },
            |_, _, out| say(out, "state-ok"),
        )?;
    }
    tools.insert_asking(
        ToolSpec::new("test_input_required_result_multiple_inputs", "Asks for three things."),
        |_, replies, _| until_answered(three_kinds(), replies, Some(json!({"asked": 3}))),
        |_, replies, out| {
            let name = filled_in(replies, "user_name", "name").unwrap_or("stranger");
            say(out, &format!("{name}: {}", sampled(replies, "greeting")))
        },
    )
}

/// Adds a tool that asks for a name and then for a color. The state carries the name.
fn add_rounds(tools: &mut Tools) -> Result<(), SpecError> {
    tools.insert_asking(
        ToolSpec::new("test_input_required_result_multi_round", "Asks twice."),
        |_, replies, _| {
            let name = replies.state.as_ref().and_then(|state| state["name"].as_str());
            let name = name.or_else(|| filled_in(replies, "step1", "name"));
            match (name, filled_in(replies, "step2", "color")) {
                (None, _) => Asking::Ask {
                    questions: vec![form("step1", "Step 1: What is your name?", "name", "string")],
                    state: Some(json!({"round": 1})),
                },
                (Some(name), None) => {
                    let message = "Step 2: What is your favorite color?";
                    Asking::Ask {
                        questions: vec![form("step2", message, "color", "string")],
                        state: Some(json!({"round": 2, "name": name})),
                    }
                }
                (Some(_), Some(_)) => Asking::Run,
            }
        },
        |_, replies, out| {
            let name = replies.state.as_ref().and_then(|state| state["name"].as_str());
            let color = filled_in(replies, "step2", "color").unwrap_or("no color");
            say(out, &format!("{} likes {color}.", name.unwrap_or("Somebody")))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> Tools {
        let mut tools = Tools::new();
        add(&mut tools).unwrap();
        tools
    }

    fn asked(tool: &str, answers: Value, state: Option<Value>) -> Asking {
        let Value::Object(answers) = answers else { panic!("answers have keys") };
        let replies = Replies { answers, state };
        let all = Abilities { forms: true, sampling: true, roots: true, ..Default::default() };
        tools().asking(tool, &Value::Null, &replies, all).unwrap()
    }

    fn keys(asking: Asking) -> Vec<String> {
        let Asking::Ask { questions, .. } = asking else { panic!("{asking:?}") };
        questions.into_iter().map(|question| question.key).collect()
    }

    #[test]
    fn what_makes_no_sense_is_asked_for_again() {
        let tool = "test_input_required_result_elicitation";
        let accepted = json!({"action": "accept", "content": {"name": "Ada"}});
        assert_eq!(asked(tool, json!({"user_name": accepted}), None), Asking::Run);
        for answers in [
            json!({}),
            json!({"user_name": 12345}),
            json!({"wrong_key": accepted}),
            json!({"user_name": {"action": "accept", "content": {"name": 1}}}),
        ] {
            assert_eq!(keys(asked(tool, answers, None)), ["user_name"]);
        }
        let declined = asked(tool, json!({"user_name": {"action": "decline"}}), None);
        assert!(matches!(declined, Asking::Refuse(_)), "{declined:?}");
    }

    #[test]
    fn the_second_round_needs_the_first() {
        let tool = "test_input_required_result_multi_round";
        let answer = |field: &str| json!({"action": "accept", "content": {field: "x"}});
        assert_eq!(keys(asked(tool, json!({}), None)), ["step1"]);
        assert_eq!(keys(asked(tool, json!({"step2": answer("color")}), None)), ["step1"]);
        let second = asked(tool, json!({"step1": answer("name")}), Some(json!({"round": 1})));
        let Asking::Ask { state, .. } = &second else { panic!("{second:?}") };
        assert_eq!(*state, Some(json!({"round": 2, "name": "x"})));
        let state = state.clone();
        assert_eq!(asked(tool, json!({"step2": answer("color")}), state), Asking::Run);
    }
}

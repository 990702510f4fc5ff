//! A call at the floor, in both forms: found in the request by a search, or read as JSON.

use std::borrow::Cow;
use std::io::{self, ErrorKind};

use serde::Deserialize;
use serde_json::Value;
use streamdoor::wire::jsonrpc::Id;

use crate::mcp::wire::{self, CALL, token_of};
use crate::serve::{first, ours};

/// The form of a floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// It writes bytes that are ready. It only searches a request for the tool and the token.
    Writes,
    /// It reads a request as JSON, and spells each message with the id and the token of the call.
    Reads,
}

/// A call of a tool.
pub struct Call {
    /// True for the tool that follows the plan, false for the tool with one chunk.
    pub is_paced: bool,
    /// The session.
    pub index: usize,
    /// The id of the request.
    pub id: Id,
    /// The progress token.
    pub token: Id,
}

/// The members of a call that matter, as a server without a library would declare them.
#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    method: Cow<'a, str>,
    id: Value,
    #[serde(borrow)]
    params: Params<'a>,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    arguments: Arguments,
    #[serde(rename = "_meta")]
    meta: Meta,
}

#[derive(Deserialize)]
struct Arguments {
    /// Given to the tool that follows the plan.
    index: Option<usize>,
}

#[derive(Deserialize)]
struct Meta {
    #[serde(rename = "progressToken")]
    token: Value,
}

impl Call {
    /// Returns the call in a request of `bench mcp`.
    ///
    /// # Errors
    /// An error if the request has no call of a known tool.
    pub fn of_request(request: &str, form: Form) -> io::Result<Call> {
        match form {
            Form::Writes => Call::found(request).ok_or_else(|| ErrorKind::InvalidData.into()),
            Form::Reads => Call::parsed(request),
        }
    }

    fn found(request: &str) -> Option<Call> {
        let is_paced = request.contains(&format!("\"name\":\"{}\"", ours::TOOL));
        let digits = request.split_once("\"progressToken\":")?.1;
        let digits = digits.split_once(|c: char| !c.is_ascii_digit())?.0;
        let index = wire::index_of(digits.parse().ok()?)?;
        let [id, token] = [(); 2].map(|()| Id::of_number(token_of(index as u32)));
        Some(Call { is_paced, index, id, token })
    }

    fn parsed(request: &str) -> io::Result<Call> {
        let Request { method, id, params } = serde_json::from_str(request)?;
        let is_paced = params.name == ours::TOOL;
        let ids = Id::of_value(&id).zip(Id::of_value(&params.meta.token));
        let ids = ids.filter(|_| method == CALL && (is_paced || params.name == first::TOOL));
        let (id, token) = ids.ok_or(ErrorKind::InvalidData)?;
        let index = match (is_paced, params.arguments.index) {
            (true, index) => index.ok_or(ErrorKind::InvalidData)?,
            (false, _) => 0, // Its messages depend only on its id and token.
        };
        Ok(Call { is_paced, index, id, token })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::mcp::peer::Era;

    #[test]
    fn both_forms_find_the_same_call() {
        for form in [Form::Writes, Form::Reads] {
            let request = wire::call(Era::Stateless, ours::TOOL, 7, &json!({"index": 7}));
            let call = Call::of_request(&request, form).unwrap();
            assert!(call.is_paced && call.index == 7, "{form:?}");
            assert_eq!((call.id.as_json(), call.token.as_json()), ("1007", "1007"), "{form:?}");
            let request = wire::call(Era::Stateless, first::TOOL, 3, &json!({}));
            let call = Call::of_request(&request, form).unwrap();
            assert!(!call.is_paced, "{form:?}");
            assert_eq!((call.id.as_json(), call.token.as_json()), ("1003", "1003"), "{form:?}");
        }
    }

    #[test]
    fn a_request_is_read_in_any_spelling_and_a_wrong_one_is_refused() {
        let spelled = "{ \"params\" : {\"_meta\": {\"progressToken\": \"a\\u0062\"},
            \"arguments\": {}, \"name\": \"fir\\u0073t\"}, \"id\": -5, \"method\": \"tools/call\"}";
        let call = Call::of_request(spelled, Form::Reads).unwrap();
        assert_eq!((call.id.as_json(), call.token.as_json()), ("-5", "\"ab\""));
        for (from, to) in [
            ("tools/call", "tools/list"),
            ("fir\\u0073t", "second"),
            ("fir\\u0073t", ours::TOOL), // It has no index.
            ("-5", "null"),
            ("progressToken", "token"),
            ("\"method\"", "method"),
        ] {
            assert!(Call::of_request(&spelled.replace(from, to), Form::Reads).is_err(), "{to}");
        }
    }
}

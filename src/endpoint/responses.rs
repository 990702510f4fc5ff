//! Requests of OpenAI's Responses API: an execution, as its clients know it.

use crate::endpoint::ask::{ParsedHead, RoutedRequest};
use crate::endpoint::fields::{Field, Preset, Shape};
use crate::endpoint::front;
use crate::endpoint::parameters::TRACE;
use crate::endpoint::routes::{Body, Content, PLAIN, Route};
use crate::endpoint::{ApiCall, ApiError, ResponseAsk, ResponseCall};
use crate::limits;
use crate::wire::http1::{Method, Status};

/// The members of a request for a response that the server reads. Its clients send others.
const RESPOND: &[Field] = &[
    Field::new("input", Shape::Any, "The input: a text, or a list of items.").required(),
    Field::new(
        "model",
        Shape::Text { bytes_max: 256 },
        "The name of one of the server's models. Default, and for `agent`: the first one.",
    ),
    Field::new(
        "instructions",
        Shape::Either(&[
            Shape::Text { bytes_max: limits::AGENT_TEXT_BYTES_MAX as u64 },
            Shape::Null,
        ]),
        "The instructions that the model receives before everything else.",
    ),
    Field::new(
        "stream",
        Shape::Either(&[Shape::Flag, Shape::Null]),
        "The answer is a stream of events. Default: the whole response, once it has ended.",
    ),
    Field::new(
        "background",
        Shape::Either(&[Shape::Flag, Shape::Null]),
        "The answer does not wait for the end of the response.",
    ),
    Field::new(
        "previous_response_id",
        Shape::Either(&[Shape::Text { bytes_max: 64 }, Shape::Null]),
        "The response whose conversation goes on.",
    ),
];
/// The query of a request for a response that is there.
const RESPONSE_FOLLOWED: &[Field] = &[
    Field::new("stream", Shape::Choice(&["true", "false"]), "The answer is a stream of events."),
    Field::new(
        "starting_after",
        Shape::Number { min: 0, max: (1 << 53) - 1 },
        "The number of the last event that the client has.",
    ),
    Field::new(
        "include",
        Shape::Choice(&[front::ask::EXTENSIONS]),
        "Events that the specification does not have: output of tools while it grows, progress, \
         and gaps.",
    ),
    Field::new("include[]", Shape::Choice(&[front::ask::EXTENSIONS]), "The same."),
    Field::new("include_obfuscation", Shape::Choice(&["true", "false"]), "No effect."),
];
/// The query of a request for the items of an input.
const INPUT_ITEMS: &[Field] = &[
    Field::new("order", Shape::Choice(&["desc", "asc"]), "The order of the items.")
        .or(Preset::Text("desc")),
    Field::new("limit", Shape::Number { min: 1, max: 100 }, "No effect: all items are returned."),
];

pub(super) const CREATE: Route = Route {
    method: Method::Post,
    path: "/v1/responses",
    name: "createResponse",
    about: "Runs an agent for a client of the Responses API (Open Responses).",
    headers: TRACE,
    body: Some(Body {
        has_others: true,
        ..Body::new(RESPOND, limits::CONVERSATION_BODY_BYTES_MAX)
    }),
    answers: &[(Status::OK, Content::Json("Response"))],
    begin: |request| Ok(ParsedHead::Respond(request.parameters.trace())),
    ..PLAIN
};

pub(super) const GET: Route = Route {
    path: "/v1/responses/{response}",
    name: "getResponse",
    about: "Returns a response as it is now, or follows its events.",
    query: &[RESPONSE_FOLLOWED],
    answers: &[(Status::OK, Content::Json("Response"))],
    begin: |request| response_call(request, request.parameters.response_ask()?),
    ..PLAIN
};

pub(super) const CANCEL: Route = Route {
    method: Method::Post,
    path: "/v1/responses/{response}/cancel",
    name: "cancelResponse",
    about: "Cancels a response, and returns it once it has ended.",
    answers: &[(Status::OK, Content::Json("Response"))],
    begin: |request| response_call(request, ResponseAsk::Cancel),
    ..PLAIN
};

pub(super) const INPUT: Route = Route {
    path: "/v1/responses/{response}/input_items",
    name: "listInputItems",
    about: "Returns the input of a response, if it was short.",
    query: &[INPUT_ITEMS],
    answers: &[(Status::OK, Content::Json("InputItems"))],
    begin: |request| {
        let is_ascending = request.parameters.is_ascending()?;
        response_call(request, ResponseAsk::InputItems { is_ascending })
    },
    ..PLAIN
};

pub(super) const DELETE: Route = Route {
    method: Method::Delete,
    path: "/v1/responses/{response}",
    name: "deleteResponse",
    about: "Removes everything that is kept of a response that has ended.",
    answers: &[(Status::NO_CONTENT, Content::Empty)],
    begin: |request| Ok(ParsedHead::Call(ApiCall::Forget(request.response()?))),
    ..PLAIN
};

fn response_call(request: &RoutedRequest<'_>, ask: ResponseAsk) -> Result<ParsedHead, ApiError> {
    let execution = request.response()?;
    Ok(ParsedHead::Call(ApiCall::Response(ResponseCall { execution, ask })))
}

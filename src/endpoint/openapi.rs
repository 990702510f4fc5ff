//! The description of the whole interface (OpenAPI 3.1), generated once from the route table.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use crate::endpoint::answer::{BYTES, JSON};
use crate::endpoint::fields::{Field, Shape, example_of, object_schema};
use crate::endpoint::representation::StaticDocument;
use crate::endpoint::routes::{Body, Content, PATH_FIELDS, ROUTES, Route};
use crate::endpoint::{ERROR_CODES, a2a, durable, mcp, schemas};
use crate::wire::http1::{Method, Status};
use crate::wire::{ndjson, sse, write_json};

/// Returns the document.
pub(super) fn document() -> &'static StaticDocument {
    static DOCUMENT: LazyLock<StaticDocument> = LazyLock::new(|| {
        let mut bytes = Vec::new();
        write_json(&mut bytes, &describe());
        bytes.push(b'\n');
        StaticDocument::new(JSON, bytes)
    });
    &DOCUMENT
}

/// The tags: the first path that belongs to one, its name, and its description. The last one that
/// fits counts.
const TAGS: &[(&str, &str, &str)] = &[
    ("/", "server", "The server itself: its health, its metrics and this description."),
    ("/v1/tools", "tools", "The tools that can be run."),
    ("/v1/executions", "executions", "Runs of tools, their results and their states."),
    ("/v1/events", "streams", "Several executions on one connection."),
    ("/v1/progress", "progress", "The progress of executions, by their tokens."),
    ("/v1/agent", "agents", "Runs of agents, for front ends."),
    ("/v1/door", "shared memory", "Processes on the same machine that share a ring."),
    ("/v1/virtual-tools", "workers", "Tools whose calls are carried out by workers."),
    ("/v1/tool-calls", "workers", ""),
    ("/v1/tool-results", "workers", ""),
    ("/mcp", "mcp", "The Model Context Protocol."),
    ("/langgraph", "langgraph", "The protocol of LangGraph clients."),
];

fn tag_of(path: &str) -> &'static str {
    let fits = |(prefix, ..): &&(&str, &'static str, &str)| path.starts_with(prefix);
    TAGS.iter().rfind(fits).expect("every path begins with a slash").1
}

fn describe() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let item = paths.entry(route.path).or_insert_with(|| path_item(route.path));
        item[route.method.name().to_lowercase()] = operation(route);
    }
    let described = TAGS.iter().filter(|(_, _, about)| !about.is_empty());
    let tags: Vec<Value> =
        described.map(|(_, name, about)| json!({"name": name, "description": about})).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "streamdoor",
            "version": env!("CARGO_PKG_VERSION"),
            "description": env!("CARGO_PKG_DESCRIPTION"),
            "license": {"name": "MIT OR Apache-2.0", "identifier": env!("CARGO_PKG_LICENSE")},
        },
        "servers": [{"url": "/", "description": "This server."}],
        "tags": tags,
        "paths": paths,
        "components": {
            "schemas": schemas::all(),
            "responses": refusals(),
            "securitySchemes": {"bearer": {
                "type": "http",
                "scheme": "bearer",
                "description": "A token from the server's token file. It is required if the server \
                                has such a file.",
            }},
        },
        "security": [{"bearer": []}, {}],
    })
}

/// Returns the responses of all errors: those of this server, and those of the path `/mcp`.
fn refusals() -> Map<String, Value> {
    let mut all = Map::new();
    for status in ERROR_CODES.iter().map(|row| row.status) {
        let rows = ERROR_CODES.iter().filter(|row| row.status == status);
        let causes: Vec<String> =
            rows.map(|row| format!("- `{}`: {} {}", row.code, row.cause, row.fix)).collect();
        let text = format!("{}:\n\n{}", status.reason(), causes.join("\n"));
        all.insert(refusal_name(status, ""), response(&text, &Content::Json("Error")));
        all.insert(refusal_name(status, mcp::PATH), response(&text, &Content::Json("McpError")));
        all.insert(refusal_name(status, a2a::PATH), response(&text, &Content::Json("A2aError")));
    }
    all.retain(|name, _| ROUTES.iter().any(|route| has_refusal(route, name)));
    all
}

fn refusal_name(status: Status, path: &str) -> String {
    format!("{}{}", error_name(path), status.code())
}

/// Returns the name of the schema of errors at this path.
fn error_name(path: &str) -> &'static str {
    match path {
        mcp::PATH => "McpError",
        _ if path.starts_with(a2a::PATH) => "A2aError",
        _ => "Error",
    }
}

fn has_refusal(route: &Route, name: &str) -> bool {
    refusals_of(route).into_iter().any(|status| refusal_name(status, route.path) == name)
}

/// Returns the statuses of the errors that a request may get, besides those of malformed HTTP.
fn refusals_of(route: &Route) -> Vec<Status> {
    let is_stream = route.answers.iter().any(|(_, content)| {
        matches!(content, Content::Events | Content::WorkerEvents | Content::Mcp | Content::A2a)
    });
    let starts = route.body.is_some() && !route.path.contains("/acks");
    let is_of_one = route.path.contains('{');
    let is_read = matches!(route.method, Method::Get) && is_of_one;
    let table = [
        (Status::BAD_REQUEST, true),
        (Status::UNAUTHORIZED, !route.is_open),
        (Status::FORBIDDEN, true),
        (Status::NOT_FOUND, is_of_one || starts || route.path == mcp::PATH || is_stream),
        (Status::NOT_ACCEPTABLE, is_stream),
        (Status::CONFLICT, is_stream || is_of_one || starts),
        (Status::GONE, is_read || route.path.contains("results")),
        (Status::LENGTH_REQUIRED, route.body.is_some()),
        (Status::CONTENT_TOO_LARGE, route.body.is_some()),
        (Status::UNSUPPORTED_MEDIA_TYPE, route.body.is_some()),
        (Status::RANGE_NOT_SATISFIABLE, route.headers.iter().any(|field| field.name == "Range")),
        (Status::MISDIRECTED_REQUEST, is_of_owner(route)),
        (Status::TOO_MANY_REQUESTS, starts || is_stream),
        (Status::INTERNAL_SERVER_ERROR, starts),
        (Status::SERVICE_UNAVAILABLE, true),
    ];
    table.into_iter().filter(|(_, has)| *has).map(|(status, _)| status).collect()
}

/// True if only the node of an execution or a stream carries out some requests of the route.
fn is_of_owner(route: &Route) -> bool {
    let is_own_part = ["/door", "/subscribers/", "/tool-results/"];
    route.path == durable::ROUTE
        || matches!(route.method, Method::Delete) && route.path.ends_with("/{execution}")
        || is_own_part.iter().any(|part| route.path.contains(part))
            && !route.path.contains("/door/")
}

/// Returns what all operations of a path have in common: the parameters in the path.
fn path_item(path: &str) -> Value {
    let named = PATH_FIELDS.iter().filter(|field| path.contains(&format!("{{{}}}", field.name)));
    let parameters: Vec<Value> = named.map(|field| parameter(field, "path")).collect();
    match parameters.is_empty() {
        true => json!({}),
        false => json!({ "parameters": parameters }),
    }
}

fn operation(route: &Route) -> Value {
    let in_query = route.query.iter().copied().flatten().map(|field| parameter(field, "query"));
    let in_head = route.headers.iter().map(|field| parameter(field, "header"));
    let parameters: Vec<Value> = in_query.chain(in_head).collect();
    let summary = route.about.split_once(". ").map_or(route.about, |(first, _)| first);
    let mut operation = json!({
        "operationId": route.name,
        "tags": [tag_of(route.path)],
        "summary": summary.trim_end_matches('.'),
        "description": route.about,
    });
    if route.is_open {
        operation["security"] = json!([]);
    }
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(body) = &route.body {
        operation["requestBody"] = request_body(route, body);
    }
    let mut responses = Map::new();
    for (status, content) in route.answers {
        let mut response = response(status.reason(), content);
        if let Content::Json("Created") = content {
            response["links"] = links();
        }
        responses.insert(status.code().to_string(), response);
    }
    for status in refusals_of(route) {
        let name = refusal_name(status, route.path);
        let reference = json!({"$ref": format!("#/components/responses/{name}")});
        responses.insert(status.code().to_string(), reference);
    }
    let error = error_name(route.path);
    let why = "The reason why the request failed.";
    responses.insert("default".into(), response(why, &Content::Json(error)));
    operation["responses"] = responses.into();
    operation
}

fn request_body(route: &Route, body: &Body) -> Value {
    let mut schema = object_schema(body.fields);
    if body.has_others {
        let schema = schema.as_object_mut().expect("a schema is an object");
        schema.insert("additionalProperties".into(), true.into());
    }
    let example = match route.path {
        mcp::PATH => json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}),
        path if path.ends_with("/commands") => json!({
            "id": 1,
            "method": "run.start",
            "params": {
                "assistant_id": "agent",
                "input": {"messages": [{"type": "human", "content": "Say hello."}]},
            },
        }),
        _ => example_of(body.fields),
    };
    let mut description = format!("At most {} bytes.", body.bytes_max);
    let mut content = json!({JSON: {"schema": schema, "example": example}});
    if body.has_others {
        description += " Additional members from front-end clients are ignored.";
    }
    if body.takes_lines {
        let text = "Any number of such objects, one per line.";
        description += " If the body has several objects, the limit applies to each.";
        content[ndjson::MEDIA_TYPE] = json!({
            "schema": {"type": "string", "description": text},
            "example": format!("{example}\n"),
        });
    }
    json!({"required": true, "description": description, "content": content})
}

/// Returns the operations that continue with an execution that was created.
fn links() -> Value {
    let names = [
        ("inspect", "inspectExecution", "The state of the execution."),
        ("follow", "followExecution", "The stream of the execution."),
        ("result", "getResult", "The outcome of the execution."),
        ("output", "getOutput", "The payload of the execution."),
        ("cancel", "cancelExecution", "The end of the execution."),
    ];
    let link = |(name, operation, about): (&str, &str, &str)| {
        assert!(ROUTES.iter().any(|route| route.name == operation));
        let parameters = json!({"execution": "$response.body#/execution"});
        let link =
            json!({"operationId": operation, "description": about, "parameters": parameters});
        (name.to_owned(), link)
    };
    names.map(link).into_iter().collect()
}

fn parameter(field: &Field, place: &str) -> Value {
    let mut schema = field.schema();
    schema.as_object_mut().and_then(|schema| schema.remove("description"));
    let mut parameter = json!({
        "name": field.name,
        "in": place,
        "description": field.about,
        "schema": schema,
    });
    if field.is_required || field.preset.is_some() || !matches!(place, "query") {
        parameter["example"] = field.example();
    }
    if field.is_required {
        parameter["required"] = true.into();
    }
    if matches!(field.shape, Shape::Executions | Shape::Kinds | Shape::ToolNames) {
        parameter["style"] = "form".into(); // Separated by commas.
        parameter["explode"] = false.into();
    }
    parameter
}

fn response(description: &str, content: &Content) -> Value {
    let reference = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    let mut response = json!({ "description": description });
    // OpenAPI 3.1 has no schema for the items of a stream. Programs read the schema of
    // `text/event-stream` as that of one event.
    let lines = |media_type: &str, text: &str, name: &str| {
        let mut schema = json!({
            "type": "string",
            "description": text,
            "contentMediaType": JSON,
            "contentSchema": reference(name),
        });
        if media_type == sse::MEDIA_TYPE {
            let names = ["event", "id"].map(|name| (name.to_owned(), json!({"type": "string"})));
            let mut properties: Map<String, Value> = names.into_iter().collect();
            properties.insert("retry".to_owned(), json!({"type": "integer"}));
            properties.insert("data".to_owned(), schema);
            schema = json!({"type": "object", "description": text, "properties": properties});
        }
        (media_type.to_owned(), json!({ "schema": schema }))
    };
    let content: Map<String, Value> = match content {
        Content::Empty => return response,
        Content::Json(name) => {
            [(JSON.to_owned(), json!({"schema": reference(name)}))].into_iter().collect()
        }
        Content::Events => {
            let text = "Each event is an `Event`, or an event in the format of a front end.";
            let mut events = lines(sse::MEDIA_TYPE, text, "Event");
            // Those of front ends have schemas of their own, and some of them are no JSON.
            events.1["schema"]["properties"]["data"] =
                json!({"type": "string", "description": text});
            [events, lines(ndjson::MEDIA_TYPE, text, "Event")].into_iter().collect()
        }
        Content::WorkerEvents => {
            let text = "Each event is a `WorkerEvent`.";
            [lines(sse::MEDIA_TYPE, text, "WorkerEvent")].into_iter().collect()
        }
        Content::DoorLines => {
            let text = "Each line is a `DoorLine`. The first one is a grant.";
            [lines(ndjson::MEDIA_TYPE, text, "DoorLine")].into_iter().collect()
        }
        Content::Mcp => {
            let message = json!({"schema": reference("McpMessage")});
            let events = lines(sse::MEDIA_TYPE, "Each event is an MCP message.", "McpMessage");
            [(JSON.to_owned(), message), events].into_iter().collect()
        }
        Content::A2a => {
            let message = json!({"schema": reference("A2aMessage")});
            let events = lines(sse::MEDIA_TYPE, "Each event is an answer.", "A2aMessage");
            [(JSON.to_owned(), message), events].into_iter().collect()
        }
        Content::Bytes => [(BYTES.to_owned(), json!({}))].into_iter().collect(),
        Content::Text(media_types) => {
            let text = |name: &&str| {
                let is_json = name.ends_with("+json");
                let schema = if is_json { json!({}) } else { json!({"type": "string"}) };
                ((*name).to_owned(), json!({"schema": schema}))
            };
            media_types.iter().map(text).collect()
        }
    };
    response["content"] = content.into();
    response
}

//! The description of the whole interface (OpenAPI 3.1), generated once from the route table.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use crate::endpoint::answer::JSON;
use crate::endpoint::fields::{Field, Shape, object_schema};
use crate::endpoint::routes::{Content, PATH_FIELDS, ROUTES, Route};
use crate::endpoint::{mcp, schemas};
use crate::wire::{ndjson, sse, write_json};

/// Returns the document as bytes.
pub(super) fn document() -> &'static [u8] {
    static DOCUMENT: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut bytes = Vec::new();
        write_json(&mut bytes, &describe());
        bytes.push(b'\n');
        bytes
    });
    &DOCUMENT
}

fn describe() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let item = paths.entry(route.path).or_insert_with(|| path_item(route.path));
        item[route.method.name().to_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "streamdoor",
            "version": env!("CARGO_PKG_VERSION"),
            "description": env!("CARGO_PKG_DESCRIPTION"),
            "license": {"name": "MIT OR Apache-2.0", "identifier": env!("CARGO_PKG_LICENSE")},
        },
        "paths": paths,
        "components": {
            "schemas": schemas::all(),
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
    let mut operation = json!({ "operationId": route.name, "summary": route.summary });
    if route.is_open {
        operation["security"] = json!([]);
    }
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(body) = &route.body {
        let mut schema = object_schema(body.fields);
        if body.has_others {
            let schema = schema.as_object_mut().expect("a schema is an object");
            schema.insert("additionalProperties".into(), true.into());
        }
        let mut description = format!("At most {} bytes.", body.bytes_max);
        let mut content = json!({JSON: {"schema": schema}});
        if body.has_others {
            description += " Additional members from front-end clients are ignored.";
        }
        if body.takes_lines {
            let text = "Any number of such objects, one per line.";
            description += " If the body has several objects, the limit applies to each.";
            content[ndjson::MEDIA_TYPE] =
                json!({"schema": {"type": "string", "description": text}});
        }
        operation["requestBody"] =
            json!({"required": true, "description": description, "content": content});
    }
    let mut responses = Map::new();
    for (status, content) in route.answers {
        responses.insert(status.code().to_string(), response(status.reason(), content));
    }
    let mut refusal = |status: &str, why: &str| {
        let name = if route.path == mcp::PATH { "McpError" } else { "Error" };
        responses.insert(status.into(), response(why, &Content::Json(name)));
    };
    refusal("401", "The request has no token, or an unknown one.");
    refusal("403", "The host name or the origin of the page is not allowed.");
    if route.body.is_some() {
        refusal("415", "The body is not application/json.");
    }
    refusal("default", "The reason why the request failed.");
    operation["responses"] = responses.into();
    operation
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
    let events = |media_type: &str| {
        let text = "Each event is an `Event`, or an event in the format of a front end.";
        (media_type.to_owned(), json!({"schema": {"type": "string", "description": text}}))
    };
    let content: Map<String, Value> = match content {
        Content::Empty => return response,
        Content::Json(name) => {
            [(JSON.to_owned(), json!({"schema": reference(name)}))].into_iter().collect()
        }
        Content::Events => [sse::MEDIA_TYPE, ndjson::MEDIA_TYPE].map(events).into_iter().collect(),
        Content::WorkerEvents => {
            let text = "Each event is a `WorkerEvent`.";
            let schema = json!({"schema": {"type": "string", "description": text}});
            [(sse::MEDIA_TYPE.to_owned(), schema)].into_iter().collect()
        }
        Content::DoorLines => {
            let text = "Each line is a `DoorLine`. The first one is a grant.";
            let schema = json!({"schema": {"type": "string", "description": text}});
            [(ndjson::MEDIA_TYPE.to_owned(), schema)].into_iter().collect()
        }
        Content::Mcp => {
            let text = "Each event is an MCP message.";
            let events = json!({"schema": {"type": "string", "description": text}});
            let message = json!({"schema": reference("McpMessage")});
            [(JSON.to_owned(), message), (sse::MEDIA_TYPE.to_owned(), events)].into_iter().collect()
        }
        Content::Bytes => {
            [("application/octet-stream".to_owned(), json!({}))].into_iter().collect()
        }
        Content::Text(media_types) => {
            let text = |name: &&str| ((*name).to_owned(), json!({"schema": {"type": "string"}}));
            media_types.iter().map(text).collect()
        }
    };
    response["content"] = content.into();
    response
}

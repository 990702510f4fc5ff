//! The description of the interface is complete and true.

use serde_json::{Map, Value};

use super::exchange::{answered, get};
use super::openapi;
use super::routes::ROUTES;

pub fn document() -> Value {
    serde_json::from_slice(openapi::document().plain()).expect("the document is JSON")
}

/// Calls `look` with every object in a value.
fn each_object<'v>(value: &'v Value, look: &mut dyn FnMut(&'v Map<String, Value>)) {
    match value {
        Value::Object(members) => {
            look(members);
            members.values().for_each(|member| each_object(member, look));
        }
        Value::Array(values) => values.iter().for_each(|member| each_object(member, look)),
        _ => {}
    }
}

#[test]
fn the_description_names_every_route_and_nothing_else() {
    let document = document();
    assert_eq!(answered(&get("/openapi.json")).json(), document);
    assert_eq!(document["openapi"], "3.1.0");
    let mut names = Vec::new();
    for route in ROUTES {
        let operation = &document["paths"][route.path][route.method.name().to_lowercase()];
        assert_eq!(operation["operationId"], route.name, "{}", route.path);
        assert_eq!(operation["description"], route.about);
        let summary = operation["summary"].as_str().unwrap();
        assert!(route.about.starts_with(summary) && !summary.ends_with('.'), "{summary}");
        let tag = &operation["tags"][0];
        let tags = document["tags"].as_array().unwrap();
        assert_eq!(tags.iter().filter(|known| known["name"] == *tag).count(), 1, "{tag}");
        assert_eq!(operation.get("requestBody").is_some(), route.body.is_some());
        let responses = operation["responses"].as_object().expect("the operation has responses");
        for (status, _) in route.answers {
            assert!(responses.contains_key(&status.code().to_string()), "{}", route.name);
        }
        for status in ["400", "403", "503", "default"] {
            assert!(responses.contains_key(status), "{} {status}", route.name);
        }
        for response in responses.values().filter(|response| response.get("$ref").is_none()) {
            assert!(response["description"].as_str().is_some_and(|text| !text.is_empty()));
        }
        names.push(route.name);
    }
    let count: usize = document["paths"]
        .as_object()
        .unwrap()
        .values()
        .map(|item| item.as_object().unwrap().keys().filter(|key| *key != "parameters").count())
        .sum();
    assert_eq!(count, ROUTES.len());
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), ROUTES.len(), "a name occurs twice");
}

#[test]
fn every_parameter_is_described_once_and_those_of_paths_are_required() {
    let document = document();
    for (path, item) in document["paths"].as_object().unwrap() {
        let shared = item["parameters"].as_array().cloned().unwrap_or_default();
        let in_path: Vec<&str> = shared.iter().map(|each| each["name"].as_str().unwrap()).collect();
        let parts = path.split('/').filter_map(|part| part.strip_prefix('{'));
        let expected: Vec<&str> = parts.map(|part| part.split_once('}').unwrap().0).collect();
        assert_eq!(in_path, expected, "{path}");
        assert!(shared.iter().all(|each| each["in"] == "path" && each["required"] == true));
        for operation in item.as_object().unwrap().values().filter(|each| each.is_object()) {
            let mut seen = Vec::new();
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                assert!(matches!(parameter["in"].as_str(), Some("query" | "header")));
                assert!(parameter["schema"].is_object());
                assert!(parameter["description"].as_str().is_some_and(|text| text.ends_with('.')));
                assert!(!seen.contains(&&parameter["name"]), "{path}: {parameter} twice");
                seen.push(&parameter["name"]);
            }
        }
    }
}

#[test]
fn every_reference_leads_somewhere_and_every_schema_is_of_use() {
    let document = document();
    let mut used: Vec<String> = Vec::new();
    each_object(&document, &mut |object| {
        let Some(Value::String(reference)) = object.get("$ref") else { return };
        let pointer = reference.strip_prefix('#').expect("the reference is within this document");
        assert!(document.pointer(pointer).is_some(), "{reference}");
        used.push(pointer.rsplit('/').next().unwrap().to_owned());
    });
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for name in schemas.keys() {
        assert!(used.contains(name), "{name} is not used");
    }
}

#[cfg(feature = "tools")]
mod checked {
    use serde_json::json;

    use super::super::bounds_tests::bad_bodies;
    use super::super::call_tests::{id, token};
    use super::super::documents::{Clock, Listed};
    use super::super::documents_tests::{bare, full, subscribers};
    use super::super::{
        ApiError, ProduceGrant, ReadGrant, documents, execute, mcp, virtual_tool, workers,
    };
    use super::*;
    use crate::base::{Handle, Instant, SubscriberId};
    use crate::engine::policy::Cursor;
    use crate::engine::{AcknowledgeError, Hold, Status, Timeouts};
    use crate::memory::ClockAnchor;
    use crate::stream::{
        DetachReason, ExecutionState, Exit, Kind, Kinds, LagLimit, Outcome, Policy, Terms, Totals,
    };
    use crate::tool::Tools;
    use crate::trace::TraceContext;
    use crate::wire::events;

    /// Returns a validator that also refuses members which the description does not name. Clients
    /// have to ignore those.
    fn validator(schema: Value) -> jsonschema::Validator {
        let mut root = document();
        for (name, schema) in root["components"]["schemas"].as_object_mut().unwrap() {
            let is_open = ["PartEvent", "Tool", "VirtualTool"].contains(&name.as_str());
            if schema.get("properties").is_some() && !is_open {
                schema["additionalProperties"] = false.into();
            }
        }
        root.as_object_mut().unwrap().retain(|name, _| name == "components");
        root["allOf"] = json!([schema]);
        let options = jsonschema::options().with_draft(jsonschema::Draft::Draft202012);
        options.build(&root).expect("the schema is valid")
    }

    fn assert_is(name: &str, told: &Value) {
        let schema = json!({"$ref": format!("#/components/schemas/{name}")});
        let errors: Vec<String> =
            validator(schema).iter_errors(told).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{name}: {errors:?} in {told}");
    }

    #[test]
    fn every_example_is_allowed_by_its_schema() {
        let document = document();
        let mut count = 0;
        let mut check = |object: &Map<String, Value>| {
            let (Some(example), Some(schema)) = (object.get("example"), object.get("schema"))
            else {
                return;
            };
            let errors: Vec<String> = validator(schema.clone())
                .iter_errors(example)
                .map(|error| error.to_string())
                .collect();
            assert!(errors.is_empty(), "{errors:?} in {example}");
            count += 1;
        };
        each_object(&document, &mut check);
        assert!(count > 40, "{count}");
        for path in document["paths"].as_object().unwrap().values() {
            for operation in path.as_object().unwrap().values() {
                let body = &operation["requestBody"]["content"]["application/json"];
                assert!(body.is_null() || body.get("example").is_some(), "{operation}");
            }
        }
        let post = &document["paths"]["/v1/executions"]["post"];
        let example = &post["requestBody"]["content"]["application/json"]["example"];
        let asked = execute::execute(example.to_string().as_bytes(), None).unwrap();
        let tools = Tools::built_in();
        assert!(tools.specs().any(|spec| spec.name == asked.tool), "{example}");
    }

    #[test]
    fn documents_are_what_the_description_says() {
        let anchor = ClockAnchor { wall_us: 1 << 50, mono_ns: 1 << 40 };
        let clock = Clock { now: Instant::from_nanos(1 << 40), anchor };
        let texts = (Some("a"), Some("[1]"));
        let held = Status { gated: true, holds: true, ..bare() };
        for status in [bare(), full(), held] {
            let dates = clock.dates_of(&status);
            let listed = Listed::of(&status, "t", dates);
            let told =
                documents::execution(&status, "t", texts, &subscribers(), None, (dates, clock));
            assert_is("Execution", &told);
            assert_is("Executions", &documents::executions([listed], clock));
            assert_is("Result", &documents::result(&status, b"\xff"));
            assert_is("TokenProgress", &documents::progress(token(), &status, texts));
            let row = (token(), id(1), status.progress, texts);
            assert_is("AllProgress", &documents::all_progress([row]));
            for hold in [Hold::Newest, Hold::default()] {
                let (token, state) = (status.token, status.state);
                let created = documents::created(id(1), token, "t", state, hold, Some("x"));
                assert_is("Created", &crate::api::spelled(&created));
            }
        }
        assert_is("State", &documents::state(id(1), ExecutionState::Draining));
        assert_is("Health", &documents::health("ok"));
        assert_is("Version", &documents::version());
        assert_is("Index", &documents::index());
        let tools = Tools::built_in();
        assert_is("Tools", &documents::tools(tools.specs().map(|spec| &**spec)));
        let error = ApiError::from(AcknowledgeError::NotGiven { next_seq: 4 });
        assert_is("Error", &error.to_json());
        assert_is("Error", &ApiError::shutting_down().to_json());
        let error = ApiError::shutting_down().field("f").limit(3);
        assert_is("McpError", &serde_json::from_slice(&mcp::error_body(&error)).unwrap());
        let about = json!({"description": "d", "input_schema": {}, "coalesce": {}});
        let tool = virtual_tool("t", &about).unwrap().to_json();
        assert_is("VirtualTool", &tool);
        assert_is("VirtualTools", &json!({ "virtual_tools": [tool] }));
        assert_is("Delivered", &documents::delivered(false));
        assert_is("Delivered", &documents::delivered(true));
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let (arguments, timeouts) = (json!({"a": 1}), Timeouts::default());
        for trace in
            [TraceContext::default(), TraceContext::parse(Some(parent), Some("a=1"), Some("b=2"))]
        {
            let call = documents::tool_call(id(1), "t", &arguments, &timeouts, 1, &trace);
            assert_is("WorkerEvent", &serde_json::from_str(&call).unwrap());
        }
        let cancelled = documents::cancelled_call(id(1), Outcome::TimedOut);
        assert_is("WorkerEvent", &serde_json::from_str(&cancelled).unwrap());
        for line in door_lines() {
            assert_is("DoorLine", &line);
        }
        let wrong = json!({"execution": id(1).to_string(), "state": "asleep"});
        assert!(!validator(json!({"$ref": "#/components/schemas/State"})).is_valid(&wrong));
    }

    /// Returns all kinds of lines for a process that shares memory.
    fn door_lines() -> Vec<Value> {
        let limit = LagLimit { chunks: 10, bytes: 9 };
        let kinds = Kinds::NONE.with(Kind::Stdout);
        let read = ReadGrant {
            execution: id(1),
            subscriber: SubscriberId(Handle { index: 1, generation: 2 }),
            terms: Terms { policy: Policy::Drop, limit, kinds },
            cursor: Cursor::new(3, Totals { chunks: 2, bytes: 20 }),
            slot: 63,
            wall_us: 1,
            mono_ns: 2,
        };
        let produce = ProduceGrant { execution: id(1), token: None };
        let token = token().to_string();
        let exit = Some(Exit::Signal(9));
        vec![
            documents::granted(read.to_json(), "t", Some(&token)),
            documents::granted(produce.to_json(), "t", None),
            documents::door_go(),
            documents::door_detached(DetachReason::Stall),
            documents::door_ended(Outcome::Failed, Some("e"), exit),
            documents::door_ended(Outcome::Completed, None, None),
        ]
    }

    #[test]
    fn events_are_what_the_description_says() {
        let (execution, t) = (&*id(1).to_string(), &*token().to_string());
        let end = |state| {
            events::WireEvent::End(events::EndEvent {
                execution,
                state,
                chunks: 1,
                bytes: 2,
                missed_chunks: 3,
                missed_bytes: 4,
                execution_chunks: 4,
                execution_bytes: 6,
                duration_us: 5,
                exit: Some(crate::stream::Exit::Code(1)),
                error: Some("e"),
            })
        };
        let all = [
            events::WireEvent::Started(events::StartedEvent {
                execution,
                subscriber: "s1.1",
                tool: "t",
                token: Some(t),
                policy: "block",
                limits: events::Limits { chunks: 1, bytes: Some(2) },
                from_seq: 1,
                replay: Some(events::Replay {
                    chunks: 1,
                    bytes: 2,
                    until_acknowledged: true,
                    grace_ms: 3,
                }),
            }),
            events::WireEvent::Chunk(events::ChunkEvent {
                execution,
                seq: 1,
                total_chunks: Some(2),
                kind: "stdout",
                key: Some(1),
                offset: 0,
                data: b"\xff",
                timestamp_us: 1,
                mono_ns: 2,
            }),
            events::WireEvent::Gap(events::GapEvent {
                execution,
                from_seq: 1,
                to_seq: 2,
                chunk_count: 2,
                byte_count: 3,
                reason: "lag",
            }),
            events::WireEvent::Progress(events::ProgressEvent {
                execution,
                token: Some(t),
                progress: 1.0,
                total: Some(2.0),
                percentage: Some(50.0),
                message: Some("m"),
                context: Some("{}"),
            }),
            end(events::EndState::Ended("completed")),
            end(events::EndState::Detached { reason: "lag", resume_from: 7 }),
        ];
        for event in all {
            let mut line = Vec::new();
            event.write_line(&mut line);
            assert_is("Event", &serde_json::from_slice(&line).unwrap());
        }
    }

    /// Checks that the schema of `POST /v1/executions` accepts and refuses the same bodies as the
    /// server.
    #[test]
    fn the_description_refuses_the_bodies_that_are_refused() {
        let good = json!({"tool": "t"});
        let post = &document()["paths"]["/v1/executions"]["post"];
        let schema = &post["requestBody"]["content"]["application/json"]["schema"];
        let validator = validator(schema.clone());
        let ms = json!({"first_chunk_ms": 1, "inactivity_ms": null});
        let taken = [
            ("policy", json!("block")),
            ("policy", json!({"name": "drop", "max_chunks": 1})),
            ("start", json!({"after_subscribers": 1, "deadline_ms": 1})),
            ("hold", json!({"until_read_ms": 1})),
            ("timeouts", ms),
            ("retention_ms", json!(0)),
        ];
        for (name, value) in taken {
            let mut body = good.clone();
            body[name] = value;
            assert!(validator.is_valid(&body), "{body}");
            assert!(execute::execute(body.to_string().as_bytes(), None).is_ok(), "{body}");
        }
        for (path, body) in bad_bodies(execute::EXECUTE, &good) {
            assert!(!validator.is_valid(&body), "{path}: {body}");
        }
    }

    #[test]
    fn the_description_refuses_what_workers_must_not_say() {
        let paths = &document()["paths"];
        let schema = |path: &str, method: &str| {
            let body = &paths[path][method]["requestBody"];
            validator(body["content"]["application/json"]["schema"].clone())
        };
        let tool = json!({"description": "d", "input_schema": {"type": "object"}});
        let of_tools = schema("/v1/virtual-tools/{name}", "put");
        assert!(of_tools.is_valid(&tool));
        for (path, body) in bad_bodies(workers::VIRTUAL_TOOL, &tool) {
            assert!(!of_tools.is_valid(&body), "{path}: {body}");
        }
        let part = json!({"tool_call_id": id(1).to_string(), "content": [null], "seq": 1});
        let of_parts = schema("/v1/tool-results/stream", "post");
        assert!(of_parts.is_valid(&part));
        for (path, body) in bad_bodies(workers::PART, &part) {
            assert!(!of_parts.is_valid(&body), "{path}: {body}");
        }
    }
}

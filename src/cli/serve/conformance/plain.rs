//! Tools that answer with text, pictures, sounds or an error, or slowly.

use std::time::Duration;

use serde_json::{Value, json};
use streamdoor::stream::Kind;
use streamdoor::tool::{Output, Report, SpecError, TaskSupport, ToolError, ToolSpec, Tools};

use super::{IMAGE, SOUND, say, taking};

/// The time that the suite expects of each step of a slow tool.
const STEP: Duration = Duration::from_millis(50);

pub fn add(tools: &mut Tools) -> Result<(), SpecError> {
    add_contents(tools)?;
    add_slow(tools)?;
    let failing = ToolSpec::new("test_error_handling", "Fails.");
    tools.insert_closure(failing, |_, _| {
        Err(ToolError::new("This tool intentionally returns an error for testing"))
    })?;
    let schema = ToolSpec {
        arguments: full_schema(),
        ..ToolSpec::new("json_schema_2020_12_tool", "Takes arguments with a rich schema.")
    };
    tools
        .insert_closure(schema, |arguments, out| say(out, &format!("It was given {arguments}")))?;
    let value = json!({"value": {"type": "string", "x-mcp-header": "Value"}});
    let mirrored =
        taking("test_x_mcp_header", "Takes an argument that is also in a header.", value);
    tools.insert_closure(mirrored, |arguments, out| {
        say(out, arguments["value"].as_str().unwrap_or_default())
    })?;
    let name = json!({"name": {"type": "string"}});
    let greet = taking("greet", "Greets, at once and never as a task.", name);
    tools
        .insert_closure(ToolSpec { task_support: TaskSupport::Forbidden, ..greet }, |given, out| {
            say(out, &format!("Hello, {}!", given["name"].as_str().unwrap_or_default()))
        })
}

fn add_contents(tools: &mut Tools) -> Result<(), SpecError> {
    let image = || json!({"type": "image", "data": IMAGE, "mimeType": "image/png"});
    let resource = |uri: &str, mime_type: &str, text: &str| {
        let resource = json!({"uri": uri, "mimeType": mime_type, "text": text});
        json!({"type": "resource", "resource": resource})
    };
    let text = "This is an embedded resource content.";
    let embedded = resource("test://embedded-resource", "text/plain", text);
    let data = json!({"test": "data", "value": 123}).to_string();
    let mixed = resource("test://mixed-content-resource", "application/json", &data);
    let text = json!({"type": "text", "text": "Multiple content types test:"});
    let table = [
        ("test_image_content", "Answers with a picture.", vec![image()]),
        (
            "test_audio_content",
            "Answers with a sound.",
            vec![json!({"type": "audio", "data": SOUND, "mimeType": "audio/wav"})],
        ),
        ("test_embedded_resource", "Answers with a resource.", vec![embedded]),
        ("test_multiple_content_types", "Answers with all kinds.", vec![text, image(), mixed]),
    ];
    for (name, description, blocks) in table {
        let blocks: Vec<String> = blocks.iter().map(Value::to_string).collect();
        tools.insert_closure(ToolSpec::new(name, description), move |_, out| {
            for block in &blocks {
                out.send_as(Kind::Content, Kind::Content as u8, block.as_bytes())?;
            }
            Ok(())
        })?;
    }
    tools.insert_closure(ToolSpec::new("test_simple_text", "Answers with text."), |_, out| {
        say(out, "This is a simple text response for testing.")
    })
}

fn add_slow(tools: &mut Tools) -> Result<(), SpecError> {
    for name in ["test_tool_with_logging", "test_logging_tool"] {
        tools.insert_closure(ToolSpec::new(name, "Logs its steps."), |_, out| {
            log(out, "Tool execution started")?;
            std::thread::sleep(STEP);
            log(out, "Tool processing data")?;
            std::thread::sleep(STEP);
            log(out, "Tool execution completed")?;
            say(out, "Tool with logging executed successfully")
        })?;
    }
    let progress = ToolSpec::new("test_tool_with_progress", "Reports its progress.");
    tools.insert_closure(progress, |_, out| {
        for step in [0, 50, 100] {
            let report = Report::amount(f64::from(step), Some(100.0));
            out.report(report.with_message(&format!("Completed step {step} of 100")));
            std::thread::sleep(STEP);
        }
        say(out, "Tool with progress executed successfully")
    })?;
    let reconnection = ToolSpec {
        polls: true,
        ..ToolSpec::new(
            "test_reconnection",
            "Closes the stream, so that the caller reconnects for the result.",
        )
    };
    tools.insert_closure(reconnection, |_, out| {
        std::thread::sleep(2 * STEP);
        say(out, "Reconnection test completed successfully.")
    })
}

fn log(out: &mut Output, line: &str) -> Result<(), ToolError> {
    Ok(out.send_as(Kind::Log, Kind::Log as u8, line.as_bytes())?)
}

/// Returns exactly the schema that the suite expects.
fn full_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            },
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": false,
    })
}

//! The tools with which a model opens a stream, reads it and closes it.

use serde_json::{Map, Value, json};

use crate::limits;
use crate::tool::{TaskSupport, ToolSpec};
use crate::wire::json::whole_number;

/// The tool that opens a stream, ...
pub const STREAM_OPEN: &str = "stream_open";
/// ... the one that reads it, ...
pub const STREAM_READ: &str = "stream_read";
/// ... and the one that closes it.
pub const STREAM_CLOSE: &str = "stream_close";

/// A call of one of the stream tools.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamCall {
    /// `stream_open`: runs a tool and returns its result as a stream.
    Open {
        /// The name of the tool.
        tool: String,
        /// The arguments of the call.
        arguments: Map<String, Value>,
    },
    /// `stream_read`
    Read {
        /// The id of the stream.
        stream_id: String,
        /// The offset to read from; `None` for the end of the last piece.
        offset: Option<u64>,
    },
    /// `stream_close`
    Close {
        /// The id of the stream.
        stream_id: String,
    },
}

impl StreamCall {
    /// Parses a call. `None` if `name` is none of the stream tools.
    ///
    /// # Errors
    /// The fault of the arguments, for the model to read.
    pub fn parse(name: &str, arguments: &Map<String, Value>) -> Option<Result<StreamCall, String>> {
        let known: &[&str] = match name {
            STREAM_OPEN => &["tool", "arguments"],
            STREAM_READ => &["stream_id", "offset"],
            STREAM_CLOSE => &["stream_id"],
            _ => return None,
        };
        Some(StreamCall::parse_arguments(name, known, arguments))
    }

    fn parse_arguments(
        name: &str,
        known: &[&str],
        arguments: &Map<String, Value>,
    ) -> Result<StreamCall, String> {
        if let Some(unknown) = arguments.keys().find(|key| !known.contains(&key.as_str())) {
            return Err(format!("argument `{unknown}`: is unknown"));
        }
        let text = |name: &str| match arguments.get(name) {
            Some(Value::String(text)) if text.len() <= limits::MCP_ID_BYTES_MAX => Ok(text.clone()),
            Some(_) => Err(format!("argument `{name}`: is not a short string")),
            None => Err(format!("argument `{name}`: is missing")),
        };
        match name {
            STREAM_OPEN => {
                let inner = match arguments.get("arguments") {
                    None | Some(Value::Null) => Map::new(),
                    Some(Value::Object(inner)) => inner.clone(),
                    Some(_) => return Err("argument `arguments`: is not an object".to_owned()),
                };
                let tool = text("tool")?;
                match is_tool(&tool) {
                    true => Err("argument `tool`: is itself a tool for streams".to_owned()),
                    false => Ok(StreamCall::Open { tool, arguments: inner }),
                }
            }
            STREAM_READ => {
                let offset = match arguments.get("offset") {
                    None | Some(Value::Null) => None,
                    Some(offset) => match whole_number(offset) {
                        Some(offset) => Some(offset),
                        None => {
                            return Err("argument `offset`: is not a number of bytes".to_owned());
                        }
                    },
                };
                Ok(StreamCall::Read { stream_id: text("stream_id")?, offset })
            }
            _ => Ok(StreamCall::Close { stream_id: text("stream_id")? }),
        }
    }
}

/// True if this is one of the stream tools.
pub fn is_tool(name: &str) -> bool {
    matches!(name, STREAM_OPEN | STREAM_READ | STREAM_CLOSE)
}

/// The stream tools.
pub fn specs() -> [ToolSpec; 3] {
    [open_spec(), read_spec(), close_spec()]
}

fn spec(name: &str, title: &str, text: impl Into<String>) -> ToolSpec {
    ToolSpec {
        title: Some(title.to_owned()),
        task_support: TaskSupport::Forbidden,
        ..ToolSpec::new(name, text)
    }
}

fn stream_id() -> Value {
    json!({ "type": "string", "description": "The id of the stream." })
}

fn open_spec() -> ToolSpec {
    let text = "Starts another tool and returns a stream at once. Read the result piece by piece \
                with stream_read.";
    ToolSpec {
        arguments: json!({
            "type": "object",
            "properties": {
                "tool": { "type": "string", "description": "The tool to run." },
                "arguments": { "type": "object", "description": "The arguments of the tool." },
            },
            "required": ["tool"],
            "additionalProperties": false,
        }),
        output_schema: Some(json!({
            "type": "object",
            "properties": {
                "stream_id": stream_id(),
                "tool": { "type": "string" },
                "status": { "const": "open" },
            },
            "required": ["stream_id", "tool", "status"],
        })),
        ..spec(STREAM_OPEN, "Open a stream", text)
    }
}

fn read_spec() -> ToolSpec {
    let (read_kib, wait_s) = (limits::MCP_READ_BYTES_MAX >> 10, limits::MCP_READ_WAIT.as_secs());
    let text = format!(
        "Reads the next piece of a stream, {read_kib} KiB at most. Waits up to {wait_s} s for new \
         bytes. If \"timed_out\" is true, none came: read again. To repeat a lost answer, pass its \
         offset. \"error\" says why a stream is incomplete."
    );
    let count = json!({ "type": "integer", "minimum": 0 });
    ToolSpec {
        arguments: json!({
            "type": "object",
            "properties": {
                "stream_id": stream_id(),
                "offset": {
                    "type": "integer",
                    "minimum": 0,
                    "description": "The position to read at, in bytes. Default: after the last \
                                    piece that was read.",
                },
            },
            "required": ["stream_id"],
            "additionalProperties": false,
        }),
        output_schema: Some(json!({
            "type": "object",
            "properties": {
                "stream_id": stream_id(),
                "offset": count,
                "bytes_read": count,
                "done": { "type": "boolean" },
                "total_written": count,
                "chunk": { "type": "string" },
                "encoding": { "enum": ["text", "base64"] },
                "timed_out": { "type": "boolean" },
                "error": { "type": "string" },
            },
            "required": [
                "stream_id", "offset", "bytes_read", "done", "total_written", "chunk", "encoding",
            ],
        })),
        annotations: json!({ "readOnlyHint": true }),
        ..spec(STREAM_READ, "Read from a stream", text)
    }
}

fn close_spec() -> ToolSpec {
    let text = "Closes a stream. If its tool is still running, it is stopped.";
    ToolSpec {
        arguments: json!({
            "type": "object",
            "properties": { "stream_id": stream_id() },
            "required": ["stream_id"],
            "additionalProperties": false,
        }),
        output_schema: Some(json!({
            "type": "object",
            "properties": {
                "stream_id": stream_id(),
                "status": { "const": "closed" },
                "total_bytes": { "type": "integer", "minimum": 0 },
            },
            "required": ["stream_id", "status", "total_bytes"],
        })),
        ..spec(STREAM_CLOSE, "Close a stream", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_its_tools_are_checked() {
        let parse =
            |name: &str, arguments: Value| StreamCall::parse(name, arguments.as_object().unwrap());
        assert_eq!(parse("other", json!({})), None);
        let open = StreamCall::Open { tool: "t".to_owned(), arguments: Map::new() };
        assert_eq!(parse(STREAM_OPEN, json!({"tool": "t"})), Some(Ok(open)));
        let stream_id = "s".to_owned();
        let read = StreamCall::Read { stream_id: stream_id.clone(), offset: Some(0) };
        assert_eq!(parse(STREAM_READ, json!({"stream_id": "s", "offset": 0})), Some(Ok(read)));
        let close = StreamCall::Close { stream_id };
        assert_eq!(parse(STREAM_CLOSE, json!({"stream_id": "s"})), Some(Ok(close)));
        for (name, arguments, words) in [
            (STREAM_OPEN, json!({}), "`tool`: is missing"),
            (STREAM_OPEN, json!({"tool": "stream_open"}), "itself a tool for streams"),
            (STREAM_OPEN, json!({"tool": "t", "arguments": 1}), "`arguments`"),
            (STREAM_READ, json!({}), "`stream_id`: is missing"),
            (STREAM_READ, json!({"stream_id": 1}), "`stream_id`"),
            (STREAM_READ, json!({"stream_id": "s", "offset": -1}), "`offset`"),
            (STREAM_READ, json!({"stream_id": "s", "x": 1}), "`x`: is unknown"),
            (STREAM_CLOSE, json!({"stream_id": "x".repeat(1_000)}), "`stream_id`"),
        ] {
            let problem = parse(name, arguments).unwrap().unwrap_err();
            assert!(problem.contains(words), "{problem}");
        }
    }
}

//! Documents about tools, and about the calls that workers carry out.

use serde_json::{Map, Value, json};

use super::rows::documents;
use super::spelled;
use super::values::{OrNull, TimeLimits};
use crate::base::ExecutionId;
use crate::engine::Timeouts;
use crate::stream::{Outcome, Policy};
use crate::tool::{Gather, SubscribeDefaults, ToolSpec, VirtualTool};

documents! {
    /// The list of tools.
    struct Tools: "Tools" {
        /// The tools that the caller may run.
        tools: Vec<Tool>,
    }

    /// The list of virtual tools.
    struct VirtualTools: "VirtualTools" {
        /// The virtual tools of the caller.
        virtual_tools: Vec<Tool>,
    }

    /// A tool.
    struct Tool: "Tool" {
        /// The name of the tool.
        name: String,
        /// The purpose of the tool, for a person or a model that chooses one.
        description: String,
        /// The JSON Schema (2020-12) of the arguments.
        arguments("input_schema"): Value => json!({"type": "object"}),
        /// The use of the tool as an MCP task.
        task_support: Option<String> => json!({"enum": ["forbidden", "optional", "required"]}),
        /// The time limits, unless an execution sets its own.
        timeouts: Timeouts,
        /// The terms of subscribers that state none.
        subscribers: Option<Subscribers>,
        /// The name for display.
        title: Option<String>,
        /// The JSON Schema (2020-12) of the whole output, which is then one JSON value.
        output_schema: Option<Value> => json!({"type": ["object", "boolean"]}),
        /// The hints of MCP about the effects of the tool.
        annotations: Option<Map<String, Value>>,
        /// The gathering of small parts into larger chunks. Only virtual tools have it.
        coalesce: Option<Coalesce>,
    }

    /// The terms of subscribers that state none.
    struct Subscribers: "Subscribers" {
        /// The lag policy.
        policy: Policy,
        /// The limit of the lag in chunks. `null`: the default of the policy.
        max_chunks: OrNull<u32>,
        /// The limit of the lag in bytes. `null`: only chunks count.
        max_bytes: OrNull<u64>,
    }

    /// The gathering of small parts into larger chunks.
    struct Coalesce: "Coalesce" {
        /// The longest time that the first part waits for others, in milliseconds.
        delay_ms: u64,
        /// Number of bytes that are published without further delay.
        max_bytes: u32,
    }

    /// The reply to the parts of a result.
    struct Delivered: "Delivered" {
        /// The parts were accepted, now or before.
        success: bool => json!({"const": true}),
        /// True if the one part was accepted before.
        duplicate: Option<bool>,
        /// Number of parts in the body, if it had several.
        parts: Option<u64>,
        /// Number of these parts that were accepted before.
        duplicates: Option<u64>,
    }

    /// A call for a worker.
    struct ToolCall: "ToolCall" {
        /// The id of the call.
        id: ExecutionId,
        /// The name of the tool.
        name: String,
        /// The arguments.
        arguments: Value => json!({"type": "object"}),
        /// The execution of the call.
        execution: ExecutionId,
        /// The number of the next part.
        next_seq: u64,
        /// The time limits that are set.
        timeouts: Option<CallTimeouts>,
        /// The trace context of the call (W3C Trace Context).
        traceparent: Option<String>,
        /// The vendor-specific trace state (W3C Trace Context).
        tracestate: Option<String>,
        /// The baggage of the call (W3C Baggage).
        baggage: Option<String>,
    }

    /// The time limits of a call that are set.
    struct CallTimeouts: "CallTimeouts" {
        /// Time from the start to the first part, in milliseconds.
        first_chunk_ms: Option<u64>,
        /// Time from each part to the next, in milliseconds.
        inactivity_ms: Option<u64>,
        /// Time from the start to the end, in milliseconds.
        total_ms: Option<u64>,
    }

    /// The news for a worker that a call has ended without it.
    struct CancelledCall: "CancelledCall" {
        /// The id of the call.
        id: ExecutionId,
        /// The outcome of the call.
        reason: Outcome,
    }
}

impl From<&ToolSpec> for Tool {
    fn from(spec: &ToolSpec) -> Tool {
        Tool {
            name: spec.name.clone(),
            description: spec.description.clone(),
            arguments: spec.arguments.clone(),
            task_support: Some(spec.task_support.name().to_owned()),
            timeouts: spec.timeouts,
            subscribers: Some(spec.subscribers.into()),
            title: spec.title.clone(),
            output_schema: spec.output_schema.clone(),
            annotations: spec.annotations.as_object().cloned(),
            coalesce: None,
        }
    }
}

impl From<&VirtualTool> for Tool {
    fn from(tool: &VirtualTool) -> Tool {
        Tool { coalesce: tool.gather.map(Coalesce::from), ..Tool::from(&tool.spec) }
    }
}

impl From<SubscribeDefaults> for Subscribers {
    fn from(terms: SubscribeDefaults) -> Subscribers {
        let SubscribeDefaults { policy, limit_chunks, limit_bytes } = terms;
        let (max_chunks, max_bytes) = (OrNull(limit_chunks), OrNull(limit_bytes));
        Subscribers { policy, max_chunks, max_bytes }
    }
}

impl From<Gather> for Coalesce {
    fn from(gather: Gather) -> Coalesce {
        let Gather { delay_max, bytes_max } = gather;
        Coalesce { delay_ms: delay_max.as_millis() as u64, max_bytes: bytes_max }
    }
}

impl From<&Timeouts> for CallTimeouts {
    fn from(timeouts: &Timeouts) -> CallTimeouts {
        let TimeLimits { first_chunk_ms, inactivity_ms, total_ms } = TimeLimits::from(*timeouts);
        CallTimeouts {
            first_chunk_ms: first_chunk_ms.0,
            inactivity_ms: inactivity_ms.0,
            total_ms: total_ms.0,
        }
    }
}

impl ToolSpec {
    /// Returns the document of the tool.
    pub fn to_json(&self) -> Value {
        spelled(&Tool::from(self))
    }
}

impl VirtualTool {
    /// Returns the document of the tool.
    pub fn to_json(&self) -> Value {
        spelled(&Tool::from(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::TaskSupport;

    #[test]
    fn a_document_says_only_what_is_known() {
        let mut spec = ToolSpec::new("t", "Tests.");
        let document = spec.to_json();
        for field in ["title", "output_schema", "annotations"] {
            assert_eq!(document.get(field), None, "{field}");
        }
        assert_eq!(document["task_support"], "optional");
        spec.title = Some("The test".to_owned());
        spec.output_schema = Some(json!({"type": "object"}));
        spec.annotations = json!({"readOnlyHint": true});
        spec.task_support = TaskSupport::Required;
        let document = spec.to_json();
        assert_eq!(document["title"], "The test");
        assert_eq!(document["output_schema"], json!({"type": "object"}));
        assert_eq!(document["annotations"], json!({"readOnlyHint": true}));
        assert_eq!(document["task_support"], "required");
    }
}

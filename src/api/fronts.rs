//! Documents whose members others define: threads of LangGraph clients, and errors of JSON-RPC.
//! The streams of front ends are hot, and `endpoint::front` spells them by hand.

use serde_json::{Map, Value, json};

use super::rows::documents;
use super::values::OrNull;

documents! {
    /// Information about the server for LangGraph clients.
    struct FrontInfo: "LangGraphInfo" {
        /// The version of the server.
        version: String,
        /// The abilities of the server.
        flags: Map<String, Value>,
    }

    /// A thread as LangGraph clients know it.
    struct Thread: "Thread" {
        /// The id of the thread, which its client chose.
        thread_id: String,
        /// `busy` while a run of the thread is under way.
        status: String => json!({"enum": ["idle", "busy"]}),
        /// Always empty.
        metadata: Map<String, Value>,
        /// The messages of the last run.
        values: Map<String, Value>,
        /// Always empty.
        interrupts: Map<String, Value>,
    }

    /// The state of a thread as LangGraph clients know it.
    struct ThreadState: "ThreadState" {
        /// The messages of the thread.
        values: Map<String, Value>,
        /// The nodes that run next.
        next: Vec<String>,
        /// The node that runs, or that has failed.
        tasks: Vec<Map<String, Value>>,
        /// Always empty.
        interrupts: Vec<Map<String, Value>>,
        /// The last run.
        metadata: Map<String, Value>,
        /// The time of the last run, if there is one.
        created_at: Option<String>,
        /// The name of the state.
        checkpoint: Map<String, Value>,
        /// Always `null`.
        parent_checkpoint: Option<Value> => json!({"type": "null"}),
    }

    /// A run as LangGraph clients know it.
    struct Run: "Run" {
        /// The id of the run, which is that of its execution.
        run_id: String,
        /// The thread. A run without one has a thread of its own, named like the run.
        thread_id: String,
        /// The assistant that the client named.
        assistant_id: String,
        /// The time of its start.
        created_at: String,
        /// The same.
        updated_at: String,
        /// The state of the run.
        status: String => json!({"enum": [
            "pending", "running", "success", "error", "timeout", "interrupted",
        ]}),
        /// The metadata that the client gave.
        metadata: Map<String, Value>,
        /// Always `reject`: a thread has one run at a time.
        multitask_strategy: String => json!({"const": "reject"}),
    }

    /// An assistant as LangGraph clients know it.
    struct Assistant: "Assistant" {
        /// The name of a model of this server, or `agent`.
        assistant_id: String,
        /// The same.
        graph_id: String,
        /// The same.
        name: String,
        /// The agent that it runs.
        description: String,
        /// Always empty: a run has its options.
        config: Map<String, Value>,
        /// Always empty.
        context: Map<String, Value>,
        /// Always empty.
        metadata: Map<String, Value>,
        /// Always 1.
        version: u64,
        /// The start of the server.
        created_at: String,
        /// The same.
        updated_at: String,
    }

    /// A thread in the answer to a search.
    struct FoundThread: "FoundThread" {
        /// The id of the thread, which its client chose.
        thread_id: String,
        /// `busy` while a run of the thread is under way.
        status: String => json!({"enum": ["idle", "busy"]}),
        /// The time of the start of its newest run.
        created_at: String,
        /// The same.
        updated_at: String,
        /// Always empty.
        metadata: Map<String, Value>,
        /// Always `null`: its state has them.
        values: Option<Value> => json!({"type": "null"}),
        /// Always empty.
        interrupts: Map<String, Value>,
    }

    /// The answer to a LangGraph command.
    struct CommandAnswer: "CommandAnswer" {
        /// The result of the command.
        kind("type"): String => json!({"enum": ["success", "error"]}),
        /// The id of the command. `null` if it could not be read.
        id: OrNull<u64>,
        /// The run that the command started.
        result: Option<StartedRun>,
        /// The reason why the command was refused, for programs.
        error: Option<String>,
        /// The reason, for people.
        message: Option<String>,
    }

    /// A run that a LangGraph command started.
    struct StartedRun: "StartedRun" {
        /// The id of the run.
        run_id: String,
    }

    /// A response, as the specification Open Responses has it. The answer is a stream of events
    /// instead, if the request wants one.
    struct Response: "Response" {
        /// The id: `resp_` and that of the execution.
        id: String,
        /// The kind of the object.
        object: String => json!({"const": "response"}),
        /// The time of creation, in seconds since 1970.
        created_at: u64,
        /// The state of the response.
        status: String => json!({"enum": [
            "queued", "in_progress", "completed", "incomplete", "failed", "cancelled",
        ]}),
        /// The name of the model.
        model: String,
        /// The items: messages, reasoning, and calls of tools with their output.
        output: Vec<Map<String, Value>>,
        /// The reason of a failure.
        error: Option<Value> => json!({"type": ["object", "null"]}),
        /// The reason why the response is not complete.
        incomplete_details: Option<Value> => json!({"type": ["object", "null"]}),
        /// The numbers of tokens, once the response has ended.
        usage: Option<Value> => json!({"type": ["object", "null"]}),
        /// The metadata of the request.
        metadata: Map<String, Value>,
    }

    /// The items of the input of a response.
    struct InputItems: "InputItems" {
        /// The kind of the object.
        object: String => json!({"const": "list"}),
        /// The items.
        data: Vec<Map<String, Value>>,
        /// The id of the first item.
        first_id: Option<Value> => json!({"type": ["string", "null"]}),
        /// The id of the last item.
        last_id: Option<Value> => json!({"type": ["string", "null"]}),
        /// Always false: all items are there.
        has_more: bool,
    }

    /// A JSON-RPC error.
    struct McpError: "McpError" {
        /// The version of JSON-RPC.
        jsonrpc: String => json!({"const": "2.0"}),
        /// The id of the request. Without it, no request could be read.
        id: Option<Value> => json!({"type": ["string", "integer"]}),
        /// The error.
        error: McpProblem,
    }

    /// The reason of a JSON-RPC error.
    struct McpProblem: "McpProblem" {
        /// The reason, for programs.
        code: i64,
        /// The reason, for people: a sentence.
        message: String,
        /// Further values.
        data: Option<Value>,
    }
}

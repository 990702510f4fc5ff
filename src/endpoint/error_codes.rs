//! All codes of errors, with their meaning: the source of the table in the guide and of the
//! responses in `/openapi.json`.
//!
//! [`ApiError::new`](super::ApiError::new) checks that its code is in this table.

use crate::wire::http1::Status;

/// The meaning of an error code in a response with this status.
#[derive(Clone, Copy, Debug)]
pub struct ErrorCode {
    /// The status of the response.
    pub status: Status,
    /// The reason, for programs.
    pub code: &'static str,
    /// The cause: a sentence.
    pub cause: &'static str,
    /// The action that helps: a sentence.
    pub fix: &'static str,
}

const fn row(
    status: Status,
    code: &'static str,
    cause: &'static str,
    fix: &'static str,
) -> ErrorCode {
    ErrorCode { status, code, cause, fix }
}

/// All error codes, in the order of their statuses. A code may occur with several statuses.
pub const ERROR_CODES: &[ErrorCode] = &[
    row(
        Status::BAD_REQUEST,
        "malformed_request",
        "The request is not valid HTTP/1.1.",
        "Send a valid request. The message names the fault.",
    ),
    row(
        Status::BAD_REQUEST,
        "tls_on_plain_port",
        "A client began a TLS handshake at a port that speaks plain HTTP.",
        "Use http:// instead of https://, or start the server with --tls-cert and --tls-key.",
    ),
    row(
        Status::BAD_REQUEST,
        "plain_on_tls_port",
        "A client sent plain HTTP to a port that speaks TLS.",
        "Use https:// instead of http://.",
    ),
    row(
        Status::BAD_REQUEST,
        "malformed_path",
        "The path has an invalid percent-encoding or is not UTF-8.",
        "Encode the path as RFC 3986 says.",
    ),
    row(
        Status::BAD_REQUEST,
        "malformed_json",
        "The body is not JSON, is nested too deep, or has a name twice in one object.",
        "Correct the body. The message says where the fault is.",
    ),
    row(
        Status::BAD_REQUEST,
        "invalid_body",
        "The body is JSON, but not an object.",
        "Send a JSON object.",
    ),
    row(
        Status::BAD_REQUEST,
        "missing_field",
        "The body lacks a required member.",
        "Add the member that `field` names.",
    ),
    row(
        Status::BAD_REQUEST,
        "unknown_field",
        "The body has a member that the server does not know.",
        "Remove or rename the member that `field` names.",
    ),
    row(
        Status::BAD_REQUEST,
        "invalid_field",
        "A member of the body has a value that is not allowed.",
        "Correct the member that `field` names. `limit` is the bound, if one was exceeded.",
    ),
    row(
        Status::BAD_REQUEST,
        "missing_parameter",
        "The query string lacks a required parameter.",
        "Add the parameter that `field` names.",
    ),
    row(
        Status::BAD_REQUEST,
        "unknown_parameter",
        "The query string has a parameter that the path does not have.",
        "Remove or rename the parameter that `field` names.",
    ),
    row(
        Status::BAD_REQUEST,
        "repeated_parameter",
        "A parameter occurs more than once.",
        "Send the parameter that `field` names once.",
    ),
    row(
        Status::BAD_REQUEST,
        "too_many_parameters",
        "The query string has too many parameters.",
        "Send at most `limit` parameters.",
    ),
    row(
        Status::BAD_REQUEST,
        "invalid_parameter",
        "A parameter of the path or of the query string has a value that is not allowed.",
        "Correct the parameter that `field` names. `limit` is the bound, if one was exceeded.",
    ),
    row(
        Status::BAD_REQUEST,
        "missing_header",
        "A required header is missing.",
        "Add the header that `field` names.",
    ),
    row(
        Status::BAD_REQUEST,
        "invalid_header",
        "A header is repeated or has a value that is not allowed.",
        "Correct the header that `field` names.",
    ),
    row(
        Status::BAD_REQUEST,
        "invalid_cursor",
        "The id of the last event is not one of this stream.",
        "Send the last `id:` of the stream as it was received, or none.",
    ),
    row(
        Status::BAD_REQUEST,
        "unsupported_version",
        "The client of A2A speaks another version of the protocol, or names none.",
        "Send `A2A-Version: 1.0`.",
    ),
    row(
        Status::BAD_REQUEST,
        "unknown_method",
        "A2A has no method of this name.",
        "Use one of the methods of version 1.0.",
    ),
    row(
        Status::BAD_REQUEST,
        "unsupported_content",
        "A message of A2A has a part that is neither text nor data.",
        "Send texts and data.",
    ),
    row(
        Status::BAD_REQUEST,
        "unsupported_operation",
        "The task of A2A does not allow this: for example, it has ended.",
        "Read the task with GetTask, or send a new message to its context.",
    ),
    row(
        Status::BAD_REQUEST,
        "no_push_notifications",
        "A client of A2A wants notifications at an address of its own, and the server sends none.",
        "Subscribe to the task.",
    ),
    row(
        Status::BAD_REQUEST,
        "not_cancelable",
        "The task of A2A has ended already.",
        "Read the task with GetTask.",
    ),
    row(
        Status::BAD_REQUEST,
        "invalid_argument",
        "An argument of the tool is missing, unknown or not allowed.",
        "Correct the argument that `field` names. /v1/tools has the schema of the arguments.",
    ),
    row(
        Status::BAD_REQUEST,
        "no_journal",
        "The execution asks for a durability, and the server keeps no journal.",
        "Ask for none, or start the server with --journal.",
    ),
    row(
        Status::BAD_REQUEST,
        "no_cluster",
        "The execution asks for the durability `replicated`, and no log of a cluster takes it.",
        "Ask for `synced`, or start the server as a node of a cluster. Only tools are replicated.",
    ),
    row(
        Status::BAD_REQUEST,
        "nothing_kept",
        "An option of the execution waits for the disk, and nothing of it is kept there.",
        "Ask for a durability other than `none`, or leave the option out.",
    ),
    row(
        Status::BAD_REQUEST,
        "chunk_too_large",
        "A chunk does not fit into the ring.",
        "Send chunks of at most `limit` bytes.",
    ),
    row(
        Status::BAD_REQUEST,
        "no_session",
        "The MCP request names no session.",
        "Send the header Mcp-Session-Id from the reply to `initialize`.",
    ),
    row(
        Status::UNAUTHORIZED,
        "unauthorized",
        "The request has no token, or an unknown one.",
        "Send `Authorization: Bearer TOKEN` with a token of the server's token file.",
    ),
    row(
        Status::FORBIDDEN,
        "host_not_allowed",
        "The header Host names a host that is not this server.",
        "Use a configured name, or start the server with --allow-host.",
    ),
    row(
        Status::FORBIDDEN,
        "origin_not_allowed",
        "The page that sent the request has an origin that is not allowed.",
        "Start the server with --allow-origin.",
    ),
    row(
        Status::FORBIDDEN,
        "stale_epoch",
        "A newer life of the same producer has appended to the stream.",
        "Stop, or begin a life with a larger `Producer-Epoch`.",
    ),
    row(
        Status::FORBIDDEN,
        "not_at_the_door",
        "Memory is shared only over the Unix socket of the server.",
        "Connect to the socket that `streamdoor serve --door` names.",
    ),
    row(
        Status::FORBIDDEN,
        "other_user",
        "The process runs as another user than the server.",
        "Run the process as the server's user.",
    ),
    row(
        Status::NOT_FOUND,
        "unknown_path",
        "No route has this path.",
        "See /openapi.json for all paths.",
    ),
    row(
        Status::NOT_FOUND,
        "not_found",
        "The object does not exist, was forgotten after its retention, or belongs to another \
         principal.",
        "Check the id. Raise `retention_ms` to read executions for longer.",
    ),
    row(
        Status::NOT_FOUND,
        "unknown_tool",
        "No tool has this name.",
        "See /v1/tools for all names.",
    ),
    row(
        Status::NOT_FOUND,
        "no_model",
        "The server has no model, so it runs no agents.",
        "Start the server with a model.",
    ),
    row(
        Status::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        "The path does not have this method.",
        "Use a method of the header Allow.",
    ),
    row(
        Status::NOT_ACCEPTABLE,
        "not_acceptable",
        "The header Accept allows none of the formats of the reply.",
        "Accept one of the media types that the message names.",
    ),
    row(
        Status::REQUEST_TIMEOUT,
        "request_timeout",
        "The request did not arrive in time.",
        "Send the whole request without pauses.",
    ),
    row(
        Status::CONFLICT,
        "busy",
        "The last run of this thread has not ended.",
        "Wait for its end, or cancel it.",
    ),
    row(
        Status::CONFLICT,
        "not_yet",
        "The stream was asked to begin after the next chunk.",
        "Begin at `limit` or earlier.",
    ),
    row(
        Status::CONFLICT,
        "running",
        "The execution has not ended, so that nothing of it is removed.",
        "Cancel it, and try again after its end.",
    ),
    row(Status::CONFLICT, "already_ended", "The execution has ended.", "Nothing is left to do."),
    row(
        Status::CONFLICT,
        "stream_exists",
        "There is a stream at this path with other properties.",
        "Choose another path, or delete that stream.",
    ),
    row(
        Status::CONFLICT,
        "stream_closed",
        "The stream takes nothing more.",
        "Append to another stream.",
    ),
    row(
        Status::CONFLICT,
        "stream_gone",
        "The source of the new stream was removed.",
        "Begin with another stream.",
    ),
    row(
        Status::CONFLICT,
        "type_mismatch",
        "The content has another media type than the stream.",
        "Send the media type that the message names.",
    ),
    row(
        Status::CONFLICT,
        "sequence_conflict",
        "The append is not the next one of its sequence.",
        "Send the next append: see `Producer-Expected-Seq`, or the message.",
    ),
    row(
        Status::CONFLICT,
        "acks_not_asked",
        "The subscriber was created without acknowledgements.",
        "Create the subscriber with the parameter `acks`.",
    ),
    row(
        Status::CONFLICT,
        "not_given",
        "The acknowledged chunk was not sent yet.",
        "Acknowledge `limit` at most.",
    ),
    row(
        Status::CONFLICT,
        "name_taken",
        "A tool of the server has the name of the virtual tool.",
        "Choose another name.",
    ),
    row(
        Status::CONFLICT,
        "part_missing",
        "A part of the result was skipped.",
        "Send the part with the number `limit`.",
    ),
    row(
        Status::CONFLICT,
        "session_in_use",
        "A worker with this name is already connected.",
        "Choose another name, or disconnect the other worker.",
    ),
    row(
        Status::CONFLICT,
        "stream_in_use",
        "The MCP session already has a stream.",
        "Close the other stream first.",
    ),
    row(
        Status::CONFLICT,
        "too_many_virtual_tools",
        "The principal has the maximum number of virtual tools.",
        "Delete a virtual tool first.",
    ),
    row(
        Status::CONFLICT,
        "tool_asks",
        "The tool asks its caller questions, which this interface cannot transport.",
        "Call the tool over MCP.",
    ),
    row(
        Status::GONE,
        "no_longer_held",
        "The ring no longer holds the first chunk of the request.",
        "Follow `/v1/executions/ID/events` with `from` set to `limit`, or with `from=live`.",
    ),
    row(
        Status::GONE,
        "stream_gone",
        "The stream was removed, and other streams still begin with it.",
        "Use another path.",
    ),
    row(
        Status::GONE,
        "call_ended",
        "The call takes no more parts, because its execution has ended.",
        "Stop the work on this call.",
    ),
    row(
        Status::LENGTH_REQUIRED,
        "length_required",
        "The request has no body, and the path needs one.",
        "Send a body with Content-Length or in chunks.",
    ),
    row(
        Status::CONTENT_TOO_LARGE,
        "body_too_long",
        "The body is longer than the path allows.",
        "Send at most `limit` bytes.",
    ),
    row(
        Status::URI_TOO_LONG,
        "target_too_long",
        "The first line of the request is too long.",
        "Send a first line of at most `limit` bytes.",
    ),
    row(
        Status::UNSUPPORTED_MEDIA_TYPE,
        "unsupported_media_type",
        "The body is not application/json, or it is compressed.",
        "Send `Content-Type: application/json` and no Content-Encoding.",
    ),
    row(
        Status::RANGE_NOT_SATISFIABLE,
        "range_not_satisfiable",
        "The header Range asks for bytes behind the end of the output.",
        "Ask for bytes before `limit`, which is the length of the output.",
    ),
    row(
        Status::EXPECTATION_FAILED,
        "unknown_expectation",
        "The header Expect is not 100-continue.",
        "Remove the header.",
    ),
    row(
        Status::MISDIRECTED_REQUEST,
        "elsewhere",
        "Another node of the cluster has the execution or the stream, and alone can do this.",
        "Send the request to the node `node`, at `url` if that is known.",
    ),
    row(
        Status::UNPROCESSABLE_CONTENT,
        "key_reused",
        "An earlier request with this `Idempotency-Key` had another body.",
        "Use a new key for each request, and the same body when a request is repeated.",
    ),
    row(
        Status::TOO_MANY_REQUESTS,
        "too_many_executions",
        "The server has its maximum number of executions.",
        "Try again after Retry-After.",
    ),
    row(
        Status::TOO_MANY_REQUESTS,
        "too_many_subscribers",
        "The execution or the shard has its maximum number of subscribers.",
        "Try again after Retry-After.",
    ),
    row(
        Status::TOO_MANY_REQUESTS,
        "too_many_workers",
        "The principal has the maximum number of workers.",
        "Disconnect a worker first.",
    ),
    row(
        Status::TOO_MANY_REQUESTS,
        "too_many_readers",
        "The maximum number of other processes reads this execution.",
        "Follow the execution over HTTP.",
    ),
    row(
        Status::TOO_MANY_REQUESTS,
        "too_many_doors",
        "The maximum number of executions is shared with other processes.",
        "Try again when one of them has ended.",
    ),
    row(
        Status::TOO_MANY_REQUESTS,
        "no_room",
        "A block subscriber has to read before the next part is taken.",
        "Send the part again after Retry-After.",
    ),
    row(
        Status::HEADERS_TOO_LARGE,
        "head_too_long",
        "The head of the request is too long or has too many headers.",
        "Send a shorter head. `limit` is the bound.",
    ),
    row(
        Status::INTERNAL_SERVER_ERROR,
        "tool_panicked",
        "The tool has panicked. This is a bug of the tool.",
        "Report the bug. The log has the details.",
    ),
    row(
        Status::INTERNAL_SERVER_ERROR,
        "no_randomness",
        "The kernel gave no random bytes for an id.",
        "See the log of the server.",
    ),
    row(
        Status::NOT_IMPLEMENTED,
        "not_implemented",
        "The request uses a transfer coding or a method that the server does not support.",
        "Use the transfer coding `chunked`, and no CONNECT.",
    ),
    row(
        Status::SERVICE_UNAVAILABLE,
        "busy",
        "The server accepts no calls at the moment.",
        "Try again after Retry-After.",
    ),
    row(
        Status::SERVICE_UNAVAILABLE,
        "queued",
        "The execution waits for a ring.",
        "Try again after Retry-After.",
    ),
    row(
        Status::SERVICE_UNAVAILABLE,
        "not_yet",
        "The producer in another process has not mapped its ring yet.",
        "Try again after Retry-After.",
    ),
    row(
        Status::SERVICE_UNAVAILABLE,
        "memory_short",
        "The server has no memory for a ring of this size.",
        "Try again after Retry-After, or give the server more memory.",
    ),
    row(
        Status::SERVICE_UNAVAILABLE,
        "journal_broken",
        "The disk of the journal has failed.",
        "Ask for the durability `none`. Replace the disk, and restart the server.",
    ),
    row(
        Status::SERVICE_UNAVAILABLE,
        "no_shared_memory",
        "The kernel gave no shared memory.",
        "See the message for the reason.",
    ),
    row(
        Status::SERVICE_UNAVAILABLE,
        "too_many_connections",
        "The server has its maximum number of connections.",
        "Try again after Retry-After, or raise the limit.",
    ),
    row(
        Status::SERVICE_UNAVAILABLE,
        "shutting_down",
        "The server is shutting down.",
        "Try again after Retry-After, at another server.",
    ),
    row(
        Status::SERVICE_UNAVAILABLE,
        "shard_dead",
        "A part of the server has died, with all executions there.",
        "Restart the server.",
    ),
    row(
        Status::VERSION_NOT_SUPPORTED,
        "unknown_version",
        "The HTTP version is not 1.0 or 1.1.",
        "Use HTTP/1.1.",
    ),
    row(
        Status::INSUFFICIENT_STORAGE,
        "journal_full",
        "The journal has no room, or as many executions as it can keep.",
        "Try again after Retry-After, make room on the disk, or ask for the durability `none`.",
    ),
];

/// True if the table has this code with this status.
pub(super) fn is_known(status: Status, code: &str) -> bool {
    ERROR_CODES.iter().any(|row| row.status == status && row.code == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_has_sentences() {
        assert!(ERROR_CODES.is_sorted_by_key(|row| row.status.code()));
        for (at, row) in ERROR_CODES.iter().enumerate() {
            let is_it = |other: &ErrorCode| (other.status, other.code) == (row.status, row.code);
            assert_eq!(ERROR_CODES.iter().position(is_it), Some(at), "{}", row.code);
            for text in [row.cause, row.fix] {
                assert!(text.ends_with('.') && text.len() < 120, "{}: {text}", row.code);
            }
        }
    }
}

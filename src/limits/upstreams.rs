//! Limits of upstreams: MCP servers whose tools are offered here as our own.

use std::time::Duration;

/// Upstreams of one process.
pub const UPSTREAMS_MAX: usize = 32;
/// Tools of one upstream. Further ones are left out.
pub const UPSTREAM_TOOLS_MAX: usize = 512;
/// Pages of its list of tools that are requested.
pub const UPSTREAM_PAGES_MAX: usize = 64;
/// Bytes of its description of one tool, as JSON.
pub const UPSTREAM_TOOL_BYTES_MAX: usize = 256 << 10;
/// Bytes of one message of an upstream: a line, or the data of an event.
pub const UPSTREAM_MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Bytes of a call that wait to be published, above which no more is read from its upstream.
pub const UPSTREAM_WAITING_BYTES_MAX: usize = 4 << 20;
/// Bytes that wait to be read by an upstream, above which it counts as dead.
pub const UPSTREAM_UNSENT_BYTES_MAX: usize = 8 << 20;
/// Bytes of a call's result that is passed on in one piece. A longer one is read piece by piece.
pub const UPSTREAM_RESULT_BYTES_MAX: usize = 1 << 20;
/// Characters of an upstream's text in an error.
pub const UPSTREAM_ERROR_CHARS_MAX: usize = 4 << 10;
/// Partial results of one call that are remembered, so that its result does not repeat them.
pub const UPSTREAM_PARTS_MAX: usize = 4 << 10;
/// Time that a call may take, by default.
pub const UPSTREAM_CALL_DEADLINE: Duration = Duration::from_secs(600);
/// Maximum of that time that can be set.
pub const UPSTREAM_CALL_DEADLINE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Time for an upstream to start and to list its tools. Some are installed first.
pub const UPSTREAM_START_DEADLINE: Duration = Duration::from_secs(90);
/// Time for its answer to the question whether it speaks the stateless era.
pub const UPSTREAM_PROBE_DEADLINE: Duration = Duration::from_secs(10);
/// Time for its answer to any other request but calls.
pub const UPSTREAM_ANSWER_DEADLINE: Duration = Duration::from_secs(30);
/// Time for it to end after its standard input was closed.
pub const UPSTREAM_GRACE: Duration = Duration::from_secs(2);
/// Time for it to end after it was told to end.
pub const UPSTREAM_LINGER: Duration = Duration::from_millis(500);
/// Interval at which it is checked in the meantime.
pub const UPSTREAM_LOOK: Duration = Duration::from_millis(10);
/// Wait before the next start after an upstream has ended by itself. It doubles each time.
pub const UPSTREAM_RETRY: Duration = Duration::from_millis(100);
/// Maximum of that wait.
pub const UPSTREAM_RETRY_MAX: Duration = Duration::from_secs(30);
/// Uptime after which that wait starts anew.
pub const UPSTREAM_CALM: Duration = Duration::from_secs(60);
/// Bytes of a line of an upstream's standard error in the log.
pub const UPSTREAM_STDERR_BYTES_MAX: usize = 2 << 10;
/// Records of one upstream that the log takes in a second. Further ones are counted.
pub const UPSTREAM_RECORDS_PER_S: u32 = 20;
/// Number of times that a call's stream is resumed after its upstream has closed it.
pub const UPSTREAM_RESUMES_MAX: u32 = 64;
/// Longest pause before that, whatever the upstream requests.
pub const UPSTREAM_RESUME_MAX: Duration = Duration::from_secs(30);
/// Time without data after which a response counts as broken.
pub const UPSTREAM_SILENCE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Arguments of a command.
pub const UPSTREAM_WORDS_MAX: usize = 256;

const _: () = {
    assert!(UPSTREAM_TOOL_BYTES_MAX < UPSTREAM_MESSAGE_BYTES_MAX);
    assert!(UPSTREAM_RESULT_BYTES_MAX < UPSTREAM_MESSAGE_BYTES_MAX);
    assert!(UPSTREAM_PROBE_DEADLINE.as_nanos() < UPSTREAM_START_DEADLINE.as_nanos());
    assert!(UPSTREAM_RETRY.as_nanos() < UPSTREAM_RETRY_MAX.as_nanos());
    assert!(UPSTREAM_CALL_DEADLINE.as_nanos() <= UPSTREAM_CALL_DEADLINE_MAX.as_nanos());
};

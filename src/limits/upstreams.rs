//! Those of MCP servers whose tools are offered here as our own.

use std::time::Duration;

/// Upstreams of one process.
pub const UPSTREAMS_MAX: usize = 32;
/// Tools of one upstream; the others are left out.
pub const UPSTREAM_TOOLS_MAX: usize = 512;
/// Pages of its list that are asked for.
pub const UPSTREAM_PAGES_MAX: usize = 64;
/// What it says of one tool, as JSON.
pub const UPSTREAM_TOOL_BYTES_MAX: usize = 256 << 10;
/// One message of an upstream: a line, or the data of an event.
pub const UPSTREAM_MESSAGE_BYTES_MAX: usize = 16 << 20;
/// What of a call has come and waits to be published, before no more is read.
pub const UPSTREAM_WAITING_BYTES_MAX: usize = 4 << 20;
/// What waits to be read by an upstream; with more it is taken for dead.
pub const UPSTREAM_UNSENT_BYTES_MAX: usize = 8 << 20;
/// The result of a call that is given on in one piece; a longer one is read piece by piece.
pub const UPSTREAM_RESULT_BYTES_MAX: usize = 1 << 20;
/// Text of an upstream in an error.
pub const UPSTREAM_ERROR_CHARS_MAX: usize = 4 << 10;
/// Partial results of one call that are remembered, so that its result does not repeat them.
pub const UPSTREAM_PARTS_MAX: usize = 4 << 10;
/// How long a call may take, if nobody says otherwise.
pub const UPSTREAM_CALL_DEADLINE: Duration = Duration::from_secs(600);
/// The most that it can be set to.
pub const UPSTREAM_CALL_DEADLINE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// How long an upstream may take to be there and to list its tools: some are installed first.
pub const UPSTREAM_START_DEADLINE: Duration = Duration::from_secs(90);
/// How long it may be silent when it is asked whether it speaks the stateless era, ...
pub const UPSTREAM_PROBE_DEADLINE: Duration = Duration::from_secs(10);
/// ... and when it is asked for anything else but calls.
pub const UPSTREAM_ANSWER_DEADLINE: Duration = Duration::from_secs(30);
/// How long it has for its end once its standard input has ended, ...
pub const UPSTREAM_GRACE: Duration = Duration::from_secs(2);
/// ... and then again, once it was told to end.
pub const UPSTREAM_LINGER: Duration = Duration::from_millis(500);
/// How often it is looked at meanwhile.
pub const UPSTREAM_LOOK: Duration = Duration::from_millis(10);
/// How long the next start waits after an upstream has ended by itself: each time twice as long,
/// ...
pub const UPSTREAM_RETRY: Duration = Duration::from_millis(100);
/// ... up to this; ...
pub const UPSTREAM_RETRY_MAX: Duration = Duration::from_secs(30);
/// ... and from the beginning once it was there for so long.
pub const UPSTREAM_CALM: Duration = Duration::from_secs(60);
/// A line of an upstream's standard error, as the log has it.
pub const UPSTREAM_STDERR_BYTES_MAX: usize = 2 << 10;
/// Records of one upstream that the log takes in a second; further ones are counted.
pub const UPSTREAM_RECORDS_PER_S: u32 = 20;
/// How often the stream of one call is taken up again that its upstream has closed.
pub const UPSTREAM_RESUMES_MAX: u32 = 64;
/// The longest pause before that, whatever the upstream says.
pub const UPSTREAM_RESUME_MAX: Duration = Duration::from_secs(30);
/// A response on which nothing comes for so long is broken.
pub const UPSTREAM_SILENCE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// The words of a command.
pub const UPSTREAM_WORDS_MAX: usize = 256;

const _: () = {
    assert!(UPSTREAM_TOOL_BYTES_MAX < UPSTREAM_MESSAGE_BYTES_MAX);
    assert!(UPSTREAM_RESULT_BYTES_MAX < UPSTREAM_MESSAGE_BYTES_MAX);
    assert!(UPSTREAM_PROBE_DEADLINE.as_nanos() < UPSTREAM_START_DEADLINE.as_nanos());
    assert!(UPSTREAM_RETRY.as_nanos() < UPSTREAM_RETRY_MAX.as_nanos());
    assert!(UPSTREAM_CALL_DEADLINE.as_nanos() <= UPSTREAM_CALL_DEADLINE_MAX.as_nanos());
};

//! The test's own binary, run again as an MCP server.

use crate::scripted;

/// The variable that names the script of this process. It is not set in the test itself.
pub const ROLE: &str = "STREAMDOOR_TEST_UPSTREAM";

#[test]
fn plays_its_role() {
    if let Ok(script) = std::env::var(ROLE) {
        scripted::serve(&script);
        std::process::exit(0); // Prevents the test report on standard output.
    }
}

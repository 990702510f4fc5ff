//! The test's own binary, run again as a server of MCP.

use crate::scripted;

/// Says which server this process is to be; unset: it is the test itself.
pub const ROLE: &str = "STREAMDOOR_TEST_UPSTREAM";

#[test]
fn plays_its_role() {
    if let Ok(script) = std::env::var(ROLE) {
        scripted::serve(&script);
        std::process::exit(0); // Nothing of the test's own report comes behind it.
    }
}

//! The version of the program.

/// Returns the text of `--version`.
pub fn text() -> String {
    format!("streamdoor {}", env!("CARGO_PKG_VERSION"))
}

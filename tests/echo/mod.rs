//! A tool that repeats its input, for tests that search for bytes of others.

use serde_json::Value;
use streamdoor::server::ServerShard;
use streamdoor::tool::{Context, EmitError, Step, Tool, ToolError, ToolSpec, Work};

/// Number of chunks of the output. Each holds the whole nonce.
pub const CHUNKS: usize = 2;

/// A tool that repeats its nonce.
struct Echo {
    nonce: Vec<u8>,
    left: usize,
}

impl Tool for Echo {
    fn step(&mut self, context: &mut Context<'_>) -> Step {
        if self.left == 0 {
            return Step::Done;
        }
        match context.emit(&self.nonce) {
            Ok(_) => self.left -= 1,
            Err(EmitError::Blocked) => return Step::Blocked,
            Err(EmitError::TooLarge { .. }) => return Step::Failed(ToolError::new("too long")),
        }
        Step::Again
    }
}

/// Registers the tool with a shard.
pub fn set_up(shard: &mut ServerShard) {
    let spec = ToolSpec::new("echo", "Says what it is told.");
    let prepare = |arguments: &Value, need| {
        let nonce = arguments["nonce"].as_str().unwrap_or_default().as_bytes().to_vec();
        Ok((Work::Steps(Box::new(Echo { nonce, left: CHUNKS })), need))
    };
    shard.tools_mut().insert(spec, prepare).expect("it is described right");
}

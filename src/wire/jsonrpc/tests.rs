//! What is read and what is written, by the rules of JSON-RPC 2.0 as MCP has them.

use super::*;

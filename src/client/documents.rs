//! The server's replies about results, as values: documents of [`crate::api`] with their payload
//! decoded.

use serde_json::Value;

use super::error::{ClientError, printable};
use crate::api::{self, Document, Encoding, Ended, StateOf};
use crate::stream::{ExecutionState, Exit};
use crate::wire::base64;

/// The reply to [`super::Client::result`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The execution has ended.
    Ended(ExecutionOutput),
    /// The execution has not ended yet.
    Running(ExecutionState),
}

/// The outcome of an execution, and its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutionOutput {
    /// The final state.
    pub state: ExecutionState,
    /// Number of published chunks.
    pub chunks: u64,
    /// Number of their bytes.
    pub bytes: u64,
    /// True if `data` holds all of these bytes. Otherwise it holds only the newest.
    pub is_complete: bool,
    /// The bytes that the server still holds.
    pub data: Vec<u8>,
    /// The exit of the command, if the tool ran one.
    pub exit: Option<Exit>,
    /// The error of the execution, if it failed.
    pub error: Option<String>,
}

/// Reads a reply of the server.
pub(super) fn read<T: Document>(value: Value) -> Result<T, ClientError> {
    api::read(value, "the answer").map_err(|fault| ClientError::protocol(printable(&fault.text)))
}

impl Awaited {
    pub(super) fn read(value: Value, has_ended: bool) -> Result<Awaited, ClientError> {
        if !has_ended {
            return Ok(Awaited::Running(read::<StateOf>(value)?.state));
        }
        let ended: Ended<'_> = read(value)?;
        let data = match ended.encoding {
            Encoding::Text => Some(ended.data.into_owned().into_bytes()),
            Encoding::Base64 => base64::read(&ended.data),
        };
        Ok(Awaited::Ended(ExecutionOutput {
            state: ended.state,
            chunks: ended.chunks,
            bytes: ended.bytes,
            is_complete: ended.complete,
            data: data
                .ok_or_else(|| ClientError::protocol("`data` of the answer is not base 64"))?,
            exit: ended.exit,
            error: ended.error,
        }))
    }
}

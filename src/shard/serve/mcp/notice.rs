//! Notifications: what a tool publishes, as messages to the client that has called it.
//!
//! Chunks that are there at once share a notification: it is gathered here, in buffers that are
//! there once for all calls, and written when a chunk of another call comes, when it is long
//! enough, and before anything is sent. Nothing allocates but a connection's first buffer.
//!
//! Numbers: what the tool says of its progress, or else the chunk's; each above the one before.

use std::io::Write;

use super::super::Serve;
use super::call::{Asker, Outlet};
use super::{Ear, News, Part};
use crate::base::{Handle, SubscriberId};
use crate::engine::{Gap, Kind, Progress};
use crate::endpoint::StreamBody;
use crate::limits;
use crate::mcp::{Version, notify};
use crate::reactor::ConnectionId;
use crate::shard::{Chunk, Delivery, Reported};
use crate::wire::http1::{begin_chunk, end_chunk};
use crate::wire::sse;

/// Chunks on their way to one call.
#[derive(Debug, Default)]
pub(super) struct Notice {
    call: Option<Handle>,
    /// As they stand in the notification.
    chunks: Vec<u8>,
    /// Their payload, as far as it is text.
    message: Vec<u8>,
    payload_bytes: usize,
    /// Of the last one.
    progress: Option<Progress>,
    chunks_expected: Option<u64>,
}

impl Notice {
    pub fn is_open(&self) -> bool {
        self.call.is_some()
    }
}

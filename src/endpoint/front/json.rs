//! Server-sent events whose data is a JSON object.

pub(super) use crate::wire::object::{Object, write_object as object};

/// Appends an event whose data is an object.
pub(super) fn frame(out: &mut Vec<u8>, fill: impl FnOnce(&mut Object<'_>)) {
    out.extend_from_slice(b"data: ");
    object(out, fill);
    out.extend_from_slice(b"\n\n"); // Line feeds only: one client searches for these two bytes.
}

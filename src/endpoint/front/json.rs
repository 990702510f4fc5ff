//! Server-sent events that are objects of JSON.

pub(super) use crate::wire::object::{Object, write_object as object};

/// Appends an event that is an object.
pub(super) fn frame(out: &mut Vec<u8>, fill: impl FnOnce(&mut Object<'_>)) {
    out.extend_from_slice(b"data: ");
    object(out, fill);
    out.extend_from_slice(b"\n\n"); // Nothing but line feeds: one client looks for just these two.
}

//! The functions for writers.

use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

use streamdoor::client::ExecuteOptions;
use streamdoor::door::{DoorWriter, ProduceOptions};
use streamdoor::endpoint::PolicyChoice;
use streamdoor::engine::Hold;
use streamdoor::limits::KEYS_MAX;
use streamdoor::stream::Kind;

use crate::error::{Fault, guarded};
use crate::names::Names;
use crate::{DELIVERY, OK, at_door, pointers, policy, sd_door};

static WRITERS: Names<Held> = Names::new(3);

const NOTHING: c_int = 0;

/// A writer, and the number of bytes of its ring that are lent.
struct Held {
    writer: DoorWriter,
    lent_bytes: Option<usize>,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sd_writer {
    name: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sd_produce_options {
    struct_size: usize,
    ring_bytes: u32,
    chunk_bytes: u32,
    estimated_bytes: u64,
    policy: u32,
    hold_ms: u32,
}

fn delivery_options(options: Option<sd_produce_options>) -> Result<ProduceOptions, Fault> {
    let Some(options) = options else { return Ok(ProduceOptions::default()) };
    let some = |number: u32| (number > 0).then_some(number);
    let execution = ExecuteOptions {
        policy: policy(options.policy)?
            .map(|policy| PolicyChoice { policy, ..PolicyChoice::default() }),
        hold: match options.hold_ms {
            0 => None,
            u32::MAX => Some(Hold::Newest),
            ms => Some(Hold::UntilRead { deadline: Duration::from_millis(ms.into()) }),
        },
        ..ExecuteOptions::default()
    };
    Ok(ProduceOptions {
        ring_bytes: some(options.ring_bytes),
        chunk_bytes: some(options.chunk_bytes),
        estimated_bytes: (options.estimated_bytes > 0).then_some(options.estimated_bytes),
        execution,
    })
}

/// Converts a kind and a key. Fails if either is invalid.
fn header(kind: u32, key: u32) -> Result<(Kind, u8), Fault> {
    let known = u8::try_from(kind).ok().and_then(Kind::new);
    let known = known.ok_or_else(|| Fault::Argument(format!("kind: {kind} is not a kind")))?;
    match u8::try_from(key) {
        Ok(small) if usize::from(small) < KEYS_MAX => Ok((known, small)),
        _ => Err(Fault::Argument(format!("key: {key} is more than {}", KEYS_MAX - 1))),
    }
}

/// Calls `act` with a writer. This ends an earlier loan.
fn with<R>(
    writer: sd_writer,
    act: impl FnOnce(&mut DoorWriter) -> Result<R, Fault>,
) -> Result<R, Fault> {
    WRITERS.with(writer.name, |held| {
        held.lent_bytes = None;
        act(&mut held.writer)
    })
}

/// Sends bytes by `act`, and stores the number of the chunk. Returns `DELIVERY`, or `NOTHING` if
/// the bytes were not sent.
///
/// # Safety
/// The requirements of the header on `data`, `size` and `seq`.
unsafe fn send(
    kind: u32,
    key: u32,
    data: *const c_void,
    size: usize,
    seq: *mut u64,
    act: impl FnOnce(Kind, u8, &[u8]) -> Result<Option<u64>, Fault>,
) -> c_int {
    guarded(|| {
        let (kind, key) = header(kind, key)?;
        // SAFETY: the header requires it of the caller.
        let bytes = unsafe { pointers::bytes(data, size) }?;
        // SAFETY: the header requires it of the caller.
        let target = unsafe { pointers::place_or_none(seq, "seq") }?;
        let Some(sent) = act(kind, key, bytes)? else { return Ok(NOTHING) };
        target.into_iter().for_each(|target| *target = sent);
        Ok(DELIVERY)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sd_produce(
    door: sd_door,
    name: *const c_char,
    options: *const sd_produce_options,
    writer: *mut sd_writer,
) -> c_int {
    guarded(|| {
        // SAFETY: the header requires it of the caller.
        let name = unsafe { pointers::text(name, "name") }?;
        // SAFETY: the header requires it of the caller.
        let options = delivery_options(unsafe { pointers::options(options) }?)?;
        // SAFETY: the header requires it of the caller.
        let target = unsafe { pointers::place(writer, "writer") }?;
        let writer = at_door(door, |door| door.produce(name, &options))?;
        target.name = WRITERS.insert(Held { writer, lent_bytes: None })?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sd_writer_execution(
    writer: sd_writer,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    guarded(|| {
        let id = WRITERS.with(writer.name, |held| Ok(held.writer.execution().to_string()))?;
        // SAFETY: the header requires it of the caller.
        unsafe { pointers::write_text(&id, buffer, size) }?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn sd_chunk_bytes_max(writer: sd_writer) -> c_int {
    // The maximum size of a chunk fits into an int.
    guarded(|| WRITERS.with(writer.name, |held| Ok(held.writer.chunk_bytes_max() as c_int)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sd_send(
    writer: sd_writer,
    data: *const c_void,
    size: usize,
    seq: *mut u64,
) -> c_int {
    // SAFETY: the caller's contract is ours.
    unsafe { sd_send_as(writer, Kind::Output as u32, 0, data, size, seq) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sd_send_as(
    writer: sd_writer,
    kind: u32,
    key: u32,
    data: *const c_void,
    size: usize,
    seq: *mut u64,
) -> c_int {
    // SAFETY: the caller's contract is ours.
    unsafe {
        send(kind, key, data, size, seq, |kind, key, bytes| {
            with(writer, |writer| Ok(Some(writer.send_as(kind, key, bytes)?)))
        })
    }
    .min(OK)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sd_try_send(
    writer: sd_writer,
    kind: u32,
    key: u32,
    data: *const c_void,
    size: usize,
    seq: *mut u64,
) -> c_int {
    // SAFETY: the caller's contract is ours.
    unsafe {
        send(kind, key, data, size, seq, |kind, key, bytes| {
            with(writer, |writer| Ok(writer.try_send(kind, key, bytes)?))
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sd_lend(writer: sd_writer, size: usize, room: *mut *mut c_void) -> c_int {
    guarded(|| {
        // SAFETY: the header requires it of the caller.
        let target = unsafe { pointers::place(room, "room") }?;
        WRITERS.with(writer.name, |held| {
            held.lent_bytes = None;
            let room = held.writer.lend(size)?;
            *target = room.as_mut_ptr().cast();
            held.lent_bytes = Some(size);
            Ok(OK)
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sd_publish(
    writer: sd_writer,
    kind: u32,
    key: u32,
    size: usize,
    seq: *mut u64,
) -> c_int {
    guarded(|| {
        let (kind, key) = header(kind, key)?;
        // SAFETY: the header requires it of the caller.
        let target = unsafe { pointers::place_or_none(seq, "seq") }?;
        WRITERS.with(writer.name, |held| {
            let lent_bytes = held.lent_bytes.take();
            let why = match lent_bytes {
                None => "nothing is lent",
                Some(lent_bytes) if lent_bytes < size => "less was lent",
                Some(_) => {
                    let sent = held.writer.publish(kind, key, size);
                    target.into_iter().for_each(|target| *target = sent);
                    return Ok(OK);
                }
            };
            Err(Fault::Argument(format!("size: {why}")))
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sd_progress(
    writer: sd_writer,
    progress: f64,
    total: f64,
    message: *const c_char,
) -> c_int {
    guarded(|| {
        // SAFETY: the header requires it of the caller.
        let message = unsafe { pointers::text_or_none(message, "message") }?.unwrap_or("");
        if !progress.is_finite() || !total.is_finite() || total < 0.0 {
            return Err(Fault::Argument("progress: it is not a number".into()));
        }
        with(writer, |writer| {
            writer.progress(progress, (total > 0.0).then_some(total), message);
            Ok(OK)
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn sd_expect(writer: sd_writer, chunk_count: u64) -> c_int {
    guarded(|| {
        with(writer, |writer| {
            writer.expect_total(chunk_count);
            Ok(OK)
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn sd_is_stopped(writer: sd_writer) -> c_int {
    guarded(|| WRITERS.with(writer.name, |held| Ok(held.writer.is_stopped().into())))
}

#[unsafe(no_mangle)]
pub extern "C" fn sd_complete(writer: sd_writer) -> c_int {
    guarded(|| {
        WRITERS.remove(writer.name)?.writer.complete()?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sd_fail(writer: sd_writer, text: *const c_char) -> c_int {
    guarded(|| {
        // SAFETY: the header requires it of the caller.
        let text = unsafe { pointers::text(text, "text") }?;
        WRITERS.remove(writer.name)?.writer.fail(text)?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn sd_close_writer(writer: sd_writer) -> c_int {
    guarded(|| WRITERS.remove(writer.name).map(|_| OK))
}

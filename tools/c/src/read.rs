//! The functions for readers.

use std::ffi::{c_char, c_int};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null;
use std::time::Duration;

use streamdoor::door::{DoorReader, ReadOptions};
use streamdoor::engine::From;
use streamdoor::shard::Delivery;
use streamdoor::stream::{DetachReason, EndState, Exit, Kind, Kinds, Outcome};

use crate::error::{Fault, guarded};
use crate::names::Names;
use crate::{DELIVERY, OK, OVER, at_door, pointers, policy, sd_door};

static READERS: Names<DoorReader> = Names::new(2);

const NOTHING: c_int = 0;
const FLAG_MORE: u32 = 1;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sd_reader {
    name: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sd_read_options {
    struct_size: usize,
    policy: u32,
    from: u32,
    from_seq: u64,
    limit_chunks: u32,
    kinds: u32,
    limit_bytes: u64,
    headers_only: u32,
    reserved: u32,
}

#[repr(C)]
pub struct sd_delivery {
    struct_size: usize,
    r#type: u32,
    kind: u32,
    key: u32,
    flags: u32,
    seq: u64,
    to_seq: u64,
    chunk_count: u64,
    byte_count: u64,
    missed_chunks: u64,
    missed_bytes: u64,
    offset: u64,
    expected: u64,
    time_us: u64,
    time_ns: u64,
    progress: f64,
    total: f64,
    outcome: u32,
    exit_code: i32,
    exit_signal: i32,
    reserved: u32,
    data: *const u8,
    size: usize,
}

impl sd_delivery {
    /// Returns a delivery without content.
    fn empty(struct_size: usize, r#type: u32) -> sd_delivery {
        sd_delivery {
            struct_size,
            r#type,
            kind: 0,
            key: 0,
            flags: 0,
            seq: 0,
            to_seq: 0,
            chunk_count: 0,
            byte_count: 0,
            missed_chunks: 0,
            missed_bytes: 0,
            offset: 0,
            expected: 0,
            time_us: 0,
            time_ns: 0,
            progress: 0.0,
            total: 0.0,
            outcome: 0,
            exit_code: -1,
            exit_signal: 0,
            reserved: 0,
            data: null(),
            size: 0,
        }
    }

    fn of(struct_size: usize, delivery: &Delivery<'_>) -> sd_delivery {
        let empty = |r#type| sd_delivery::empty(struct_size, r#type);
        match delivery {
            Delivery::Chunk(chunk) => sd_delivery {
                kind: chunk.kind as u32,
                key: chunk.key.into(),
                flags: if chunk.more { FLAG_MORE } else { 0 },
                seq: chunk.seq,
                offset: chunk.offset,
                expected: chunk.chunks_expected.unwrap_or(0),
                time_us: chunk.timestamp_us(),
                time_ns: chunk.published_at.nanos(),
                data: chunk.data.as_ptr(),
                size: chunk.data.len(),
                ..empty(1)
            },
            Delivery::Gap(gap) => sd_delivery {
                seq: gap.from_seq,
                to_seq: gap.to_seq,
                chunk_count: gap.chunk_count,
                byte_count: gap.byte_count,
                ..empty(2)
            },
            Delivery::Progress(report) => {
                let (progress, message) = (report.progress, report.message.unwrap_or(""));
                sd_delivery {
                    progress: progress.progress,
                    total: progress.total.unwrap_or(0.0),
                    data: message.as_ptr(),
                    size: message.len(),
                    ..empty(3)
                }
            }
            Delivery::End(ended) => {
                let (end, error) = (ended.end, ended.error.unwrap_or(""));
                let (outcome, seq) = outcome(end.state);
                let (exit_code, exit_signal) = match end.exit {
                    None => (-1, 0),
                    Some(Exit::Code(code)) => (code, 0),
                    Some(Exit::Signal(signal)) => (-1, signal),
                };
                sd_delivery {
                    seq,
                    chunk_count: end.given.chunks,
                    byte_count: end.given.bytes,
                    missed_chunks: end.missed.chunks,
                    missed_bytes: end.missed.bytes,
                    outcome,
                    exit_code,
                    exit_signal,
                    data: error.as_ptr(),
                    size: error.len(),
                    ..empty(4)
                }
            }
        }
    }
}

/// Returns `SD_COMPLETED` and so on, and the number of the chunk from which to resume, or 0.
fn outcome(state: EndState) -> (u32, u64) {
    match state {
        EndState::Ended(Outcome::Completed) => (1, 0),
        EndState::Ended(Outcome::Failed) => (2, 0),
        EndState::Ended(Outcome::Cancelled) => (3, 0),
        EndState::Ended(Outcome::TimedOut) => (4, 0),
        EndState::Detached { reason, resume_from } => {
            let reason = match reason {
                DetachReason::Lag => 16,
                DetachReason::Stall => 17,
                DetachReason::Lost => 18,
                DetachReason::Shutdown => 19,
                DetachReason::Evicted => 20,
                DetachReason::Removed => 21,
            };
            (reason, resume_from)
        }
    }
}

/// Converts the options of a reader.
fn delivery_options(options: Option<sd_read_options>) -> Result<ReadOptions, Fault> {
    let Some(options) = options else { return Ok(ReadOptions::default()) };
    let wrong = |what: &str, number: u32| {
        Err(Fault::Argument(format!("{what}: {number} is not a valid value")))
    };
    let from = match options.from {
        0 => From::Start,
        1 => From::Live,
        2 => From::Seq { seq: options.from_seq, seen: None },
        number => return wrong("from", number),
    };
    let kinds = match options.kinds {
        0 => Kinds::ALL,
        bits => {
            let is_in = |kind: &Kind| bits >> *kind as u32 & 1 == 1;
            let named: Kinds = Kind::ALL.into_iter().filter(is_in).collect();
            let count = Kind::ALL.into_iter().filter(is_in).count() as u32;
            if count != bits.count_ones() {
                return wrong("kinds", bits);
            }
            named
        }
    };
    if options.headers_only > 1 {
        return wrong("headers_only", options.headers_only);
    }
    if options.reserved != 0 {
        return wrong("reserved", options.reserved);
    }
    Ok(ReadOptions {
        policy: policy(options.policy)?,
        limit_chunks: (options.limit_chunks > 0).then_some(options.limit_chunks),
        limit_bytes: (options.limit_bytes > 0).then_some(options.limit_bytes),
        from,
        kinds,
        headers_only: options.headers_only == 1,
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sd_read(
    door: sd_door,
    execution: *const c_char,
    options: *const sd_read_options,
    reader: *mut sd_reader,
) -> c_int {
    guarded(|| {
        // SAFETY: the header requires it of the caller.
        let execution = unsafe { pointers::text(execution, "execution") }?;
        // SAFETY: the header requires it of the caller.
        let options = delivery_options(unsafe { pointers::options(options) }?)?;
        // SAFETY: the header requires it of the caller.
        let target = unsafe { pointers::place(reader, "reader") }?;
        target.name = READERS.insert(at_door(door, |door| door.read(execution, &options))?)?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sd_run(
    door: sd_door,
    tool: *const c_char,
    arguments: *const c_char,
    options: *const sd_read_options,
    reader: *mut sd_reader,
) -> c_int {
    guarded(|| {
        // SAFETY: the header requires it of the caller.
        let tool = unsafe { pointers::text(tool, "tool") }?;
        // SAFETY: the header requires it of the caller.
        let arguments = unsafe { pointers::text_or_none(arguments, "arguments") }?.unwrap_or("{}");
        let arguments: serde_json::Value = serde_json::from_str(arguments)
            .map_err(|error| Fault::Argument(format!("arguments: {error}")))?;
        // SAFETY: the header requires it of the caller.
        let options = delivery_options(unsafe { pointers::options(options) }?)?;
        // SAFETY: the header requires it of the caller.
        let target = unsafe { pointers::place(reader, "reader") }?;
        let run = at_door(door, |door| door.run(tool, &arguments, &options))?;
        target.name = READERS.insert(run)?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sd_next(
    reader: sd_reader,
    timeout_ms: i64,
    delivery: *mut sd_delivery,
) -> c_int {
    // SAFETY: the caller's contract is ours.
    unsafe {
        give(reader, delivery, |reader| match u64::try_from(timeout_ms) {
            Ok(limit_ms) => reader.next_within(Duration::from_millis(limit_ms)),
            Err(_) => reader.next(),
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sd_poll(reader: sd_reader, delivery: *mut sd_delivery) -> c_int {
    // SAFETY: the caller's contract is ours.
    unsafe { give(reader, delivery, DoorReader::poll) }
}

/// # Safety
/// `delivery` is NULL, or such a structure of the caller, which contains its size.
unsafe fn give(
    reader: sd_reader,
    delivery: *mut sd_delivery,
    take: impl FnOnce(&mut DoorReader) -> Result<Option<Delivery<'_>>, streamdoor::door::DoorError>,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's contract is ours; the size is its first word.
        let struct_size = *unsafe { pointers::place(delivery.cast::<usize>(), "delivery") }?;
        pointers::check_size::<sd_delivery>(struct_size, "delivery")?;
        // SAFETY: as above, and it has all of its bytes.
        let target = unsafe { pointers::place(delivery, "delivery") }?;
        READERS.with(reader.name, |reader| {
            if let Some(found) = take(reader)? {
                *target = sd_delivery::of(struct_size, &found);
                return Ok(DELIVERY);
            }
            Ok(if reader.is_over() { OVER } else { NOTHING })
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn sd_fd(reader: sd_reader) -> c_int {
    guarded(|| READERS.with(reader.name, |reader| Ok(reader.as_fd().as_raw_fd())))
}

#[unsafe(no_mangle)]
pub extern "C" fn sd_watch(reader: sd_reader) -> c_int {
    guarded(|| READERS.with(reader.name, |reader| Ok(reader.watch().into())))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sd_reader_execution(
    reader: sd_reader,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    guarded(|| {
        READERS.with(reader.name, |reader| {
            let id = reader.execution().to_string();
            // SAFETY: the header requires it of the caller.
            unsafe { pointers::write_text(&id, buffer, size) }?;
            Ok(OK)
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn sd_close_reader(reader: sd_reader) -> c_int {
    guarded(|| READERS.remove(reader.name).map(|_| OK))
}

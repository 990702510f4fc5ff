//! The floor of `bench journal`: the least that has to be done with a file.
//!
//! No format, no checksum of what is written, no second file. The file of durable messages is full
//! of zeros before the run, as segments of a journal are. No write changes its size.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::{ReadWriteFlags, pwritev2};
use streamdoor::base::PageBuffer;

use crate::common::Failure;
use crate::common::journal::{Durable, Found, Load, publish};
use crate::common::machine::{now_ns, preemption_count};

const FILE_BYTES: u64 = 64 << 20;
const PAGE_BYTES: usize = 4 << 10;
const WRITE_BYTES: usize = 1 << 20;
const READ_BYTES: usize = 64 << 10;
const SYNC_BYTES: u64 = 16 << 20;

/// Measures the floor with files in `folder`.
///
/// # Errors
/// [`Failure`].
pub fn measure(load: &Load, folder: &Path) -> Result<Found, Failure> {
    let path = folder.join("floor");
    let failed = |error: io::Error| Failure::Failed(error.to_string());
    match (load.mode, load.plan.implementation) {
        ("publish", name) => {
            let mut log = Bare::new(&path, name == "floor", load).map_err(failed)?;
            publish(load, &mut log)
        }
        ("sustained", "floor") => sustained(load, &path).map_err(failed),
        ("replay" | "verify", "floor") => replay(load, &path).map_err(failed),
        (mode, name) => Err(Failure::Usage(format!("--impl {name}: not for --mode {mode}"))),
    }
}

/// A file whose pages are written in turn.
struct Bare {
    file: File,
    buffer: PageBuffer,
    offset: u64,
    is_direct: bool,
}

impl Bare {
    fn new(path: &Path, is_direct: bool, load: &Load) -> io::Result<Bare> {
        let mut file = File::create_new(path)?;
        for _ in 0..FILE_BYTES / WRITE_BYTES as u64 {
            file.write_all(&[0; WRITE_BYTES])?;
        }
        file.sync_all()?;
        let flags = if is_direct { OFlags::DIRECT } else { OFlags::empty() };
        let flags = flags.bits() as i32;
        let file = OpenOptions::new().write(true).custom_flags(flags).open(path)?;
        let bytes = load.plan.size_bytes * load.in_flight as usize;
        let buffer = PageBuffer::new(bytes.next_multiple_of(PAGE_BYTES));
        Ok(Bare { file, buffer, offset: 0, is_direct })
    }

    fn write(&mut self) -> io::Result<()> {
        let (buffer, offset) = (&self.buffer[..], self.offset);
        if !self.is_direct {
            self.file.write_all_at(buffer, offset)?;
            return self.file.sync_data();
        }
        let written = pwritev2(&self.file, &[IoSlice::new(buffer)], offset, ReadWriteFlags::DSYNC)?;
        if written < buffer.len() {
            return Err(io::Error::other("a write was not whole"));
        }
        Ok(())
    }
}

impl Durable for Bare {
    fn publish(
        &mut self,
        payload: &[u8],
        count: u32,
        kept: &mut dyn FnMut(u32),
    ) -> Result<(), String> {
        for message in self.buffer.chunks_exact_mut(payload.len()).take(count as usize) {
            message.copy_from_slice(payload);
        }
        self.write().map_err(|error| error.to_string())?;
        kept(count);
        self.offset += self.buffer.len() as u64;
        if self.offset + self.buffer.len() as u64 > FILE_BYTES {
            self.offset = 0;
        }
        Ok(())
    }
}

fn sustained(load: &Load, path: &Path) -> io::Result<Found> {
    let payload = load.payload();
    let messages = (WRITE_BYTES / payload.len()).max(1) as u64;
    let bytes = payload.repeat(messages as usize);
    let mut file = File::create_new(path)?;
    let (before, start_ns) = (preemption_count(), now_ns());
    let (mut written, mut synced) = (0, 0);
    while now_ns() - start_ns < load.plan.duration.as_nanos() as u64 {
        file.write_all(&bytes)?;
        written += messages;
        if (written - synced) * payload.len() as u64 >= SYNC_BYTES {
            file.sync_data()?;
            synced = written;
        }
    }
    Ok(Found::rate(written, 0, start_ns, before))
}

fn replay(load: &Load, path: &Path) -> io::Result<Found> {
    let payload = load.payload();
    let mut file = File::create_new(path)?;
    let messages = (WRITE_BYTES / payload.len()).max(1) as u64;
    let bytes = payload.repeat(messages as usize);
    let mut written = 0;
    while written < load.messages() {
        file.write_all(&bytes)?;
        written += messages;
    }
    file.sync_all()?;
    let (file, mut buffer) = (File::open(path)?, PageBuffer::new(READ_BYTES));
    let (before, start_ns) = (preemption_count(), now_ns());
    let (mut read, mut sum) = (0, 0);
    loop {
        let mut offset = 0;
        loop {
            let count = file.read_at(&mut buffer, offset)?;
            if count == 0 {
                break;
            }
            sum = crc32c::crc32c_append(sum, &buffer[..count]);
            offset += count as u64;
        }
        read += written;
        if now_ns() - start_ns >= load.plan.duration.as_nanos() as u64 {
            std::hint::black_box(sum);
            return Ok(Found::rate(read, 0, start_ns, before));
        }
    }
}

//! `process_file {file_path, chunk_size}`: streams the bytes of a file as they are read.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use serde_json::{Value, json};

use crate::base::plain::length_of_whole_characters;
use crate::limits;
use crate::memory::Geometry;
use crate::stream::Policy;
use crate::tool::{
    ArgumentError, Arguments, Files, Need, Output, SubscribeDefaults, ToolError, ToolSpec, Work,
};

const CHUNK_BYTES_DEFAULT: u64 = 32 << 10; // One read of the sift seed.
/// The longest chunk of the largest ring.
const CHUNK_BYTES_MAX: u64 =
    Geometry::of_class(limits::RING_CLASS_BYTES[limits::RING_CLASS_BYTES.len() - 1]).length_max()
        as u64;

pub(super) fn spec() -> ToolSpec {
    ToolSpec {
        arguments: json!({
            "type": "object",
            "properties": {
                "file_path": {
                    "type": "string",
                    "minLength": 1,
                    "description": "The path of the file: absolute, or relative to the folder of \
                                    the program.",
                },
                "chunk_size": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": CHUNK_BYTES_MAX,
                    "default": CHUNK_BYTES_DEFAULT,
                    "description": "The bytes of one chunk. If given, every chunk except the last \
                                    has this size, or up to 3 bytes less where a character of \
                                    UTF-8 would be cut; the call is refused while memory is too \
                                    short for it.",
                },
            },
            "required": ["file_path"],
            "additionalProperties": false,
        }),
        subscribers: SubscribeDefaults { policy: Policy::Block, ..Default::default() },
        ..ToolSpec::new("process_file", "Streams the bytes of a file while reading it.")
    }
}

pub(super) fn prepare(
    arguments: &Value,
    need: Need,
    files: &Files,
) -> Result<(Work, Need), ArgumentError> {
    // A requested size is used or refused. The default is cut to the longest chunk of the ring.
    let is_asked = arguments.get("chunk_size").is_some();
    let mut arguments = Arguments::new(arguments)?;
    let path = arguments.path("file_path")?;
    let chunk_bytes = arguments.number("chunk_size", CHUNK_BYTES_DEFAULT, 1..=CHUNK_BYTES_MAX)?;
    arguments.finish()?;
    let largest = *limits::RING_CLASS_BYTES.last().expect("there are classes");
    let ring_bytes = (chunk_bytes as u32 * 8).clamp(limits::RING_NEED_BYTES_DEFAULT, largest);
    let files = files.clone();
    let work = Work::Thread(Box::new(move |out| stream(&files, &path, chunk_bytes as usize, out)));
    let asked_bytes = if is_asked { chunk_bytes as u32 } else { 0 };
    Ok((work, Need { ring_bytes, chunk_bytes: need.chunk_bytes.max(asked_bytes), ..need }))
}

fn stream(
    files: &Files,
    path: &Path,
    chunk_bytes: usize,
    out: &mut Output,
) -> Result<(), ToolError> {
    let failed =
        |error: std::io::Error| ToolError::new(format!("`file_path` {}: {error}", path.display()));
    let mut file = files.open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(ToolError::new(format!("`file_path` {} is a directory", path.display())));
    }
    if metadata.is_file() {
        out.expect_total(chunk_count(metadata.len(), chunk_bytes, out.chunk_bytes_max()));
    }
    let mut buffer = vec![0; chunk_bytes];
    let (mut sent_bytes, mut sent_count) = (0u64, 0);
    let mut kept = 0; // Bytes of a character that would have been cut.
    loop {
        let length = kept + read_full(&mut file, &mut buffer[kept..]).map_err(failed)?;
        if length == 0 {
            return Ok(());
        }
        let is_last = length < chunk_bytes;
        let whole = if is_last { length } else { length_of_whole_characters(&buffer[..length]) };
        out.send(&buffer[..whole])?;
        buffer.copy_within(whole..length, 0);
        kept = length - whole;
        sent_bytes += whole as u64;
        sent_count += chunk_count(whole as u64, chunk_bytes, out.chunk_bytes_max());
        if metadata.is_file() {
            let file_bytes = metadata.len().max(sent_bytes);
            if kept > 0 {
                let rest_bytes = file_bytes - sent_bytes;
                let rest = chunk_count(rest_bytes, chunk_bytes, out.chunk_bytes_max());
                out.expect_total(sent_count + rest);
            }
            out.progress(sent_bytes as f64, Some(file_bytes as f64));
        }
    }
}

/// Number of chunks of a file of `file_bytes`, if it does not change. Each read is sent in pieces
/// of at most `piece_bytes`.
fn chunk_count(file_bytes: u64, chunk_bytes: usize, piece_bytes: u32) -> u64 {
    let (chunk_bytes, piece_bytes) = (chunk_bytes as u64, u64::from(piece_bytes));
    let whole_reads = file_bytes / chunk_bytes;
    whole_reads * chunk_bytes.div_ceil(piece_bytes)
        + (file_bytes % chunk_bytes).div_ceil(piece_bytes)
}

/// Reads until `buffer` is full or the file ends.
fn read_full(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_size_that_is_asked_for_is_what_the_ring_must_take() {
        let need_of = |arguments: Value| {
            prepare(&arguments, Need::default(), &Files::Anywhere).map(|(_, need)| need)
        };
        let asked = need_of(json!({"file_path": "a", "chunk_size": 65_536})).unwrap();
        assert_eq!(asked.chunk_bytes, 65_536);
        let free = need_of(json!({"file_path": "a"})).unwrap();
        assert_eq!(free.chunk_bytes, Need::default().chunk_bytes);
        let most = need_of(json!({"file_path": "a", "chunk_size": CHUNK_BYTES_MAX})).unwrap();
        let largest = Geometry::of_class(*limits::RING_CLASS_BYTES.last().unwrap());
        assert_eq!(most.chunk_bytes, largest.length_max());
        let more = json!({"file_path": "a", "chunk_size": CHUNK_BYTES_MAX + 1});
        assert_eq!(need_of(more).unwrap_err().field, "chunk_size");
    }

    #[test]
    fn chunks_are_counted_as_they_are_sent() {
        assert_eq!(chunk_count(0, 100, 1_000), 0);
        assert_eq!(chunk_count(1, 100, 1_000), 1);
        assert_eq!(chunk_count(200, 100, 1_000), 2);
        assert_eq!(chunk_count(201, 100, 60), 5);
    }
}

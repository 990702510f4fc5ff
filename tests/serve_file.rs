//! A file of 200 MiB, half of it text, to 16 SSE and 16 NDJSON subscribers at once under `block`.
//! All of them get every byte. Each chunk is encoded once for each format. The server's memory
//! stays flat.
#![cfg(feature = "cli")]

mod served;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use served::Server;
use sha2::{Digest, Sha256};
use streamdoor::base::Random;

const FILE_BYTES: usize = 200 << 20;
/// Size of the parts of the file, which are text and binary data in turn. Text arrives as text,
/// binary data in base 64.
const PART_BYTES: usize = 1 << 20;
const SUBSCRIBERS_OF_FORMAT: usize = 16;
const FORMATS: [&str; 2] = ["sse", "ndjson"];
/// The allowed growth above the idle server: rings, frames, and the send buffers of 32 connections.
/// The file is three times as large, and all data sent a hundred times.
const GROWTH_BYTES_MAX: u64 = 64 << 20;

/// A temporary file that is removed when the value is dropped.
struct File {
    path: PathBuf,
    hash: Vec<u8>,
}

impl File {
    fn new(seed: u64) -> File {
        let name = format!("streamdoor-serve-file-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut random = Random::new(seed);
        let mut file = std::fs::File::create(&path).unwrap();
        let mut hash = Sha256::new();
        let mut part = Vec::with_capacity(PART_BYTES + 100);
        for index in 0..FILE_BYTES / PART_BYTES {
            part.clear();
            while part.len() < PART_BYTES {
                match index % 2 {
                    0 => {
                        let (a, b) = (random.next_u64(), random.next_u64());
                        writeln!(part, "line {} of \"{a:x}\":\tvalue {b}", part.len()).unwrap();
                    }
                    _ => part.extend_from_slice(&random.next_u64().to_le_bytes()),
                }
            }
            part.truncate(PART_BYTES);
            file.write_all(&part).unwrap();
            hash.update(&part);
        }
        File { path, hash: hash.finalize().to_vec() }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The data that a subscriber received.
#[derive(Default)]
struct Got {
    hash: Vec<u8>,
    bytes: u64,
    texts: u64,
    chunks: u64,
}

/// Reads a stream to its end with no code of this program.
fn read(stream: impl Read) -> Got {
    let mut stream = BufReader::with_capacity(256 << 10, stream);
    let mut line = Vec::new();
    while line != b"\r\n" {
        line.clear();
        assert!(stream.read_until(b'\n', &mut line).unwrap() > 0);
    }
    let mut body = BufReader::with_capacity(256 << 10, Chunked { stream, left_bytes: 0 });
    let (mut got, mut hash) = (Got::default(), Sha256::new());
    loop {
        line.clear();
        if body.read_until(b'\n', &mut line).unwrap() == 0 {
            panic!("the stream ended without an end");
        }
        let json = line.strip_prefix(b"data: ").unwrap_or(&line);
        if !json.starts_with(b"{") {
            continue; // The other lines of SSE.
        }
        let event: Value = serde_json::from_slice(json).unwrap();
        if let Some(state) = event.get("state") {
            assert_eq!(state, "completed", "{event}");
            got.hash = hash.finalize().to_vec();
            return got;
        }
        let Some(data) = event.get("data") else { continue };
        got.chunks += 1;
        assert_eq!(event["seq"], got.chunks);
        assert_eq!(event["offset"], got.bytes);
        let data = data.as_str().unwrap();
        if event["encoding"] == "text" {
            got.texts += 1;
            got.bytes += data.len() as u64;
            hash.update(data);
        } else {
            let bytes = decoded(data.as_bytes());
            got.bytes += bytes.len() as u64;
            hash.update(&bytes);
        }
    }
}

/// Decodes base 64.
fn decoded(text: &[u8]) -> Vec<u8> {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut values = [0; 256];
    for (value, digit) in digits.iter().enumerate() {
        values[usize::from(*digit)] = value as u32;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for four in text.chunks_exact(4) {
        let bits = four.iter().fold(0, |bits, digit| bits << 6 | values[usize::from(*digit)]);
        bytes.extend_from_slice(&bits.to_be_bytes()[1..]);
    }
    let padding_bytes = text.iter().rev().take_while(|digit| **digit == b'=').count();
    bytes.truncate(bytes.len() - padding_bytes);
    bytes
}

/// A reader that removes the chunked encoding from an HTTP body.
struct Chunked<R> {
    stream: R,
    left_bytes: usize,
}

impl<R: BufRead> Read for Chunked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.left_bytes == 0 {
            let mut line = String::new();
            self.stream.read_line(&mut line)?;
            if line == "\r\n" {
                line.clear(); // The end of the previous chunk.
                self.stream.read_line(&mut line)?;
            }
            self.left_bytes = usize::from_str_radix(line.trim_end(), 16).expect("a size");
        }
        let most = self.left_bytes.min(buffer.len());
        let count = self.stream.read(&mut buffer[..most])?;
        self.left_bytes -= count;
        Ok(count)
    }
}

#[test]
fn a_large_file_reaches_32_subscribers_whole_through_flat_memory() {
    let file = File::new(1);
    let server = Server::start(&["--files-root", std::env::temp_dir().to_str().unwrap()]);
    // One small execution runs first: memory that is bought once is no growth.
    let warm = json!({"tool": "slow_data_processor", "arguments": {"chunks": 10, "delay_ms": 0}});
    server.ask("POST", "/v1/executions?format=sse", &warm.to_string());
    let idle_bytes = server.memory_bytes("VmRSS:");
    let before = ["streamdoor_frames_encoded_total", "streamdoor_chunks_published_total"]
        .map(|name| server.metric(name));

    let count = SUBSCRIBERS_OF_FORMAT * FORMATS.len();
    let events = server.execute(&json!({
        "tool": "process_file",
        "arguments": {"file_path": file.path},
        "start": {"after_subscribers": count},
        "policy": "block",
    }));
    let readers: Vec<_> = (0..count)
        .map(|index| {
            let format = FORMATS[index % FORMATS.len()];
            let stream = server.follow(&format!("{events}?format={format}"));
            std::thread::spawn(move || read(stream))
        })
        .collect();
    let mut samples = Vec::new();
    while !readers.iter().all(|reader| reader.is_finished()) {
        samples.push(server.memory_bytes("VmRSS:"));
        std::thread::sleep(Duration::from_millis(20));
    }
    for reader in readers {
        let got = reader.join().unwrap();
        assert_eq!(got.bytes, FILE_BYTES as u64);
        assert!(got.hash == file.hash, "another file arrived");
        assert!(got.texts > got.chunks / 3 && got.texts < got.chunks * 2 / 3, "{}", got.texts);
    }

    let [encoded, chunks] =
        ["streamdoor_frames_encoded_total", "streamdoor_chunks_published_total"]
            .map(|name| server.metric(name));
    let (encoded, chunks) = (encoded - before[0], chunks - before[1]);
    let ratio = encoded as f64 / (chunks as f64 * FORMATS.len() as f64);
    println!("encodes / (chunks x formats): {encoded} / ({chunks} x 2) = {ratio:.4}");
    let most_bytes = server.memory_bytes("VmHWM:");
    let growth_bytes = most_bytes.saturating_sub(idle_bytes);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "memory: idle {:.1} MiB, at most {:.1} MiB, growth {:.1} MiB; {} samples {:.1} to {:.1}",
        mib(idle_bytes),
        mib(most_bytes),
        mib(growth_bytes),
        samples.len(),
        mib(samples.iter().copied().min().unwrap_or(0)),
        mib(samples.iter().copied().max().unwrap_or(0)),
    );
    assert!(ratio <= 1.1, "chunks are encoded more than once for a format");
    assert!(growth_bytes < GROWTH_BYTES_MAX, "memory is not flat");
}

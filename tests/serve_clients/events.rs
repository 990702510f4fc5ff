//! The events of a subscriber, and checks that they are complete.

use serde_json::Value;
use streamdoor::wire::sse::Decoder;

/// Parses lines of NDJSON.
pub fn of_ndjson(text: &[u8]) -> Vec<Value> {
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

/// Parses SSE. Checks that the name and the `id:` of each event match its data.
pub fn of_sse(mut text: &[u8]) -> Vec<Value> {
    let mut decoder = Decoder::new();
    let mut events = Vec::new();
    while let Some(message) = decoder.read(&mut text).unwrap() {
        let event: Value = serde_json::from_str(&message.data()).unwrap();
        assert_eq!(event["event"], *message.name());
        let seq = match message.name().as_ref() {
            "chunk" => Some(&event["seq"]),
            "gap" => Some(&event["to_seq"]),
            _ => None,
        };
        if let Some(seq) = seq {
            let id = decoder.last_id();
            let mut parts = id.split(':');
            assert_eq!(parts.next(), event["execution"].as_str());
            assert_eq!(parts.next(), Some(seq.to_string().as_str()));
        }
        events.push(event);
    }
    events
}

/// Parses a stream of this format.
pub fn of(format: &str, text: &[u8]) -> Vec<Value> {
    match format {
        "sse" => of_sse(text),
        _ => of_ndjson(text),
    }
}

/// Number of chunks and of their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub chunks: u64,
    pub bytes: u64,
}

impl Sum {
    pub fn add(&mut self, chunks: u64, bytes: u64) {
        self.chunks += chunks;
        self.bytes += bytes;
    }
}

/// Checks that the chunks and gaps are contiguous from the first chunk on. Each chunk must have its
/// expected data, and each gap must cover exactly the missing chunks. Returns the sums of the
/// chunks and of the gaps.
pub fn check(events: &[Value], data: impl Fn(u64) -> Vec<u8>) -> (Sum, Sum) {
    let (mut given, mut missed) = (Sum::default(), Sum::default());
    let mut next_seq = 1;
    for event in events {
        match event["event"].as_str().unwrap() {
            "chunk" => {
                let expected = data(next_seq);
                assert_eq!(event["seq"], next_seq, "{event}");
                assert_eq!(event["data"].as_str().unwrap().as_bytes(), expected, "{event}");
                assert_eq!(event["offset"], given.bytes + missed.bytes, "{event}");
                given.add(1, expected.len() as u64);
                next_seq += 1;
            }
            "gap" => {
                let until = event["to_seq"].as_u64().unwrap() + 1;
                let bytes: u64 = (next_seq..until).map(|seq| data(seq).len() as u64).sum();
                assert_eq!(event["from_seq"], next_seq, "{event}");
                assert!(until > next_seq, "{event}");
                assert_eq!(event["chunk_count"], until - next_seq, "{event}");
                assert_eq!(event["byte_count"], bytes, "{event}");
                // No test asks for `conflate`. The other reasons depend on timing.
                let reasons = ["lag", "late", "overtaken"];
                assert!(reasons.iter().any(|reason| event["reason"] == *reason), "{event}");
                missed.add(until - next_seq, bytes);
                next_seq = until;
            }
            "started" | "progress" | "end" => {}
            other => panic!("{other} is no event"),
        }
    }
    (given, missed)
}

/// Like [`check`], for a connection that lasted from the start to an end with this state.
pub fn check_whole(events: &[Value], state: &str, data: impl Fn(u64) -> Vec<u8>) -> (Sum, Sum) {
    let count = |name: &str| events.iter().filter(|event| event["event"] == name).count();
    assert_eq!((count("started"), count("end")), (1, 1));
    assert_eq!(events[0]["event"], "started");
    let (given, missed) = check(events, data);
    let end = events.last().unwrap();
    assert_eq!(end["event"], "end");
    assert_eq!(end["state"], state, "{end}");
    let told = [&end["chunks"], &end["bytes"], &end["missed_chunks"], &end["missed_bytes"]];
    assert_eq!(told, [given.chunks, given.bytes, missed.chunks, missed.bytes]);
    let totals = [&end["execution_chunks"], &end["execution_bytes"]];
    assert_eq!(totals, [given.chunks + missed.chunks, given.bytes + missed.bytes], "{end}");
    (given, missed)
}

//! Tests of the standard's rules on a table of streams, each cut everywhere, and of reading what
//! the encoder writes.

use std::time::Duration;

use super::{
    DecodeError, Decoder, END, KEEP_ALIVE, write_comment, write_data, write_name, write_retry,
};
use crate::base::Random;

/// An event: its name, data and id.
type EventTexts = (String, String, String);

/// The result of reading `bytes`, which arrive cut at `cuts`: events, last id, wait, and end.
type Read = (Vec<EventTexts>, String, Option<Duration>, Result<(), DecodeError>);

fn read(bytes: &[u8], cuts: &[usize]) -> Read {
    let mut decoder = Decoder::with_limits(40, 50);
    let mut told = Vec::new();
    let mut end = Ok(());
    let mut from = 0;
    'pieces: for &to in cuts.iter().chain([&bytes.len()]) {
        let mut input = &bytes[from..to];
        from = to;
        loop {
            match decoder.read(&mut input) {
                Ok(Some(message)) => {
                    let texts = (message.name(), message.data(), message.id());
                    told.push((texts.0.into(), texts.1.into(), texts.2.into()));
                }
                Ok(None) => break assert!(input.is_empty()),
                Err(error) => {
                    end = Err(error);
                    assert!(decoder.read(&mut &b"data: x\n\n"[..]).is_err());
                    break 'pieces;
                }
            }
        }
    }
    (told, decoder.last_id().into(), decoder.retry(), end)
}

fn assert_read(bytes: &[u8], expected: &Read) {
    let text = String::from_utf8_lossy(bytes);
    assert_eq!(read(bytes, &[]), *expected, "{text:?} at once");
    let everywhere: Vec<usize> = (0..bytes.len()).collect();
    assert_eq!(read(bytes, &everywhere), *expected, "{text:?} byte by byte");
    for at in 0..bytes.len() {
        assert_eq!(read(bytes, &[at]), *expected, "{text:?} cut at {at}");
    }
    for at in 1..bytes.len() {
        assert_eq!(read(bytes, &[at - 1, at]), *expected, "{text:?} around byte {at}");
    }
}

/// A stream, and its events as (name, data, id).
type ExpectedStream = (&'static [u8], &'static [(&'static str, &'static str, &'static str)]);

#[rustfmt::skip]
const STREAMS: &[ExpectedStream] = &[
    (b"", &[]),
    (b"data: a\n\n", &[("message", "a", "")]),
    // Line ends of each kind, mixed.
    (b"data: a\r\n\r\n", &[("message", "a", "")]),
    (b"data: a\r\rdata: b\r\r", &[("message", "a", ""), ("message", "b", "")]),
    (b"data: a\n\r\ndata: b\r\n\n", &[("message", "a", ""), ("message", "b", "")]),
    (b"data: a\r\ndata: b\rdata: c\n\r", &[("message", "a\nb\nc", "")]),
    (b"\r\n\n\r\r\ndata: a\r\n\r\n\r\n", &[("message", "a", "")]),
    // Only line feed and carriage return end lines.
    ("data: a\u{2028}b\u{85}c\u{b}\u{c}\0\n\n".as_bytes(),
        &[("message", "a\u{2028}b\u{85}c\u{b}\u{c}\0", "")]),
    // One space after the colon is removed, and no more.
    (b"data:a\n\ndata:  b \n\ndata:\tc\n\n",
        &[("message", "a", ""), ("message", " b ", ""), ("message", "\tc", "")]),
    (b"data : a\n\n data: b\n\nData: c\n\n", &[]),
    // Empty data is data; no data is no event.
    (b"data\n\n", &[("message", "", "")]),
    (b"data:\n\n", &[("message", "", "")]),
    (b"data\ndata\n\n", &[("message", "\n", "")]),
    (b"data\n\ndata\ndata\n\ndata:", &[("message", "", ""), ("message", "\n", "")]),
    (b"event: x\n\ndata: a\n\n", &[("message", "a", "")]),
    // Comments and unknown fields.
    (b": data: a\n:\n:\r\n\n", &[]),
    (b"data: a\n: b\nfoo: c\nfoo\ndata: d\n\n", &[("message", "a\nd", "")]),
    (b"data: a:b: c\n\n", &[("message", "a:b: c", "")]),
    // Event names.
    (b"event: x\ndata: a\n\ndata: b\n\n", &[("x", "a", ""), ("message", "b", "")]),
    (b"event: x\nevent: y\ndata: a\n\n", &[("y", "a", "")]),
    (b"event: x\nevent\ndata: a\n\n", &[("message", "a", "")]),
    // An id stays until the next one; an id with NUL is ignored.
    (b"id: 1\ndata: a\n\ndata: b\n\nid\ndata: c\n\n",
        &[("message", "a", "1"), ("message", "b", "1"), ("message", "c", "")]),
    (b"id: 1\nid: 2\0\ndata: a\n\n", &[("message", "a", "1")]),
    (b"id: 1\n\ndata: a\n\n", &[("message", "a", "1")]),
    (b"id: 1\ndata: a\n\nid: 2\ndata: b\n", &[("message", "a", "1")]),
    // A byte order mark, once.
    (b"\xEF\xBB\xBFdata: a\n\n", &[("message", "a", "")]),
    (b"\xEF\xBB\xBF\xEF\xBB\xBFdata: a\n\ndata: b\n\n", &[("message", "b", "")]),
    (b"\xEF\xBBdata: a\n\ndata: b\n\n", &[("message", "b", "")]),
    (b"\xEF\n\xBBdata: a\ndata: b\n\n", &[("message", "b", "")]),
    (b"\n\xEF\xBB\xBFdata: a\ndata: b\n\n", &[("message", "b", "")]),
    (b"\xEF\xBB\xBF", &[]),
    // An incomplete event is dropped.
    (b"data: a\n\ndata: b\n", &[("message", "a", "")]),
    (b"data: a\n\ndata: b", &[("message", "a", "")]),
    // Bytes that are not UTF-8.
    (b"data: \xFFa\xE2\x82\ndata: \xAC\n\n", &[("message", "\u{fffd}a\u{fffd}\n\u{fffd}", "")]),
];

#[test]
fn streams_are_read_by_the_standard_however_they_are_cut() {
    for (bytes, messages) in STREAMS {
        let told: Vec<EventTexts> = messages
            .iter()
            .map(|(name, data, id)| (name.to_string(), data.to_string(), id.to_string()))
            .collect();
        let (_, last_id, retry, _) = read(bytes, &[]);
        let last = told.last().map_or("", |(_, _, id)| id);
        assert!(last_id == last || bytes.ends_with(b"\n\n"), "{last_id} {last}");
        assert_eq!(retry, None);
        assert_read(bytes, &(told, last_id, None, Ok(())));
    }
}

#[test]
fn retry_is_digits_only() {
    let table: &[(&[u8], Option<u64>)] = &[
        (b"retry: 0\n", Some(0)),
        (b"retry:1500\n", Some(1_500)),
        (b"retry: 7\nretry: x\nretry: -1\nretry:  1\nretry: 1 \nretry\nretry: 1.5\n", Some(7)),
        (b"retry: +1\n", None),
        (b"retry: 99999999999999999999999\n", Some(u64::MAX)),
        (b"retry: 5", None),
    ];
    for (bytes, expected) in table {
        let retry = expected.map(Duration::from_millis);
        assert_read(bytes, &(Vec::new(), String::new(), retry, Ok(())));
    }
}

#[test]
fn what_is_too_long_is_an_error_and_what_is_just_not_is_none() {
    let line = |bytes: usize| [b"data: ".as_slice(), &vec![b'x'; bytes - 6], b"\n\n"].concat();
    let long = read(&line(40), &[]);
    assert_eq!((long.0.len(), long.3), (1, Ok(())));
    assert_read(&line(40), &long);
    let error = Err(DecodeError::LineTooLong { bytes_max: 40 });
    assert_read(&line(41), &(Vec::new(), String::new(), None, error));
    assert_read(&[b':'; 41], &(Vec::new(), String::new(), None, error));

    let data = |bytes: [usize; 2]| {
        let texts = bytes.map(|count| "x".repeat(count - 1));
        format!("data: {}\ndata: {}\n\n", texts[0], texts[1])
    };
    let full = read(data([20, 30]).as_bytes(), &[]);
    assert_eq!((full.0.len(), full.3), (1, Ok(())));
    let error = Err(DecodeError::EventTooLarge { bytes_max: 50 });
    assert_read(data([20, 31]).as_bytes(), &(Vec::new(), String::new(), None, error));
}

#[test]
fn a_new_connection_keeps_the_id_and_forgets_what_was_cut_off() {
    let mut decoder = Decoder::new();
    let mut input = &b"retry: 9\nid: 1\ndata: a\n\nid: 2\ndata: b\ndata: c"[..];
    assert!(decoder.read(&mut input).unwrap().is_some());
    assert!(decoder.read(&mut input).unwrap().is_none());
    decoder.reconnect();
    assert_eq!(decoder.last_id(), "1");
    assert_eq!(decoder.retry(), Some(Duration::from_millis(9)));
    let mut input = &b"\xEF\xBB\xBFdata: b\n\n"[..];
    let message = decoder.read(&mut input).unwrap().unwrap();
    assert_eq!((message.data().as_ref(), message.id().as_ref()), ("b", "1"));
}

#[test]
fn what_was_encoded_is_decoded_however_it_is_cut() {
    let mut random = Random::new(1);
    let hostile = ["\n", "\r", "\r\n", "\u{2028}", "\0", ":", " ", "data: x", "id: 1\n\n", "é"];
    for round in 0..2_000 {
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for at in 0..random.below(4) {
            let text: String = (0..random.below(8))
                .map(|_| hostile[random.below(hostile.len() as u64) as usize])
                .collect();
            if random.chance(1, 3) {
                bytes.extend_from_slice(KEEP_ALIVE);
                write_comment(&mut bytes, &text);
                write_retry(&mut bytes, Duration::from_secs(at));
            }
            let name = format!("name{at}");
            write_name(&mut bytes, &name).unwrap();
            write_data(&mut bytes, &text);
            bytes.extend_from_slice(END);
            expected.push((name, text.replace("\r\n", "\n").replace('\r', "\n")));
        }
        let mut decoder = Decoder::new();
        let mut told = Vec::new();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let piece_bytes = random.between(1, rest.len().min(9) as u64) as usize;
            let (mut input, behind) = rest.split_at(piece_bytes);
            rest = behind;
            while let Some(message) = decoder.read(&mut input).unwrap() {
                told.push((message.name().into_owned(), message.data().into_owned()));
            }
        }
        assert_eq!(told, expected, "round {round}");
        assert_eq!(decoder.last_id(), "", "round {round}");
    }
}

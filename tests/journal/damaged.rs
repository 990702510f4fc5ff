//! Damage: what is left is given exactly, what is missing is told exactly, and it is found.

use std::fs;
use std::path::PathBuf;

use streamdoor::base::Random;
use streamdoor::journal::block::runs;
use streamdoor::journal::format::{BlockHeader, Lsn, RunKind};
use streamdoor::journal::index::Trailer;

use crate::keeper::{JOURNAL, SEGMENT_BYTES, filled, payload, payloads, text_of};
use crate::world::{Folder, code, journal, said, shown};

const PAGE: usize = 4 << 10;

/// Flips a bit of a file, runs `look`, and flips it back.
fn with_flip(path: &PathBuf, at: usize, look: impl FnOnce()) {
    let whole = fs::read(path).unwrap();
    let mut bytes = whole.clone();
    bytes[at] ^= 4;
    fs::write(path, bytes).unwrap();
    look();
    fs::write(path, whole).unwrap();
}

/// Checks that `verify` finds one fault that contains `what`.
fn assert_found(folder: &Folder, what: &str) {
    let checked = journal("verify", &folder.0, &[]);
    assert_eq!(code(&checked), 1, "{what}: {}", shown(&checked));
    let text = String::from_utf8(checked.stdout).unwrap();
    assert!(text.lines().next().unwrap().contains(what), "{what}: {text}");
    assert!(text.lines().last().unwrap().ends_with(": 1 fault"), "{what}: {text}");
}

fn assert_whole(folder: &Folder, chunk_count: u64) {
    for id in 1..=3 {
        let output = journal("cat", &folder.0, &[&text_of(id)]);
        assert_eq!((code(&output), said(&output)), (0, String::new()));
        assert!(output.stdout == payloads(id, chunk_count), "execution {id}");
    }
}

#[test]
fn a_sound_journal_is_whole_and_stays_as_it_is() {
    let folder = Folder::new("sound");
    let chunk_count = filled(&folder.shard());
    let content = |folder: &Folder| {
        let files = folder.segments().into_iter();
        files.map(|path| (fs::read(&path).unwrap(), path)).collect::<Vec<_>>()
    };
    let before = content(&folder);
    assert!(before.len() > 3);
    assert_whole(&folder, chunk_count);
    let checked = journal("verify", &folder.0, &[]);
    assert_eq!(code(&checked), 0, "{}", shown(&checked));
    assert!(shown(&checked).trim_end().ends_with("no fault"), "{}", shown(&checked));
    let listed = journal("ls", &folder.0, &[]);
    let text = shown(&listed);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((code(&listed), lines.len()), (0, 5), "{text}");
    assert!(lines[1].starts_with(&text_of(1)) && lines[1].contains(" completed "), "{text}");
    assert!(lines[3].contains(" unfinished ") && lines[3].contains(" 600 "), "{text}");
    assert!(lines[4].ends_with(", 3 executions"), "{text}");
    let none = journal("cat", &folder.0, &["--kinds", "stderr", &text_of(1)]);
    assert_eq!((code(&none), none.stdout.len()), (0, 0));
    assert!(content(&folder) == before, "a file has changed");
}

#[test]
fn a_flipped_bit_costs_what_it_hits_and_is_found() {
    let folder = Folder::new("flipped");
    let chunk_count = filled(&folder.shard());
    let first = &folder.segments()[0];
    let bytes = fs::read(first).unwrap();
    let lsn = Lsn::new(1, PAGE as u32);
    let block = &bytes[PAGE..];
    let header = BlockHeader::decode(JOURNAL, lsn, block).unwrap();
    let run = runs(JOURNAL, &header, block)
        .flatten()
        .find(|run| run.header.kind == RunKind::Chunks && run.header.execution == 2)
        .unwrap();
    let (run_at, until) = (run.lsn.offset_bytes() as usize, run.header.first_seq);
    let until = until + u64::from(run.header.count);
    let of_two = |missing: std::ops::Range<u64>| {
        let seqs = (1..=chunk_count).filter(|seq| !missing.contains(seq));
        seqs.flat_map(|seq| payload(2, seq)).collect::<Vec<u8>>()
    };

    let chunk = payload(2, 17);
    let at = bytes.windows(chunk.len()).position(|window| window == chunk).unwrap();
    with_flip(first, at + 5, || {
        assert_found(&folder, "chunk 17 of execution 2 has a wrong checksum");
        let output = journal("cat", &folder.0, &[&text_of(2)]);
        let length = chunk.len();
        let line = format!("chunk 17 is missing: corrupt (1 chunk, {length} bytes)\n");
        assert!(said(&output).contains(&line), "{}", said(&output));
        assert!(said(&output).contains("streamdoor: 1 chunk is missing: 1 corrupt"));
        assert!(code(&output) == 1 && output.stdout == of_two(17..18));
        let other = journal("cat", &folder.0, &[&text_of(1)]);
        assert!(code(&other) == 0 && other.stdout == payloads(1, chunk_count));
    });

    with_flip(first, run_at + 9, || {
        assert_found(&folder, "the header of a run has a wrong checksum");
        let output = journal("cat", &folder.0, &[&text_of(2)]);
        let first_seq = run.header.first_seq;
        assert_eq!(until, first_seq + 1); // The executions take turns.
        let length = payload(2, first_seq).len();
        let line = format!("chunk {first_seq} is missing: corrupt (1 chunk, {length} bytes)\n");
        assert!(said(&output).contains(&line), "{}", said(&output));
        assert!(code(&output) == 1 && output.stdout == of_two(first_seq..until));
    });

    let trailer = Trailer::decode(JOURNAL, 1, SEGMENT_BYTES, &bytes[bytes.len() - PAGE..]).unwrap();
    let index_at = trailer.data_end_bytes as usize;
    let padding_at = PAGE + header.used_bytes as usize + 1;
    for (at, what) in [
        (3, "byte 0: the header of the segment does not begin as it should"),
        (40, "byte 0: the header of the segment has a wrong checksum"),
        (3_000, "byte 3000: a byte that should be zero is not"),
        (PAGE + 20, "byte 4096: the header of a block has a wrong checksum (64 bytes)"),
        (padding_at, "a byte that should be zero is not"),
        (index_at + 100, "the page of the index has a wrong checksum"),
        (bytes.len() - PAGE + 2, "the trailer does not begin as it should"),
        (bytes.len() - PAGE + 30, "the trailer has a wrong checksum"),
        (bytes.len() - 1, "a byte that should be zero is not"),
    ] {
        with_flip(first, at, || {
            assert_found(&folder, what);
            assert_whole(&folder, chunk_count);
            let listed = journal("ls", &folder.0, &[]);
            assert_eq!(code(&listed), 0, "{what}");
        });
    }
}

#[test]
fn a_journal_cut_at_any_length_gives_a_whole_beginning() {
    let folder = Folder::new("cut");
    let chunk_count = filled(&folder.shard());
    let segments = folder.segments();
    let has_block = |path: &&PathBuf| fs::read(path).unwrap()[PAGE..].iter().any(|byte| *byte != 0);
    let last = segments.iter().rfind(has_block).unwrap();
    let whole = fs::read(last).unwrap();
    let used = whole.iter().rposition(|byte| *byte != 0).unwrap();
    let mut random = Random::new(3);
    for round in 0..24 {
        let at = PAGE + random.below((used - PAGE) as u64) as usize;
        let mut bytes = whole.clone();
        match round % 2 {
            0 => bytes.truncate(at),
            _ => bytes[at..].fill(0),
        }
        fs::write(last, bytes).unwrap();
        let (mut is_damaged, mut is_shorter) = (false, false);
        for id in 1..=3 {
            let output = journal("cat", &folder.0, &[&text_of(id)]);
            let is_prefix = payloads(id, chunk_count).starts_with(&output.stdout);
            assert!(is_prefix, "cut at {at}: execution {id}");
            let is_whole_line = output.stdout.last().is_none_or(|byte| *byte == b'\n');
            assert!(is_whole_line, "cut at {at}");
            is_shorter |= output.stdout.len() < payloads(id, chunk_count).len();
            is_damaged |= code(&output) == 1 && said(&output).contains("missing");
            assert_eq!(code(&output) == 1, !said(&output).is_empty(), "cut at {at}");
        }
        let checked = journal("verify", &folder.0, &[]);
        // A file is never shorter than its segment, whatever happens to the power.
        let is_fault = round % 2 == 0 || is_damaged;
        assert_eq!(code(&checked), i32::from(is_fault), "cut at {at}: {}", shown(&checked));
        assert!(is_shorter || used - at < 2 * PAGE, "cut at {at} of {used}");
        assert_eq!(code(&journal("ls", &folder.0, &[])), 0);
    }
}

//! Any bytes as a record of a cluster's log, and records with any content, of which some bytes were
//! changed under a right checksum. A record that is taken can be read to its end, and its items add
//! up.

use streamdoor::cluster::record::{Draft, Incarnation, Item, Record, seal};
use streamdoor::journal::block::Position;
use streamdoor::journal::format::ChunkEntry;
use streamdoor::stream::{GapReason, Kind, Kinds, Totals};

use super::draw::Draw;

const ROOM_BYTES: u32 = 8 << 10;

/// Checks any bytes, and a drawn record.
///
/// # Panics
/// If a record is not what it says.
pub fn check(data: &[u8]) {
    if let Ok(record) = Record::decode(data) {
        walk(&record);
    }
    let mut draw = Draw::new(data);
    let (mut bytes, after) = drawn(&mut draw);
    let record = Record::decode(&bytes).expect("it was just written");
    assert_eq!(record.after, after);
    walk(&record);
    for _ in 0..draw.below(4) {
        let at = draw.word() as usize % bytes.len();
        bytes[at] ^= draw.byte();
    }
    bytes.truncate(bytes.len() - draw.below(9));
    seal(&mut bytes);
    if let Ok(record) = Record::decode(&bytes) {
        walk(&record);
    }
}

/// Draws a record, and returns the position behind it.
fn drawn(draw: &mut Draw<'_>) -> (Vec<u8>, Position) {
    let mut position = Position::new(0);
    for kind in Kind::ALL.into_iter().take(draw.below(4)) {
        let chunks = draw.number() >> 8;
        let bytes = if chunks == 0 { 0 } else { draw.number() >> 8 };
        position.totals.add(kind, Totals { chunks, bytes });
    }
    position.all = position.totals.of(Kinds::ALL);
    let mut draft = Draft::new(Incarnation(draw.word()), ROOM_BYTES);
    for _ in 0..draw.below(12) {
        let text = draw.text();
        let is_full = match draw.below(4) {
            0 => {
                let mut after = position.totals;
                let chunks = 1 + u64::from(draw.byte());
                after.add(draw.one_of(&Kind::ALL), Totals { chunks, bytes: draw.byte().into() });
                draft.append_gap(&mut position, &after, draw.one_of(&GapReason::ALL)).is_err()
            }
            1 => draft.append_note(&position, text.as_bytes()).is_err(),
            _ => {
                let entry = ChunkEntry {
                    seq: position.next_seq(),
                    mono_ns: draw.word(),
                    length: text.len() as u32,
                    kind: draw.one_of(&Kind::ALL),
                    key: draw.byte() % 64,
                    flags: 0,
                };
                draft.append_chunk(&mut position, &entry, text.as_bytes()).is_err()
            }
        };
        if is_full {
            break;
        }
    }
    if draft.is_empty() || draw.flag() {
        let _ = draft.append_end(&position, draw.text().as_bytes());
    }
    (draft.finish(draw.word(), draw.flag()), position)
}

/// Reads everything of a record.
fn walk(record: &Record<'_>) {
    let (mut position, mut ends) = (record.before, 0);
    for item in record.items() {
        match item {
            Item::Chunks(run) => {
                for chunk in run.chunks() {
                    let chunk = chunk.expect("it was checked");
                    assert_eq!(chunk.entry.seq, position.next_seq());
                    assert_eq!(chunk.entry.length as usize, chunk.payload.len());
                    position.pass(&chunk.entry);
                }
            }
            Item::Gap { after, .. } => {
                assert!(after.checked_sub(&position.totals).is_some());
                (position.totals, position.all) = (after, after.of(Kinds::ALL));
            }
            Item::Note(_) => {}
            Item::End(details) => {
                assert_eq!(record.end(), Some(details));
                ends += 1;
            }
        }
    }
    assert_eq!(position, record.after);
    assert_eq!(ends, u32::from(record.header.is_last));
}

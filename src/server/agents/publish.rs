//! A run's parts on their way into its ring, one chunk each.

use serde_json::json;
use smallvec::SmallVec;

use crate::agent::{Body, Final, Partial};
use crate::base::Handle;
use crate::engine::ChunkFacts;
use crate::limits;
use crate::memory::{ChunkHeader, WriteError};
use crate::reactor::Reactor;
use crate::server::ServerShard;
use crate::server::agents::Hosted;
use crate::server::guests::ServedRun;
use crate::shard::run::{Producer, Ring};
use crate::stream::Kind;
use crate::tool::Report;

/// The result of publishing a run's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Published {
    /// All parts are published.
    All,
    /// A part waits until a `block` subscriber has read.
    Held,
}
/// Publishes the run's parts as long as there is room.
pub(in crate::server) fn publish_parts<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    hosted: &mut Hosted,
) -> Published {
    loop {
        let before = shard.run_mut(handle).allowed();
        match publish_burst(shard, handle, hosted) {
            0 if hosted.waiting.is_none() => return Published::All,
            0 => {
                shard.say_that_it_is_gated(handle.index);
                if shard.run_mut(handle).allowed() == before {
                    return Published::Held;
                }
            }
            _ => {}
        }
    }
}

/// Publishes at most as many parts as the engine takes at once, tells the engine, and returns
/// their number.
fn publish_burst<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    hosted: &mut Hosted,
) -> usize {
    let burst = shard.engine.burst_chunks(handle) as usize;
    let mut scratch = std::mem::take(&mut shard.guests.agents.scratch);
    let now = shard.now;
    let run = shard.run_mut(handle);
    let gate = run.allowed();
    let ServedRun { ring: Ring::Here(writer), producer: Producer::Outside, .. } = run else {
        unreachable!("a run writes its ring until it is over");
    };
    let mut facts: SmallVec<[ChunkFacts; limits::BURST_CHUNKS_MAX as usize]> = SmallVec::new();
    while facts.len() < burst {
        let (header, payload) = match &hosted.waiting {
            Some((header, payload)) => (*header, &payload[..]),
            None => {
                let Some(header) = hosted.spell_part(writer.head_seq() + 1, &mut scratch) else {
                    break;
                };
                (header, &scratch[..])
            }
        };
        let has_room = gate.admits(writer.head_seq(), writer.total_bytes(), payload.len());
        let written = has_room.then(|| writer.write(header, payload, now, gate.gate_seq));
        match written {
            Some(Ok(_)) => {
                let length = payload.len() as u32;
                let kind = Kind::new(header.kind).expect("it was made from one");
                let tail_seq = writer.tail_seq();
                facts.push(ChunkFacts { length, kind, key: header.key, tail_seq });
                hosted.waiting = None;
            }
            Some(Err(WriteError::TooLarge { .. })) => {
                unreachable!("a run keeps the limit of a part's length")
            }
            None | Some(Err(WriteError::Gated { .. })) => {
                if hosted.waiting.is_none() {
                    hosted.waiting = Some((header, payload.into()));
                }
                break;
            }
        }
    }
    shard.guests.agents.scratch = scratch;
    let updates = std::mem::take(&mut hosted.updates);
    if !facts.is_empty() {
        shard.worked = true;
        shard.ingest_written(handle.index, &facts);
    }
    if !updates.reports.is_empty() {
        shard.pass_on(handle, &updates);
    }
    facts.len()
}

impl Hosted {
    /// Encodes the next part, which becomes chunk `seq`. For a plain run, encodes only the next
    /// text.
    fn spell_part(&mut self, seq: u64, scratch: &mut Vec<u8>) -> Option<ChunkHeader> {
        loop {
            let part = self.machine.next_part()?;
            scratch.clear();
            if !self.is_plain {
                assert!(part.seq == seq);
                part.write_json(scratch);
                return Some(ChunkHeader { kind: part.kind() as u8, key: part.code(), flags: 0 });
            }
            match part.body {
                Body::Partial(Partial::TextDelta { delta, .. }) => {
                    scratch.extend_from_slice(delta.as_bytes());
                    let kind = Kind::Text as u8;
                    return Some(ChunkHeader { kind, key: kind, flags: 0 });
                }
                Body::Final(Final::StepCompleted { usage: Some(usage), .. }) => {
                    let usage = json!({
                        "input_tokens": usage.input_tokens,
                        "output_tokens": usage.output_tokens,
                    });
                    self.updates.push(Report::context(&json!({ "usage": usage })));
                }
                _ => {}
            }
        }
    }
}

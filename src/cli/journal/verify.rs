//! `streamdoor journal verify`: checks every byte of a journal that counts.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use streamdoor::base::ExecutionId;
use streamdoor::journal::look::{Fault, Sums, verify};
use streamdoor::reactor::Clock;

use super::super::CliError;
use super::super::console::print_out;
use super::super::words::{counted, in_units};
use super::folder::{self, Shard};

/// Checks the journal in `folder`, and prints each fault and a summary.
pub fn run(folder: &Path, as_json: bool) -> Result<(), CliError> {
    let began = Clock::now();
    let mut sums = Sums::default();
    for mut shard in folder::open(folder)? {
        let of_shard = check(&mut shard, as_json)?;
        sums = added(sums, of_shard);
    }
    let took = Clock::now().since(began);
    if as_json {
        let Sums { segments, blocks, runs, chunks, bytes, torn_bytes, faults } = sums;
        let summary = json!({"segments": segments, "blocks": blocks, "runs": runs,
            "chunks": chunks, "bytes": bytes, "torn_bytes": torn_bytes, "faults": faults,
            "seconds": took.as_secs_f64()});
        print_out!("{summary}");
    } else {
        print_out!("{}", in_words(&sums, took));
    }
    match sums.faults {
        0 => Ok(()),
        _ => Err(CliError::Told),
    }
}

fn check(shard: &mut Shard, as_json: bool) -> Result<Sums, CliError> {
    let path = shard.path.clone();
    let failed = |error| folder::failure(&path, &error);
    let listing = shard.look.list().map_err(failed)?;
    let ids: HashMap<u32, u128> =
        listing.executions.iter().map(|each| (each.number, each.id)).collect();
    let mut faults_told = |fault: &Fault| {
        let file = folder::segment_file(&path, fault.segment_number);
        let id = fault.wrong.execution().and_then(|number| ids.get(&number));
        let id = id.map(|id| ExecutionId::from_bits(*id).to_string());
        let (file, offset, wrong) = (file.display(), fault.offset_bytes, fault.wrong);
        if as_json {
            let document = json!({"file": file.to_string(), "offset": offset,
                "wrong": wrong.to_string(), "execution": id});
            print_out!("{document}");
        } else {
            let id = id.map_or_else(String::new, |id| format!(" (it is {id})"));
            print_out!("{file}: byte {offset}: {wrong}{id}");
        }
    };
    verify(&mut shard.look, &mut faults_told).map_err(failed)
}

fn added(a: Sums, b: Sums) -> Sums {
    Sums {
        segments: a.segments + b.segments,
        blocks: a.blocks + b.blocks,
        runs: a.runs + b.runs,
        chunks: a.chunks + b.chunks,
        bytes: a.bytes + b.bytes,
        torn_bytes: a.torn_bytes + b.torn_bytes,
        faults: a.faults + b.faults,
    }
}

fn in_words(sums: &Sums, took: Duration) -> String {
    let counts = [
        counted(sums.segments, "segment"),
        counted(sums.blocks, "block"),
        counted(sums.runs, "run"),
        counted(sums.chunks, "chunk"),
    ];
    let (counts, bytes) = (counts.join(", "), in_units(sums.bytes as f64));
    let faults = match sums.faults {
        0 => "no fault".to_owned(),
        faults => counted(faults, "fault"),
    };
    let mut text = format!("{counts}, {bytes} in {:.2} s: {faults}", took.as_secs_f64());
    if sums.torn_bytes > 0 {
        let torn = counted(sums.torn_bytes, "byte");
        text += &format!("; {torn} behind the end do not count (the last writes, unfinished)");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_has_all_counts() {
        let sums = Sums {
            segments: 1,
            blocks: 2,
            runs: 1_000,
            chunks: 4_000,
            bytes: 3 << 20,
            torn_bytes: 0,
            faults: 0,
        };
        let took = Duration::from_millis(1_234);
        let expected = "1 segment, 2 blocks, 1,000 runs, 4,000 chunks, 3.0 MiB in 1.23 s: no fault";
        assert_eq!(in_words(&sums, took), expected);
        let torn = in_words(&Sums { torn_bytes: 4_096, faults: 2, ..sums }, took);
        assert!(torn.contains(": 2 faults; 4,096 bytes behind the end do not count"), "{torn}");
    }
}

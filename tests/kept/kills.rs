//! Processes that are killed while they publish. Nothing that they have acknowledged is lost,
//! nothing comes twice, and each execution has one end.
//!
//! 50 kills, or as many as `KILLS` says.

use std::path::PathBuf;
use std::time::Duration;

use streamdoor::base::Random;

use crate::found::{Promises, note, read};
use crate::keeper::{Way, open_shard};
use crate::load::Word;
use crate::role::Role;

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // A remaining folder does no harm.
    }
}

/// Takes a line of the killed process.
fn note_line(promises: &mut Promises, line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [.., word, id, number] = words[..] else { return };
    let (Ok(id), Ok(number)) = (id.parse(), number.parse()) else { return };
    match word {
        "acked" => note(promises, id, Word::Acked(number)),
        "told" => note(promises, id, Word::Told(number)),
        _ => {}
    }
}

#[test]
fn nothing_acknowledged_is_lost_by_a_kill_and_each_execution_has_one_end() {
    let kill_count = std::env::var("KILLS").map_or(50, |text| text.parse().unwrap());
    let seed = std::env::var("SEED").map_or(1, |text| text.parse().unwrap());
    let mut random = Random::new(seed);
    let name = format!("streamdoor-kills-{}", std::process::id());
    let folder = Folder(std::env::temp_dir().join(name));
    let (mut executions, mut acked, mut told, mut chunks) = (0, 0, 0, 0);
    for kill in 0..kill_count {
        let mut keeper = Role::play("keeper", &folder.0, &random.next_u64().to_string());
        keeper.hear("begun");
        std::thread::sleep(Duration::from_micros(random.below(60_000)));
        keeper.kill();
        let mut promises = Promises::new();
        keeper.rest().iter().for_each(|line| note_line(&mut promises, line));
        let mut shard = open_shard(&folder.0, Way::USUAL).unwrap();
        let status = shard.journal().unwrap();
        assert_eq!(status.corrupt_stretches, 0, "kill {kill}: {status:?}");
        for (id, promised) in &promises {
            let found = read(&mut shard, *id);
            found.check(*id, *promised);
            chunks += found.count;
        }
        executions += promises.len();
        acked += promises.values().map(|each| each.durable_seq).sum::<u64>();
        told += promises.values().filter(|each| each.told.is_some()).count();
        drop(shard);
        if kill % 10 == 9 {
            let _ = std::fs::remove_dir_all(&folder.0);
        }
    }
    println!(
        "{kill_count} kills, seed {seed}: {executions} executions, {acked} chunks acknowledged, \
         {chunks} read, {told} ends told"
    );
    assert!(acked > 0);
}

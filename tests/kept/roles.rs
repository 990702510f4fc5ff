//! The role of the other process: a shard that publishes, and says what it was promised.

use std::path::Path;

use crate::keeper::{Way, open_shard};
use crate::load::{News, Word, publish};
use crate::role::{say, told};

/// The other process's entry point. It is no test of its own.
#[test]
fn plays_its_role() {
    let Some((role, directory, seed)) = told() else { return };
    assert_eq!(role, "keeper");
    let mut shard = open_shard(Path::new(&directory), Way::USUAL).unwrap();
    say("begun");
    publish(&mut shard, seed.parse().unwrap(), |News { id, durability, word }| match word {
        Word::Acked(seq) => say(&format!("{durability} acked {id} {seq}")),
        Word::Told(count) => say(&format!("{durability} told {id} {count}")),
    });
    panic!("the disk has failed");
}

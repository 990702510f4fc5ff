//! The role of the other process in these tests.

use std::path::Path;

use crate::keeper::Keeper;
use crate::role::{say, told};

/// The other process's entry point. It is no test of its own.
#[test]
fn plays_its_role() {
    let Some((role, shard, about)) = told() else { return };
    assert_eq!(role, "keeper");
    let mut keeper = Keeper::open(Path::new(&shard), about.parse().unwrap());
    keeper.begin(1);
    keeper.begin(2);
    for seq in 1.. {
        keeper.append();
        if seq % 16 == 0 {
            keeper.sync();
            say(&format!("acked {seq}"));
        }
    }
}

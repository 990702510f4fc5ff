//! Tests of the shard, by hand.

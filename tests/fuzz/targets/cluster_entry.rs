//! Bytes of the fuzzer for `../src/cluster_entry.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| streamdoor_fuzz::cluster_entry::check(data));

//! Bytes of the fuzzer for `../src/cluster_record.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| streamdoor_fuzz::cluster_record::check(data));

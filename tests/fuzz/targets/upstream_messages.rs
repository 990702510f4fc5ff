//! Bytes of the fuzzer for `../src/upstream_messages.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| streamdoor_fuzz::upstream_messages::check(data));

//! Bytes of the fuzzer for `../src/engine_events.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| streamdoor_fuzz::engine_events::check(data));

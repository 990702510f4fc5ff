//! Bytes of the fuzzer for `../src/request_state.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| streamdoor_fuzz::request_state::check(data));

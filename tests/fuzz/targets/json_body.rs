//! Bytes of the fuzzer for `../src/json_body.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| streamdoor_fuzz::json_body::check(data));

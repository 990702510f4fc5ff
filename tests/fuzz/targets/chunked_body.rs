//! Bytes of the fuzzer for `../src/chunked_body.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| streamdoor_fuzz::chunked_body::check(data));

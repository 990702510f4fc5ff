//! Bytes of the fuzzer for `../src/sse_decode.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| streamdoor_fuzz::sse_decode::check(data));

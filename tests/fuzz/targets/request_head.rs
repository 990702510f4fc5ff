//! Bytes of the fuzzer for `../src/request_head.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| streamdoor_fuzz::request_head::check(data));

//! Bytes of the fuzzer for `../src/wheel.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| streamdoor_fuzz::wheel::check(data));

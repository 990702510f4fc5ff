//! Bytes of the fuzzer for `../src/ring_reader.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| streamdoor_fuzz::ring_reader::check(data));

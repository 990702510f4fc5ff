//! Bytes of the fuzzer for `../src/sse_round_trip.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| streamdoor_fuzz::sse_round_trip::check(data));

//! Bytes of the fuzzer for `../src/query_cursor.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| streamdoor_fuzz::query_cursor::check(data));

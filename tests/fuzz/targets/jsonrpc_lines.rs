//! Bytes of the fuzzer for `../src/jsonrpc_lines.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| streamdoor_fuzz::jsonrpc_lines::check(data));

//! Bytes of the fuzzer for `../src/mcp_lines.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| streamdoor_fuzz::mcp_lines::check(data));

//! Bytes of the fuzzer for `../src/host_authority.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| streamdoor_fuzz::host_authority::check(data));

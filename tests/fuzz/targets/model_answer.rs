//! Bytes of the fuzzer for `../src/model_answer.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| streamdoor_fuzz::model_answer::check(data));

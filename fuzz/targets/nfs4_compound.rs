//! The entry for libFuzzer; the checks are in the library.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rekindle_fuzz::nfs4_compound(data));

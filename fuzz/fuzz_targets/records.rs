#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unitgain_fuzz::run(unitgain_fuzz::records, bytes));

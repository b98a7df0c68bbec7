#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| howdah_fuzz::run(|| howdah_server::fuzz::requests(bytes)));

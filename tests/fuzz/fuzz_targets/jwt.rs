#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| howdah_fuzz::run(|| howdah_server::fuzz::jwt(text)));

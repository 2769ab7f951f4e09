//! See `gets_bytes` in `bodies.rs`.
#![no_main]

#[allow(dead_code, reason = "each target uses one body")]
#[path = "../bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bodies::gets_bytes(data);
});

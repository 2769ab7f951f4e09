//! See `canary` in `bodies.rs`. This target must crash: a fuzzer that finds no violation looks in
//! the wrong places.
#![no_main]

#[allow(dead_code, reason = "each target uses one body")]
#[path = "../bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let (rules, Err(violation)) = bodies::canary(data) {
        panic!("found, as it must be, with {rules:?} broken: {violation}");
    }
});

//! What all fuzzers share.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The most processor time that one input may take. The code is hardly optimised, and counts each branch that it takes.
const MOST: Duration = Duration::from_secs(5);

/// Runs one input. Its time is that of the processor: fuzzers share machines, and libFuzzer measures by the clock.
pub fn run(input: impl FnOnce()) {
    let begun = processor_time();
    input();
    let took = processor_time() - begun;
    assert!(took < MOST, "it took {took:?} of processor time");
}

fn processor_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

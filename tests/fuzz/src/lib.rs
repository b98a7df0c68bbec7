//! Shared code of all fuzzers.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Maximum processor time per input. It is generous, because the fuzzed code is barely optimized and instrumented for
/// coverage.
const MOST: Duration = Duration::from_secs(5);

/// Runs one input within a limit of processor time. libFuzzer's own timeout uses wall-clock time, which is unreliable on a shared
/// machine.
pub fn run(input: impl FnOnce()) {
    let begun = processor_time();
    input();
    let took = processor_time() - begun;
    assert!(took < MOST, "the input took {took:?} of processor time, more than {MOST:?}");
}

fn processor_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

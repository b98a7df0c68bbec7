//! Sizes of tests. README's test command runs each test with numbers that show the fault it looks for within seconds; `just full`
//! repeats them with numbers that are large for production.

/// Whether `HOWDAH_TESTS=full` is set, as `.ci/run full` does.
pub fn is_full_run() -> bool {
    std::env::var_os("HOWDAH_TESTS").is_some_and(|value| value == "full")
}

/// Returns the size of a test for this run.
pub fn sized<T>(brief: T, full: T) -> T {
    if is_full_run() { full } else { brief }
}

//! Sizes of tests. The test command in README runs each test with numbers that show a fault within seconds; `just full` repeats
//! the tests with numbers that are large for production.

/// Whether `HOWDAH_TESTS=full` is set, as `.ci/run full` does.
pub fn is_full_run() -> bool {
    std::env::var_os("HOWDAH_TESTS").is_some_and(|value| value == "full")
}

/// Returns `full` in a full run of the tests, and `brief` otherwise.
pub fn sized<T>(brief: T, full: T) -> T {
    if is_full_run() { full } else { brief }
}

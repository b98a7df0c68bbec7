//! Conversion of times and durations.

use std::time::{Duration, SystemTime};

use prost_types::{Duration as WireDuration, Timestamp};

/// Converts a time.
pub(crate) fn time(time: SystemTime) -> Timestamp {
    Timestamp::from(time)
}

/// Converts a time in µs after 1970 to a protobuf `Timestamp`.
pub(crate) fn micros(us: i64) -> Timestamp {
    Timestamp { seconds: us.div_euclid(1_000_000), nanos: (us.rem_euclid(1_000_000) * 1000) as i32 }
}

/// Converts a duration to a protobuf `Duration`.
pub(crate) fn duration(duration: Duration) -> WireDuration {
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    WireDuration { seconds, nanos: duration.subsec_nanos() as i32 }
}

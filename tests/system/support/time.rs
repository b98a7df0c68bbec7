//! Creates durations and timestamps of the protocol.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub const MINUTE: Duration = Duration::from_secs(60);
pub const HOUR: Duration = Duration::from_secs(3600);

pub fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Converts a duration to its protobuf message.
pub fn wire(duration: Duration) -> prost_types::Duration {
    duration.try_into().expect("a duration that the protocol can say")
}

/// Start time of schedules that must not fire during a test: the year 2096.
pub fn far() -> SystemTime {
    UNIX_EPOCH + secs(4_000_000_000)
}

/// Returns the protobuf timestamp for these seconds since 1970.
pub fn at(seconds: i64) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds, nanos: 0 }
}

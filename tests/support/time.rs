//! Durations and timestamps as the protocol has them.

use std::time::Duration;

pub const MINUTE: Duration = Duration::from_secs(60);
pub const HOUR: Duration = Duration::from_secs(3600);

pub fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// On the wire.
pub fn wire(duration: Duration) -> prost_types::Duration {
    duration.try_into().expect("a duration that the protocol can say")
}

/// Seconds since 1970, on the wire.
pub fn at(seconds: i64) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds, nanos: 0 }
}

//! Conversions between Rust and protobuf times.

use std::time::{Duration, SystemTime};

use prost_types::{Duration as ProtoDuration, Timestamp};

/// Converts to a protobuf duration. A duration that protobuf cannot represent is far beyond every limit, so the broker
/// refuses it.
pub(crate) fn to_proto(duration: Duration) -> ProtoDuration {
    ProtoDuration::try_from(duration).unwrap_or(ProtoDuration { seconds: i64::MAX, nanos: 0 })
}

/// Converts from a protobuf duration. `None` if the duration is unset or negative.
pub(crate) fn from_proto(duration: Option<ProtoDuration>) -> Option<Duration> {
    duration.and_then(|duration| Duration::try_from(duration).ok())
}

/// Converts from a protobuf time; `None` if it is unset or beyond the range of the platform.
pub(crate) fn time_from_proto(time: Option<Timestamp>) -> Option<SystemTime> {
    time.and_then(|time| SystemTime::try_from(time).ok())
}

//! Conversions between the times of Rust and those of the protocol.

use std::time::{Duration, SystemTime};

use prost_types::{Duration as ProtoDuration, Timestamp};

/// A duration for the wire. One that does not fit is far beyond every limit, and the broker refuses it.
pub(crate) fn to_proto(duration: Duration) -> ProtoDuration {
    ProtoDuration::try_from(duration).unwrap_or(ProtoDuration { seconds: i64::MAX, nanos: 0 })
}

/// A duration from the wire; `None` if it is unset or negative.
pub(crate) fn from_proto(duration: Option<ProtoDuration>) -> Option<Duration> {
    duration.and_then(|duration| Duration::try_from(duration).ok())
}

/// A time from the wire; `None` if it is unset or beyond the range of the platform.
pub(crate) fn time_from_proto(time: Option<Timestamp>) -> Option<SystemTime> {
    time.and_then(|time| SystemTime::try_from(time).ok())
}

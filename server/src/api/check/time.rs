//! Checks of durations and times. Protobuf allows invalid values: nanos of more than a second, seconds and nanos with different
//! signs, or years before 1 and after 9999.

use std::{
    ops::RangeInclusive,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use howdah_core::error::Error;
use prost_types::{Duration as WireDuration, Timestamp};

const DAY: Duration = Duration::from_hours(24);
/// Maximum backoff between attempts: 30 days.
pub(in crate::api) const MONTH: Duration = Duration::from_hours(30 * 24);
/// Maximum snooze: 365 days.
pub(in crate::api) const YEAR: Duration = Duration::from_hours(365 * 24);
/// Minimum of a duration that may not be 0.
pub(in crate::api) const MILLISECOND: Duration = Duration::from_millis(1);
/// 9999-12-31T23:59:59Z, the last second that a Timestamp can express.
const LAST_SECOND: i64 = 253_402_300_799;
/// Tolerated difference between the clocks of client, broker and database. A `run_at` may exceed its limit by this much.
const SKEW: Duration = Duration::from_hours(1);

/// Checks that a duration is inside `range`, and rounds it up to milliseconds.
pub(in crate::api) fn duration(
    field: &str,
    value: WireDuration,
    range: &RangeInclusive<Duration>,
) -> Result<Duration, Error> {
    let allowed = || format!("{} to {} is allowed", spoken(*range.start()), spoken(*range.end()));
    let (Ok(seconds), Ok(nanos @ 0..1_000_000_000)) = (u64::try_from(value.seconds), u32::try_from(value.nanos)) else {
        let shown = value.seconds as f64 + f64::from(value.nanos) / 1e9;
        return Err(Error::invalid(field, format!("is {shown} s; {}", allowed())));
    };
    let exact = Duration::new(seconds, nanos);
    if !range.contains(&exact) {
        return Err(Error::invalid(field, format!("is {}; {}", spoken(exact), allowed())));
    }
    Ok(Duration::from_millis(exact.as_nanos().div_ceil(1_000_000) as u64))
}

/// Like [`duration`]; `None` if the value is not set.
pub(in crate::api) fn optional(
    field: &str,
    value: Option<WireDuration>,
    range: &RangeInclusive<Duration>,
) -> Result<Option<Duration>, Error> {
    value.map(|value| duration(field, value, range)).transpose()
}

/// Like [`duration`]; the value must be set.
pub(in crate::api) fn required(
    field: &str,
    value: Option<WireDuration>,
    range: &RangeInclusive<Duration>,
) -> Result<Duration, Error> {
    optional(field, value, range)?.ok_or_else(|| {
        let (start, end) = (spoken(*range.start()), spoken(*range.end()));
        Error::invalid(field, format!("is not set; {start} to {end} is allowed"))
    })
}

/// Converts a start time to µs after 1970, rounded up. A time in the past is allowed; the database's clock decides whether it is
/// past. `now` is only used to reject times that are too far ahead.
pub(in crate::api) fn run_at(field: &str, value: Timestamp, now: SystemTime, ahead: Duration) -> Result<i64, Error> {
    let since_1970 = since_1970(field, value)?;
    let latest = now.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_add(ahead);
    if since_1970 > latest.saturating_add(SKEW) {
        let problem = format!("is {value}; at most {} ahead is allowed", spoken(ahead));
        return Err(Error::invalid(field, problem));
    }
    Ok(since_1970.as_nanos().div_ceil(1000) as i64)
}

/// Converts a time of the years 1970 to 9999 to µs after 1970, rounded up.
pub(in crate::api) fn at(field: &str, value: Timestamp) -> Result<i64, Error> {
    Ok(since_1970(field, value)?.as_nanos().div_ceil(1000) as i64)
}

/// Converts a time of the years 1970 to 9999, if it is set; rounded up to µs.
pub(in crate::api) fn optional_at(field: &str, value: Option<Timestamp>) -> Result<Option<SystemTime>, Error> {
    let us = value.map(|value| at(field, value)).transpose()?;
    Ok(us.map(|us| UNIX_EPOCH + Duration::from_micros(us.max(0) as u64)))
}

fn since_1970(field: &str, value: Timestamp) -> Result<Duration, Error> {
    let (0..=LAST_SECOND, Ok(nanos @ 0..1_000_000_000)) = (value.seconds, u32::try_from(value.nanos)) else {
        let problem = format!(
            "is {} s and {} ns after 1970, which is not a time of the years 1970 to 9999",
            value.seconds, value.nanos
        );
        return Err(Error::invalid(field, problem));
    };
    Ok(Duration::new(value.seconds as u64, nanos))
}

/// Formats the bound of a duration for errors: in days or hours if it is a whole number of them.
fn spoken(limit: Duration) -> String {
    let (seconds, day) = (limit.as_secs(), DAY.as_secs());
    match limit.subsec_nanos() {
        0 if seconds > day && seconds.is_multiple_of(day) => format!("{} days", seconds / day),
        0 if seconds > 3600 && seconds.is_multiple_of(3600) => format!("{} h", seconds / 3600),
        0 => format!("{seconds} s"),
        _ => format!("{limit:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn wire(seconds: i64, nanos: i32) -> WireDuration {
        WireDuration { seconds, nanos }
    }

    fn millis(seconds: i64, nanos: i32) -> Result<u128, String> {
        duration("delay", wire(seconds, nanos), &(MILLISECOND..=MONTH))
            .map(|duration| duration.as_millis())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn durations_are_rounded_up_to_milliseconds() {
        assert_eq!(millis(0, 1_000_000), Ok(1));
        assert_eq!(millis(0, 1_000_001), Ok(2));
        assert_eq!(millis(2, 500_000_000), Ok(2500));
        assert_eq!(millis(30 * 24 * 3600, 0), Ok(2_592_000_000));
    }

    #[test]
    fn an_error_about_a_duration_has_the_value_and_the_bounds() {
        assert_eq!(millis(0, 999_999).unwrap_err(), "delay is 999.999µs; 1ms to 30 days is allowed");
        assert_eq!(millis(30 * 24 * 3600, 1).unwrap_err(), "delay is 2592000.000000001s; 1ms to 30 days is allowed");
        assert_eq!(millis(0, -5_000_000).unwrap_err(), "delay is -0.005 s; 1ms to 30 days is allowed");
        assert_eq!(millis(4000 * 24 * 3600, 0).unwrap_err(), "delay is 4000 days; 1ms to 30 days is allowed");
        assert_eq!(millis(0, 0).unwrap_err(), "delay is 0 s; 1ms to 30 days is allowed");
        assert_eq!(millis(-1, 0).unwrap_err(), "delay is -1 s; 1ms to 30 days is allowed");
    }

    #[test]
    fn durations_with_invalid_seconds_or_nanos_are_refused() {
        for (seconds, nanos) in [
            (0, -1),
            (1, -1),
            (0, 1_000_000_000),
            (0, i32::MIN),
            (0, i32::MAX),
            (i64::MIN, i32::MIN),
            (i64::MAX, i32::MAX),
        ] {
            assert!(millis(seconds, nanos).is_err(), "{seconds} s {nanos} ns");
        }
    }

    fn start(seconds: i64, nanos: i32) -> Result<i64, String> {
        let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        run_at("run_at", Timestamp { seconds, nanos }, now, DAY * 3650).map_err(|error| error.to_string())
    }

    #[test]
    fn the_past_is_fine_and_so_are_ten_years_ahead() {
        assert_eq!(start(0, 0), Ok(0));
        assert_eq!(start(1_000_000_000, 1), Ok(1_000_000_000_000_001));
        assert!(start(1_800_000_000 + 3650 * 24 * 3600, 0).is_ok());
    }

    #[test]
    fn a_clock_an_hour_apart_does_not_refuse_an_honest_time() {
        assert!(start(1_800_000_000 + 3650 * 24 * 3600 + 3600, 0).is_ok());
        assert!(start(1_800_000_000 + 3650 * 24 * 3600 + 3601, 0).is_err());
    }

    #[test]
    fn the_year_9999_and_beyond_is_refused() {
        assert_eq!(
            start(LAST_SECOND, 0).unwrap_err(),
            "run_at is 9999-12-31T23:59:59Z; at most 3650 days ahead is allowed"
        );
        for (seconds, nanos) in [
            (LAST_SECOND + 1, 0),
            (i64::MAX, 0),
            (i64::MAX, i32::MAX),
            (-1, 0),
            (i64::MIN, 0),
            (5, -1),
            (5, 1_000_000_000),
        ] {
            assert!(start(seconds, nanos).unwrap_err().contains("not a time of the years"), "{seconds} {nanos}");
        }
    }
}

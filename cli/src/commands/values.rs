//! Parsers for values that several commands take: ids, times and durations.

use std::{any::TypeId, time::Duration};

use clap::Command;
use jiff::Timestamp;

use super::failure::Failure;

/// Error for a time outside of the range of the protocol.
const YEARS: &str = "the time must be in the years 1970 to 9999";
/// 9999-12-31T23:59:59Z in Unix seconds.
const LAST_SECOND: i64 = 253_402_300_799;

/// Parses the id of a job or of a bulk operation.
pub(super) fn id(given: &str) -> Result<i64, String> {
    let id = given.parse::<i64>().ok().filter(|id| *id > 0);
    id.ok_or_else(|| "an id must be a number, 1 or more".into())
}

/// Parses a duration, such as `2h 30m`.
pub(super) fn duration(given: &str) -> Result<Duration, String> {
    humantime::parse_duration(given).map_err(|_| {
        let is_negative = given.trim_start().starts_with('-');
        if is_negative { "a duration must not be negative" } else { "write a duration, such as 90s, 5m or 2h 30m" }
            .into()
    })
}

/// Parses a time, such as `2027-01-01 03:00`. A time without a zone is UTC, because times are printed in UTC.
pub(super) fn time(given: &str) -> Result<Timestamp, String> {
    let time: Timestamp = howdah_proto::json::time_text(given)
        .parse()
        .map_err(|_| String::from("write a time, such as 2027-01-01T03:00:00Z; without a zone it is UTC"))?;
    possible(Ok(time))
}

/// Parses a time, or a duration before now.
pub(super) fn time_or_ago(given: &str) -> Result<Timestamp, String> {
    let parsed = time_or(given, Timestamp::checked_sub, "how long ago");
    let is_negative = given.trim_start().starts_with('-');
    parsed.map_err(|problem| if is_negative { "omit the minus sign: 90m means 90 minutes ago".into() } else { problem })
}

/// Parses a time, or a duration from now.
pub(super) fn time_or_in(given: &str) -> Result<Timestamp, String> {
    time_or(given, Timestamp::checked_add, "a duration from now")
}

/// Parses a time, or a duration that `shift` applies to the current time. `or` describes the duration in errors.
fn time_or(
    given: &str,
    shift: impl FnOnce(Timestamp, Duration) -> Result<Timestamp, jiff::Error>,
    or: &str,
) -> Result<Timestamp, String> {
    if let Ok(duration) = humantime::parse_duration(given) {
        return possible(shift(Timestamp::now(), duration));
    }
    let both = format!("write a time, such as 2027-01-01T03:00:00Z, or {or}, such as 90m or 7d");
    time(given).map_err(|problem| if problem == YEARS { problem } else { both })
}

/// Converts a time to a timestamp of the protocol.
pub(super) fn wire(time: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() }
}

/// Converts a duration to one of the protocol. `flag` names it in the error.
pub(super) fn wire_duration(flag: &str, duration: Duration) -> Result<prost_types::Duration, Failure> {
    duration.try_into().map_err(|_| Failure::usage(format!("{flag} is too long: it is at most 3650 days")))
}

/// Returns the start of jobs from the flags --run-at and --delay, of which at most one is given.
pub(super) fn start<S>(
    run_at: Option<Timestamp>,
    delay: Option<Duration>,
    at: fn(prost_types::Timestamp) -> S,
    after: fn(prost_types::Duration) -> S,
) -> Result<Option<S>, Failure> {
    let delay = delay.map(|delay| wire_duration("--delay", delay)).transpose()?;
    Ok(run_at.map(|time| at(wire(time))).or(delay.map(after)))
}

fn possible(time: Result<Timestamp, jiff::Error>) -> Result<Timestamp, String> {
    time.ok().filter(|time| (0..=LAST_SECOND).contains(&time.as_second())).ok_or_else(|| YEARS.into())
}

/// Lets flags for numbers, times and durations accept values such as `-7`, so that the value parser reports the error.
/// Otherwise clap would report an unknown flag.
pub(super) fn take_negative(command: Command) -> Command {
    let is_one_of =
        |parser: &clap::builder::ValueParser, types: &[TypeId]| types.iter().any(|id| parser.type_id() == *id);
    let numbers = [
        TypeId::of::<i32>(),
        TypeId::of::<i64>(),
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<f64>(),
    ];
    let others = [TypeId::of::<Duration>(), TypeId::of::<Timestamp>()];
    command
        .mut_args(|arg| {
            let parser = arg.get_value_parser();
            let (is_number, is_other) = (is_one_of(parser, &numbers), is_one_of(parser, &others));
            match arg.is_positional() {
                // Positional arguments accept a dash only before a number, because the next word may also be a flag.
                true if is_number => arg.allow_negative_numbers(true),
                false if is_number || is_other => arg.allow_hyphen_values(true),
                _ => arg,
            }
        })
        .mut_subcommands(take_negative)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_duration_is_refused_with_examples() {
        assert_eq!(duration("2h 30m"), Ok(Duration::from_secs(9_000)));
        for wrong in ["", "soon", "7", "7 fortnights"] {
            assert!(duration(wrong).unwrap_err().contains("90s, 5m or 2h 30m"), "{wrong}");
        }
        assert_eq!(duration("-7s").unwrap_err(), "a duration must not be negative");
    }

    #[test]
    fn an_invalid_time_is_refused_with_examples_of_both_forms() {
        assert_eq!(time_or_ago("2027-01-01 03:00").unwrap(), time("2027-01-01T03:00:00Z").unwrap());
        let both = time_or_ago("foo").unwrap_err();
        assert!(both.contains("2027-01-01T03:00:00Z") && both.contains("7d"), "{both}");
        assert!(time("7d").unwrap_err().contains("2027-01-01T03:00:00Z"));
        assert!(time_or_ago("-7d").unwrap_err().contains("omit the minus sign"));
        for far in ["10000y", "1969-12-31T23:59:59Z", "90000000000d"] {
            assert_eq!(time_or_ago(far).unwrap_err(), YEARS, "{far}");
        }
    }

    #[test]
    fn a_time_may_be_a_duration_from_now() {
        let hours = (time_or_in("2h").unwrap() - Timestamp::now()).total(jiff::Unit::Minute).unwrap();
        assert!((119.0..=120.0).contains(&hours), "{hours}");
        assert_eq!(time_or_in("2027-01-01 03:00").unwrap(), time("2027-01-01T03:00:00Z").unwrap());
        assert!(time_or_in("soon").unwrap_err().contains("90m or 7d"));
        assert_eq!(time_or_in("10000y").unwrap_err(), YEARS);
    }

    #[test]
    fn an_id_is_a_number_from_1_on() {
        assert_eq!(id("17"), Ok(17));
        for wrong in ["foo", "0", "-7", "1.5", "9223372036854775808"] {
            assert_eq!(id(wrong).unwrap_err(), "an id must be a number, 1 or more", "{wrong}");
        }
    }
}

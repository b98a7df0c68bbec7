//! Checks of this machine: the clock and the limit on open files.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use howdah_core::{config::Config, durations};
use rustix::process::{Resource, getrlimit};

use super::Finding;

/// Maximum difference between the clocks of the broker and the database that is not reported, because it affects
/// neither users nor tokens.
const APART: Duration = Duration::from_secs(2);
/// Open files of a broker besides client connections: connections to Postgres, logs, listeners.
const OTHER_FILES: u64 = 100;

/// Compares the database's clock with the clock of this machine. `took` is the time from request to answer.
pub(super) fn clock(database_us: i64, requested_at: SystemTime, took: Duration) -> Option<Finding> {
    let requested_us = requested_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as i64;
    // The database read its clock at an unknown time between request and answer, so a difference up to `took` is not
    // reported.
    let early = requested_us - database_us;
    let late = database_us - requested_us - took.as_micros() as i64;
    let apart = Duration::from_micros(early.max(late).max(0) as u64);
    (apart > APART).then(|| {
        let ahead = if early > 0 { "ahead of" } else { "behind" };
        Finding::advice(
            "clock",
            format!("this machine's clock is {} {ahead} the database's clock", durations::short(apart)),
            "run NTP on both; jobs use the database's clock, but certificates and JSON Web Tokens use the broker's",
        )
    })
}

/// Checks the limit on open files. Each connection takes one file.
pub(super) fn files(config: &Config) -> Option<Finding> {
    let most = getrlimit(Resource::Nofile).current?;
    let wanted = config.limits.connections as u64 + OTHER_FILES;
    (most < wanted).then(|| {
        Finding::advice(
            "files",
            format!(
                "a process started from here may open {most} files, but limits.connections is {}",
                config.limits.connections
            ),
            format!("set LimitNOFILE={wanted} in the systemd unit, or ulimit -n {wanted}; or lower limits.connections"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_difference_within_the_time_of_the_query_is_not_a_finding() {
        let requested_at = UNIX_EPOCH + Duration::from_secs(1_000);
        let took = Duration::from_secs(5);
        let found = |seconds: i64| clock(seconds * 1_000_000, requested_at, took).map(|finding| finding.found);
        assert_eq!([found(998), found(1_003), found(1_007)], [None, None, None]);
        assert_eq!(found(990).unwrap(), "this machine's clock is 10s ahead of the database's clock");
        assert_eq!(found(1_065).unwrap(), "this machine's clock is 1m behind the database's clock");
    }
}

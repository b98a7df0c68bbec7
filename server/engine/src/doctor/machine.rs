//! Checks of this machine's clock and limit on open files, and of the free Postgres connections for one more broker.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use howdah_core::{config::Config, durations};
use rustix::process::{Resource, getrlimit};

use super::Finding;
use crate::store::{ConnectionLimits, Limit, Store};

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

/// Returns a finding for each limit that leaves too few connections.
pub(super) fn connections(limits: &ConnectionLimits, config: &Config) -> Vec<Finding> {
    let need = i64::from(Store::most_connections(config.pool_size));
    let role = &limits.role_name;
    let short = |Limit { most, open }: Limit| (most >= 0 && most - open < need).then_some((most - open, most));
    let found = |(free, most), of: &str| {
        format!("{free} of {most} connections{of} are free, and one more broker may need {need}")
    };
    let checked = [
        (
            short(limits.server),
            "connections",
            String::new(),
            "raise max_connections, or lower the pools of other programs or pool_size".to_owned(),
        ),
        (
            short(limits.database),
            "database_connections",
            " of the database (datconnlimit)".to_owned(),
            "ALTER DATABASE ... CONNECTION LIMIT to more, or lower pool_size".to_owned(),
        ),
        (
            short(limits.role),
            "role_connections",
            format!(" of role {role} (rolconnlimit)"),
            format!("ALTER ROLE {role} CONNECTION LIMIT to more, or lower pool_size"),
        ),
    ];
    let checked = checked.into_iter();
    checked.filter_map(|(short, name, of, change)| Some(Finding::advice(name, found(short?, &of), change))).collect()
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

    #[test]
    fn each_limit_that_leaves_too_few_connections_is_found() {
        let config = Config::new("");
        let need = i64::from(Store::most_connections(config.pool_size));
        let plenty = Limit { most: -1, open: 1_000 };
        let limits = |server, database, role| ConnectionLimits { role_name: "howdah".into(), role, database, server };
        let found =
            |limits: ConnectionLimits| -> Vec<_> { connections(&limits, &config).iter().map(|f| f.check).collect() };
        assert_eq!(found(limits(plenty, plenty, plenty)), [""; 0]);
        let (enough, short) = (Limit { most: need + 3, open: 3 }, Limit { most: need + 2, open: 3 });
        assert_eq!(found(limits(enough, enough, enough)), [""; 0]);
        assert_eq!(found(limits(short, short, short)), ["connections", "database_connections", "role_connections"]);
        let role = connections(&limits(plenty, plenty, Limit { most: 6, open: 2 }), &config).remove(0);
        assert!(role.found.starts_with("4 of 6 connections of role howdah (rolconnlimit) are free"), "{}", role.found);
    }
}

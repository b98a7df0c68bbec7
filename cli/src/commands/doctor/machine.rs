//! This machine: its clock, the broker's certificate, the files that the process may open.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use howdah_server::{config::Config, tls::Tls};
use rustix::process::{Resource, getrlimit};

use super::{super::text, finding::Finding};

/// How far two clocks may be apart before people and tokens notice.
const APART: Duration = Duration::from_secs(2);
/// How long before its end a certificate should be replaced.
const BEFORE_END: Duration = Duration::from_secs(14 * 86_400);
/// Files of a broker besides connections of clients: to Postgres, logs, listeners.
const OTHER_FILES: u64 = 100;

/// The clock of the database against this one; the answer took so long.
pub(super) fn clock(database_us: i64, asked: SystemTime, took: Duration) -> Option<Finding> {
    let asked_us = asked.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as i64;
    // The database was asked at some time between.
    let early = asked_us - database_us;
    let late = database_us - asked_us - took.as_micros() as i64;
    let apart = Duration::from_micros(early.max(late).max(0) as u64);
    (apart > APART).then(|| {
        let ahead = if early > 0 { "ahead of" } else { "behind" };
        Finding::advice(
            "clock",
            format!("this machine's clock is {} {ahead} that of the database", text::short(apart)),
            "run NTP on both; jobs go by the database's clock, but certificates and JSON Web Tokens by the broker's",
        )
    })
}

/// The files of TLS, as the broker would read them.
pub(super) fn certificate(config: &Config, now: SystemTime) -> Option<Finding> {
    match Tls::load(&config.tls) {
        Err(problem) => Some(Finding::problem("tls", problem, "put files there that belong together")),
        Ok(None) => None,
        Ok(Some(tls)) => {
            let left = tls.expires().duration_since(now).unwrap_or_default();
            let change = "put a new certificate in its place: brokers read it again within ten seconds";
            match left {
                Duration::ZERO => Some(Finding::problem("tls_expires", "the broker's certificate has expired", change)),
                left if left < BEFORE_END => {
                    let found = format!("the broker's certificate expires in {}", text::short(left));
                    Some(Finding::advice("tls_expires", found, change))
                }
                _ => None,
            }
        }
    }
}

/// Each connection is a file.
pub(super) fn files(config: &Config) -> Option<Finding> {
    let most = getrlimit(Resource::Nofile).current?;
    let wanted = config.limits.connections as u64 + OTHER_FILES;
    (most < wanted).then(|| {
        Finding::advice(
            "files",
            format!(
                "a process started from here may open {most} files, and limits.connections is {}",
                config.limits.connections
            ),
            format!("LimitNOFILE={wanted} in the unit of systemd, or ulimit -n; or lower limits.connections"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_apart_only_by_what_the_answer_cannot_explain() {
        let asked = UNIX_EPOCH + Duration::from_secs(1_000);
        let took = Duration::from_secs(5);
        let found = |seconds: i64| clock(seconds * 1_000_000, asked, took).map(|finding| finding.found);
        assert_eq!([found(998), found(1_003), found(1_007)], [None, None, None]);
        assert_eq!(found(990).unwrap(), "this machine's clock is 10s ahead of that of the database");
        assert_eq!(found(1_065).unwrap(), "this machine's clock is 1m behind that of the database");
    }
}

//! Decides whether a long-held snapshot of Postgres causes bloat, and when to log it. Does no I/O.
//!
//! A snapshot causes bloat if it has kept VACUUM from removing dead rows for a minute, while a busy table has more dead
//! rows than autovacuum tolerates. This module measures how long it has seen the same oldest snapshot: the start of a
//! transaction only bounds the age of its snapshot, and a replication slot has no start time.

use std::time::Duration;

use tokio::time::Instant;

use crate::store::TableHealth;

/// Time that the same snapshot may be the oldest before it counts as the cause of bloat.
const HELD: Duration = Duration::from_secs(60);
/// Minimum time between two warnings about snapshots.
const AGAIN: Duration = Duration::from_secs(600);

/// Memory of past observations and warnings.
#[derive(Debug, Default)]
pub(super) struct SnapshotWatch {
    oldest: Option<Oldest>,
    warned: Option<Instant>,
    /// Whether the last log line was a warning.
    warning: bool,
}

#[derive(Clone, Copy, Debug)]
struct Oldest {
    xid: i64,
    since: Instant,
}

/// Result of one observation of the oldest snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Observation {
    /// Time since this broker first saw the current oldest snapshot.
    pub(super) held: Duration,
    /// Whether the snapshot makes a table grow.
    pub(super) bloat: bool,
    /// Log line that this observation causes.
    pub(super) log_line: LogLine,
}

/// Log line that an observation of the oldest snapshot causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogLine {
    Nothing,
    /// A warning that the snapshot makes a table grow.
    Bloat,
    /// A message that the bloat of the last warning has ended.
    Over,
}

impl SnapshotWatch {
    /// Processes an observation. `xid` is the oldest transaction whose snapshot holds back VACUUM. `too_many_dead`
    /// tells whether a table has too many dead rows.
    pub(super) fn observe(&mut self, xid: Option<i64>, too_many_dead: bool, now: Instant) -> Observation {
        let before = self.oldest.filter(|oldest| Some(oldest.xid) == xid);
        self.oldest = before.or(xid.map(|xid| Oldest { xid, since: now }));
        let held = self.oldest.map_or(Duration::ZERO, |oldest| now.duration_since(oldest.since));
        let bloat = held >= HELD && too_many_dead;
        // The pause also applies if the bloat ends and starts again, because the number of dead rows may swing around
        // the bound.
        let may_warn = self.warned.is_none_or(|warned| now.duration_since(warned) >= AGAIN);
        let log_line = match (bloat, self.warning) {
            (true, _) if may_warn => LogLine::Bloat,
            (false, true) => LogLine::Over,
            _ => LogLine::Nothing,
        };
        match log_line {
            LogLine::Bloat => (self.warned, self.warning) = (Some(now), true),
            LogLine::Over => self.warning = false,
            LogLine::Nothing => {}
        }
        Observation { held, bloat, log_line }
    }
}

/// Returns the table with the most dead rows, among the tables with more dead rows than autovacuum tolerates.
pub(super) fn overgrown(tables: &[TableHealth]) -> Option<&TableHealth> {
    tables.iter().filter(|table| table.dead_rows > table.autovacuum_threshold).max_by_key(|table| table.dead_rows)
}

#[cfg(test)]
mod tests {
    use super::{LogLine::*, *};

    /// Returns the log lines that observations cause. An observation has a time in seconds, the oldest transaction, and
    /// whether there are too many dead rows.
    fn said(looks: &[(u64, Option<i64>, bool)]) -> Vec<(u64, LogLine)> {
        let mut watch = SnapshotWatch::default();
        let begin = Instant::now();
        let says = looks.iter().map(|&(second, xid, dead)| {
            (second, watch.observe(xid, dead, begin + Duration::from_secs(second)).log_line)
        });
        says.filter(|(_, log_line)| *log_line != Nothing).collect()
    }

    #[test]
    fn a_snapshot_held_for_a_minute_over_too_many_dead_rows_is_told_once_and_its_end_once() {
        let looks = [0, 15, 30, 45, 60, 75, 90].map(|second| (second, Some(7), true));
        let end = [(105, Some(9), true), (120, Some(10), true)];
        assert_eq!(said(&[&looks[..], &end].concat()), [(60, Bloat), (105, Over)]);
        assert_eq!(said(&[&looks[..], &[(105, None, false), (120, None, false)]].concat()), [(60, Bloat), (105, Over)]);
    }

    #[test]
    fn the_warning_about_a_held_snapshot_is_repeated_every_ten_minutes() {
        let looks: Vec<_> = (0..100).map(|n| (n * 15, Some(7), true)).collect();
        assert_eq!(said(&looks), [(60, Bloat), (660, Bloat), (1260, Bloat)]);
    }

    #[test]
    fn an_old_snapshot_alone_and_many_dead_rows_alone_cause_no_warning() {
        let quiet: Vec<_> = (0..100).map(|n| (n * 15, Some(7), false)).collect();
        assert_eq!(said(&quiet), []);
        let busy: Vec<_> = (0..100).map(|n| (n * 15, Some(n as i64), true)).collect();
        assert_eq!(said(&busy), []);
        let alone: Vec<_> = (0..100).map(|n| (n * 15, None, true)).collect();
        assert_eq!(said(&alone), []);
    }

    #[test]
    fn dead_rows_that_swing_about_the_bound_make_one_warning_in_ten_minutes() {
        let looks: Vec<_> = (0..60).map(|n| (n * 15, Some(7), n % 2 == 0)).collect();
        assert_eq!(said(&looks), [(60, Bloat), (75, Over), (660, Bloat), (675, Over)]);
    }

    #[test]
    fn the_time_held_begins_anew_with_another_snapshot() {
        let (mut watch, begin) = (SnapshotWatch::default(), Instant::now());
        let mut held = |second, xid| watch.observe(xid, true, begin + Duration::from_secs(second)).held.as_secs();
        assert_eq!([held(0, Some(7)), held(50, Some(7)), held(65, Some(8)), held(80, Some(8))], [0, 50, 0, 15]);
        assert_eq!([held(95, None), held(110, Some(8))], [0, 0]);
    }

    #[test]
    fn the_table_with_the_most_dead_rows_above_its_own_bound_is_named() {
        let table =
            |name, dead_rows, autovacuum_threshold| TableHealth { name, live_rows: 0, dead_rows, autovacuum_threshold };
        let tables =
            [table("ready", 90_000, 100_000), table("leased", 11_000, 10_000), table("waiting", 10_001, 10_000)];
        assert_eq!(overgrown(&tables).map(|table| table.name), Some("leased"));
        assert_eq!(overgrown(&tables[..1]), None);
        assert_eq!(overgrown(&[table("ready", 10_000, 10_000)]), None);
    }
}

//! Decides when a held snapshot causes harm, and when to log it. It does no I/O.
//!
//! It does if VACUUM could not get past the same transaction for a minute, and a hot table has more dead rows than
//! autovacuum leaves. The age is measured here by observation: the start of a transaction only bounds the age of its
//! snapshot, and a slot has not even that.

use std::time::Duration;

use tokio::time::Instant;

use crate::store::TableHealth;

/// How long a snapshot may be held.
const HELD: Duration = Duration::from_secs(60);
/// The time between two warnings.
const AGAIN: Duration = Duration::from_secs(600);

/// What was observed and logged so far.
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

/// The result of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// How long the oldest snapshot has been the oldest, as far as this broker has observed.
    pub(super) held: Duration,
    /// Whether it causes harm.
    pub(super) hurts: bool,
    /// What to log.
    pub(super) say: Say,
}

/// What to log now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Say {
    /// Nothing.
    Nothing,
    /// A warning.
    Hurts,
    /// The end of a warning.
    Over,
}

impl SnapshotWatch {
    /// Takes in an observation: the transaction that VACUUM cannot get past, and whether a table has too many dead
    /// rows.
    pub(super) fn look(&mut self, xid: Option<i64>, too_many_dead: bool, now: Instant) -> Look {
        let before = self.oldest.filter(|oldest| Some(oldest.xid) == xid);
        self.oldest = before.or(xid.map(|xid| Oldest { xid, since: now }));
        let held = self.oldest.map_or(Duration::ZERO, |oldest| now.duration_since(oldest.since));
        let hurts = held >= HELD && too_many_dead;
        // This also holds when it stops and starts again: the number of dead rows may swing about the bound.
        let may_warn = self.warned.is_none_or(|warned| now.duration_since(warned) >= AGAIN);
        let say = match (hurts, self.warning) {
            (true, _) if may_warn => Say::Hurts,
            (false, true) => Say::Over,
            _ => Say::Nothing,
        };
        match say {
            Say::Hurts => (self.warned, self.warning) = (Some(now), true),
            Say::Over => self.warning = false,
            Say::Nothing => {}
        }
        Look { held, hurts, say }
    }
}

/// Of the tables with more dead rows than autovacuum leaves, the one with the most.
pub(super) fn overgrown(tables: &[TableHealth]) -> Option<&TableHealth> {
    tables.iter().filter(|table| table.dead_rows > table.autovacuum_threshold).max_by_key(|table| table.dead_rows)
}

#[cfg(test)]
mod tests {
    use super::{Say::*, *};

    /// What is said at these looks: seconds, transaction, too many dead rows.
    fn said(looks: &[(u64, Option<i64>, bool)]) -> Vec<(u64, Say)> {
        let mut watch = SnapshotWatch::default();
        let begin = Instant::now();
        let says = looks
            .iter()
            .map(|&(second, xid, dead)| (second, watch.look(xid, dead, begin + Duration::from_secs(second)).say));
        says.filter(|(_, say)| *say != Nothing).collect()
    }

    #[test]
    fn a_snapshot_held_for_a_minute_over_too_many_dead_rows_is_told_once_and_its_end_once() {
        let looks = [0, 15, 30, 45, 60, 75, 90].map(|second| (second, Some(7), true));
        let end = [(105, Some(9), true), (120, Some(10), true)];
        assert_eq!(said(&[&looks[..], &end].concat()), [(60, Hurts), (105, Over)]);
        assert_eq!(said(&[&looks[..], &[(105, None, false), (120, None, false)]].concat()), [(60, Hurts), (105, Over)]);
    }

    #[test]
    fn while_it_lasts_it_is_told_again_every_ten_minutes() {
        let looks: Vec<_> = (0..100).map(|n| (n * 15, Some(7), true)).collect();
        assert_eq!(said(&looks), [(60, Hurts), (660, Hurts), (1260, Hurts)]);
    }

    #[test]
    fn an_old_snapshot_without_dead_rows_is_nobodys_business_and_neither_are_dead_rows_without_one() {
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
        assert_eq!(said(&looks), [(60, Hurts), (75, Over), (660, Hurts), (675, Over)]);
    }

    #[test]
    fn the_time_held_begins_anew_with_another_snapshot() {
        let (mut watch, begin) = (SnapshotWatch::default(), Instant::now());
        let mut held = |second, xid| watch.look(xid, true, begin + Duration::from_secs(second)).held.as_secs();
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

//! Detects the primary among several servers. A former primary still accepts writes if its cluster manager is stopped
//! or unreachable. The new primary is recognised by its WAL timeline, because each promotion begins a timeline with a
//! higher number.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::Statement;

/// Timeline on which a primary writes its WAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timeline {
    /// System identifier of the database cluster.
    pub(super) system: u64,
    /// Timeline number, which increases with each promotion.
    pub(super) number: u32,
}

/// Time after the last contact with a server on the latest timeline during which servers on earlier timelines are
/// rejected. After that, a server on an earlier timeline is accepted, because it may have been restored from a backup.
const LATEST_TTL: Duration = Duration::from_secs(60);

impl Timeline {
    /// Queries the timeline of a server. `None` if the server does not report it, as some Postgres-compatible servers
    /// do not.
    pub(super) async fn query(client: &Client) -> Option<Self> {
        let messages = client.simple_query(&Statement::Timeline.text()).await.ok()?;
        messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Self::parse(row.get("system")?, row.get("timeline")?),
            _ => None,
        })
    }

    fn parse(system: &str, number: &str) -> Option<Self> {
        Some(Self { system: system.parse().ok()?, number: u32::from_str_radix(number, 16).ok()? })
    }

    /// Whether this timeline began with a later promotion than the timeline `other`, in the same database cluster.
    pub(super) const fn is_after(self, other: Self) -> bool {
        self.system == other.system && self.number > other.number
    }
}

/// The latest timeline that a server has reported, and the time of the last contact with a server on it.
#[derive(Debug)]
pub(super) struct Latest(watch::Sender<Option<(Timeline, Instant)>>);

impl Latest {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// Records contact with a server on this timeline. False if the server is a former primary.
    pub(super) fn record_contact(&self, seen: Timeline) -> bool {
        let mut accepted = true;
        self.0.send_if_modified(|latest| {
            let (before, now) = (*latest, Instant::now());
            accepted = before.is_none_or(|(latest, at)| !latest.is_after(seen) || now - at > LATEST_TTL);
            if accepted {
                *latest = Some((seen, now));
            }
            accepted && before.map(|(latest, _)| latest) != Some(seen)
        });
        accepted
    }

    /// Whether a server on a later timeline was seen.
    pub(super) fn is_after(&self, timeline: Timeline) -> bool {
        self.0.borrow().is_some_and(|(latest, _)| latest.is_after(timeline))
    }

    /// Waits until the latest timeline changes.
    pub(super) fn changed(&self) -> impl Future<Output = ()> {
        let mut latest = self.0.subscribe();
        async move {
            // `changed` fails only when the store is dropped.
            let _ = latest.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Timeline = Timeline { system: 1, number: 9 };
    const SECOND: Timeline = Timeline { number: 10, ..FIRST };
    const OTHER: Timeline = Timeline { system: 2, number: 1 };

    #[test]
    fn a_timeline_is_read_from_the_name_of_a_wal_file() {
        assert_eq!(Timeline::parse("1", "0000000A"), Some(SECOND));
        assert_eq!(Timeline::parse("1", "x"), None);
    }

    #[test]
    fn a_former_primary_is_not_admitted_once_a_later_one_was_seen() {
        let latest = Latest::new();
        assert!(latest.record_contact(FIRST) && !latest.is_after(FIRST));
        assert!(latest.record_contact(SECOND) && latest.record_contact(SECOND));
        assert!(!latest.record_contact(FIRST) && latest.is_after(FIRST) && !latest.is_after(SECOND));
    }

    #[test]
    fn another_database_system_is_neither_before_nor_after() {
        let latest = Latest::new();
        assert!(latest.record_contact(SECOND) && latest.record_contact(OTHER));
        assert!(!latest.is_after(SECOND) && !latest.is_after(OTHER));
    }

    #[test]
    fn a_later_primary_that_is_silent_for_long_is_forgotten() {
        let latest = Latest::new();
        let before = Instant::now().checked_sub(LATEST_TTL + Duration::from_secs(1)).expect("a time");
        latest.0.send_replace(Some((SECOND, before)));
        assert!(latest.record_contact(FIRST) && !latest.is_after(FIRST));
    }
}

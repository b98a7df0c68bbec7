//! Which of several servers is the primary. One that was not told of its end, because its own manager is stopped or cut off,
//! answers as if it were; but whoever took over was promoted later, and each promotion begins a timeline with a higher
//! number.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::Statement;

/// The history that a primary writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timeline {
    /// What tells this database system from others.
    pub(super) system: u64,
    /// One more with each promotion.
    pub(super) number: u32,
}

/// So long after its last sign a later primary keeps earlier ones out. Then it is gone, and what is there now was restored.
const MEMORY: Duration = Duration::from_secs(60);

impl Timeline {
    /// Asks a server. `None`: it does not say, as some that are only like Postgres do not.
    pub(super) async fn of(client: &Client) -> Option<Self> {
        let messages = client.simple_query(Statement::Timeline.text()).await.ok()?;
        messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Self::parse(row.get("system")?, row.get("timeline")?),
            _ => None,
        })
    }

    fn parse(system: &str, number: &str) -> Option<Self> {
        Some(Self { system: system.parse().ok()?, number: u32::from_str_radix(number, 16).ok()? })
    }

    /// Whether whoever writes this one was promoted after the other.
    pub(super) const fn is_after(self, other: Self) -> bool {
        self.system == other.system && self.number > other.number
    }
}

/// The latest that was seen, and when.
#[derive(Debug)]
pub(super) struct Latest(watch::Sender<Option<(Timeline, Instant)>>);

impl Latest {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// A server that writes this timeline has answered. False: it is a former primary.
    pub(super) fn admits(&self, seen: Timeline) -> bool {
        let mut admitted = true;
        self.0.send_if_modified(|latest| {
            let (before, now) = (*latest, Instant::now());
            admitted = before.is_none_or(|(latest, at)| !latest.is_after(seen) || now - at > MEMORY);
            if admitted {
                *latest = Some((seen, now));
            }
            admitted && before.map(|(latest, _)| latest) != Some(seen)
        });
        admitted
    }

    /// Whether another server was promoted after the one that writes this.
    pub(super) fn is_after(&self, timeline: Timeline) -> bool {
        self.0.borrow().is_some_and(|(latest, _)| latest.is_after(timeline))
    }

    /// Returns when there is another latest one.
    pub(super) fn changed(&self) -> impl Future<Output = ()> {
        let mut latest = self.0.subscribe();
        async move {
            // An error says that the store is gone.
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
        assert!(latest.admits(FIRST) && !latest.is_after(FIRST));
        assert!(latest.admits(SECOND) && latest.admits(SECOND));
        assert!(!latest.admits(FIRST) && latest.is_after(FIRST) && !latest.is_after(SECOND));
    }

    #[test]
    fn another_database_system_is_neither_before_nor_after() {
        let latest = Latest::new();
        assert!(latest.admits(SECOND) && latest.admits(OTHER));
        assert!(!latest.is_after(SECOND) && !latest.is_after(OTHER));
    }

    #[test]
    fn a_later_primary_that_is_silent_for_long_is_forgotten() {
        let latest = Latest::new();
        let before = Instant::now().checked_sub(MEMORY + Duration::from_secs(1)).expect("a time");
        latest.0.send_replace(Some((SECOND, before)));
        assert!(latest.admits(FIRST) && !latest.is_after(FIRST));
    }
}

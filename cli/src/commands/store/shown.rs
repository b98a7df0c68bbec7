//! Formats stores as text.

use howdah_client::proto::{ReadReplica, Store, StoreState, TaskTypeCounts};
use howdah_core::logging::escaped;

use crate::commands::text;

/// State of a store in one word.
pub(super) fn state(store: &Store) -> &'static str {
    match store.state() {
        StoreState::Unspecified => "unknown",
        StoreState::Ready => "ready",
        StoreState::Unreachable => "unreachable",
        StoreState::Closed => "closed",
        StoreState::Skipped => "skipped",
    }
}

/// Time of the close, and the principal that closed the store. Empty for an open store.
pub(super) fn closed(store: &Store) -> String {
    let Some(time) = text::timestamp(store.close_time.as_ref()) else { return String::new() };
    let by = match escaped(&store.closed_by) {
        by if by.is_empty() => String::new(),
        by => format!(" by {by}"),
    };
    format!("since {}{by}", text::time(time))
}

/// Lag of the replica, and whether the broker reads from it.
pub(super) fn replica(replica: &ReadReplica) -> String {
    let lag = text::duration(replica.lag.as_ref()).map(|lag| format!("{} behind", text::short(lag)));
    match (replica.used, lag) {
        (true, lag) => lag.unwrap_or_default(),
        (false, Some(lag)) => format!("not read: {lag}, or unreachable"),
        (false, None) => "not read: unreachable".into(),
    }
}

/// Numbers of jobs that have not ended, at the last count, as text.
pub(super) fn rest(counts: TaskTypeCounts) -> String {
    let parts = [
        (counts.ready, "ready"),
        (counts.leased, "leased"),
        (counts.scheduled, "scheduled"),
        (counts.waiting, "waiting"),
    ];
    let parts: Vec<String> =
        parts.into_iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}")).collect();
    if parts.is_empty() { "the last jobs".into() } else { parts.join(", ") }
}

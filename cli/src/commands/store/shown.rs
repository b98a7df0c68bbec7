//! Stores as text and as JSON.

use howdah_client::proto::{ReadReplica, Store, StoreState, TaskTypeCounts};
use howdah_server::logging::escaped;
use serde_json::{Value, json};

use crate::commands::text;

/// State of a store in one word.
pub(super) fn state(store: &Store) -> &'static str {
    match store.state() {
        StoreState::Unspecified => "unknown",
        StoreState::Ready => "ready",
        StoreState::Unreachable => "unreachable",
        StoreState::Closed => "closed",
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

/// JSON object of a store.
pub(super) fn json(store: &Store) -> Value {
    let known = store.state() != StoreState::Unreachable;
    let counts = store.counts.filter(|_| known);
    let count = |of: fn(&TaskTypeCounts) -> i64| counts.as_ref().map(of);
    json!({
        "name": store.name,
        "number": store.number,
        "state": state(store),
        "close_time": text::timestamp(store.close_time.as_ref()).map(|time| time.to_string()),
        "closed_by": store.close_time.map(|_| store.closed_by.clone()),
        "ready": count(|counts| counts.ready),
        "leased": count(|counts| counts.leased),
        "scheduled": count(|counts| counts.scheduled),
        "waiting": count(|counts| counts.waiting),
        "dead": count(|counts| counts.dead),
        "has_unfinished_jobs": known.then_some(store.has_unfinished_jobs),
        "read_replica": store.read_replica.as_ref().map(|replica| json!({
            "used": replica.used,
            "lag_ms": text::duration(replica.lag.as_ref()).map(|lag| lag.as_millis() as u64),
        })),
    })
}

//! A store, for people and as JSON.

use howdah_client::proto::{ReadReplica, Store, StoreState, TaskTypeCounts};
use howdah_server::logging::escaped;
use serde_json::{Value, json};

use crate::commands::text;

/// Its state in one word.
pub(super) fn state(store: &Store) -> &'static str {
    match store.state() {
        StoreState::Unspecified => "unknown",
        StoreState::Ready => "ready",
        StoreState::Away => "away",
        StoreState::Closed => "closed",
    }
}

/// Since when it is closed, and by whom; empty: it is not.
pub(super) fn closed(store: &Store) -> String {
    let Some(time) = text::timestamp(store.close_time.as_ref()) else { return String::new() };
    let by = match escaped(&store.closed_by) {
        by if by.is_empty() => String::new(),
        by => format!(" by {by}"),
    };
    format!("since {}{by}", text::time(time))
}

/// How far its replica is behind, and whether it is read.
pub(super) fn replica(replica: &ReadReplica) -> String {
    let lag = text::duration(replica.lag.as_ref()).map(|lag| format!("{} behind", text::short(lag)));
    match (replica.used, lag) {
        (true, lag) => lag.unwrap_or_default(),
        (false, Some(lag)) => format!("not read: {lag}, or away"),
        (false, None) => "not read: away".into(),
    }
}

/// How many of its jobs have not ended, by the last count, in words.
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

/// The object of `--json`.
pub(super) fn json(store: &Store) -> Value {
    let known = store.state() != StoreState::Away;
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

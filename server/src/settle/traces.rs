//! The spans of attempts that end here.

use std::collections::HashMap;

use super::locked::Written;
use crate::{
    job::{Outcome, SettleStatus, Settlement},
    metrics::Traced,
    store::{Action, Nack, Nacked},
    traces::{Ending, Traces},
};

/// Attempts that their workers have settled. Returns a trace of them.
pub(super) fn settled(traces: &Traces, settlements: &[Settlement], written: &[Written]) -> Option<Traced> {
    if traces.is_idle() {
        return None;
    }
    let done = settlements.iter().zip(written).filter(|(_, written)| **written == Written::As(SettleStatus::Ok));
    // Failures have ended with their statement, unless its answer was lost.
    traces.ended(done.map(|(settlement, _)| (settlement.lease, &settlement.outcome)), |outcome| match outcome {
        Outcome::Ack { .. } => Ending::of("ack"),
        Outcome::Retry { error, .. } => Ending::failed("retry", error),
        Outcome::Dead { error } => Ending::failed("dead", error),
        Outcome::Snooze { .. } => Ending::of("snooze"),
        Outcome::Release => Ending::of("release"),
    })
}

/// Attempts that ended otherwise; `expired`: since their deadlines have passed.
pub(super) fn nacked(traces: &Traces, nacks: &[Nack], nacked: &[Nacked], expired: bool) {
    if traces.is_idle() {
        return;
    }
    let actions: HashMap<i64, Action> = nacked.iter().map(|nacked| (nacked.id, nacked.action)).collect();
    let ended = nacks.iter().filter_map(|nack| Some((nack.lease, (*actions.get(&nack.lease.id)?, &nack.error))));
    traces.ended(ended, |(action, error)| match action {
        Action::Snooze | Action::Release => Ending::of(action.name()),
        _ => Ending::failed(if expired { "timeout" } else { action.name() }, error.as_deref().unwrap_or_default()),
    });
}

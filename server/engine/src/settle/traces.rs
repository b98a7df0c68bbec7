//! Ends the tracing spans of attempts that end at this broker.

use std::collections::HashMap;

use howdah_core::job::{Lease, Outcome, SettleStatus, Settlement};

use super::locked::Written;
use crate::{
    metrics::Traced,
    store::{Action, Nack, Nacked},
    traces::{Ending, Traces},
};

/// Ends the tracing spans of attempts that their workers have settled. Returns the trace of one of these attempts.
pub(super) fn settled(traces: &Traces, settlements: &[Settlement], written: &[Written]) -> Option<Traced> {
    if traces.is_idle() {
        return None;
    }
    let done = settlements.iter().zip(written).filter(|(_, written)| **written == Written::As(SettleStatus::Ok));
    // The spans of failed attempts ended when their statement was written, unless its answer was lost.
    traces.ended(done.map(|(settlement, _)| (settlement.lease, &settlement.outcome)), |outcome| match outcome {
        Outcome::Ack { .. } => Ending::new("ack"),
        Outcome::Retry { error, .. } => Ending::failed("retry", &error.text),
        Outcome::Dead { error } => Ending::failed("dead", &error.text),
        Outcome::Snooze { .. } => Ending::new("snooze"),
        Outcome::Release => Ending::new("release"),
    })
}

/// Ends the tracing spans of attempts that were nacked or that the broker has ended. `expired`: their deadlines have
/// passed.
pub(super) fn nacked(traces: &Traces, nacks: &[Nack], nacked: &[Nacked], expired: bool) {
    if traces.is_idle() {
        return;
    }
    let actions: HashMap<i64, Action> = nacked.iter().map(|nacked| (nacked.id, nacked.action)).collect();
    let ended = nacks.iter().filter_map(|nack| Some((nack.lease, (*actions.get(&nack.lease.id)?, &nack.error))));
    traces.ended(ended, |(action, error)| match action {
        Action::Snooze | Action::Release => Ending::new(action.name()),
        _ => Ending::failed(
            if expired { "timeout" } else { action.name() },
            error.as_ref().map_or("", |error| &error.text),
        ),
    });
}

/// Ends the tracing spans of attempts that continue at another broker. Spans that have ended already are not changed.
pub(super) fn moved<'a>(traces: &Traces, leases: impl Iterator<Item = &'a Lease>) {
    traces.ended(leases.map(|lease| (*lease, "moved")), Ending::new);
}

//! Takes a session off its stream, and ends its leases after the grace time.

use std::{collections::HashSet, sync::Arc};

use parking_lot::MutexGuard;
use tokio::time::Instant;

use super::{Changed, Held, Session, SessionContext, State};
use crate::{
    dispatch::{Dispatch, Recipient as _},
    job::Lease,
    wake::SessionMark,
};

/// The error of an attempt whose worker is gone.
pub(super) const LOST: &str = "the worker was lost while the job ran";

/// The stream has ended. The worker has the grace time to resume. Then its leases are lost, and the attempts count as
/// failed.
pub(super) fn detach(context: &Arc<SessionContext>, session: &Arc<Session>, stream: u64) {
    let (unsent, drained) = {
        let mut state = session.state.lock();
        if state.stream != Some(stream) {
            return; // It is on another stream by now.
        }
        state.stream = None;
        state.unanswered = 0;
        let unsent = state.take_unsent();
        state.outbox.clear();
        // A regular end: the worker asked to drain, and closed its side.
        (unsent, state.draining && state.closing)
    };
    session.note(Changed::Windows);
    session.answered.notify_one();
    context.dispatch.leave(session.key());
    context.dispatch.release(unsent);
    context.sessions.stream_ended();
    let (context, session) = (context.clone(), session.clone());
    if session.held_count() == 0 {
        context.sessions.remove_if_ended(&session, stream);
        return;
    }
    // A worker that asked to drain and closed does not come back. When the broker stops, other brokers rescue the
    // leases that are left.
    let grace =
        if drained && !context.is_draining() { std::time::Duration::ZERO } else { context.config.session_grace };
    tokio::spawn(async move {
        tokio::time::sleep(grace).await;
        if context.is_draining() || !context.sessions.remove_if_ended(&session, stream) {
            return;
        }
        let leases = session.held();
        tracing::info!(
            session = session.key,
            leases = leases.len(),
            "the worker did not resume in time; its jobs are retried"
        );
        context.release.fail(leases, LOST);
    });
}

impl Session {
    /// If it had some of these leases before this time, its worker went on with them at another broker. The stream here
    /// ends; what the worker did not take along it never got, and that is returned.
    pub(super) fn moved(&self, leases: &HashSet<Lease>, before: Instant, dispatch: &Dispatch) -> Vec<Lease> {
        let state = self.state.lock();
        let is_gone = |(&id, held): (&i64, &Held)| {
            !held.settling && held.since < before && leases.contains(&Lease { id, token: held.token })
        };
        if !state.held.iter().any(is_gone) {
            return Vec::new();
        }
        let mut left = self.leave(state, dispatch);
        left.retain(|lease| !leases.contains(lease));
        left
    }

    /// If this is its mark, which no later stream here has had: the same, of all that it had here.
    pub(super) fn went_on_elsewhere(&self, mark: &SessionMark, dispatch: &Dispatch) -> Vec<Lease> {
        let state = self.state.lock();
        if state.mark == *mark { self.leave(state, dispatch) } else { Vec::new() }
    }

    fn leave(&self, mut state: MutexGuard<'_, State>, dispatch: &Dispatch) -> Vec<Lease> {
        let left = state.held();
        state.moved = true;
        state.held.retain(|_, held| held.settling);
        state.outbox.clear();
        drop(state);
        self.note(Changed::Windows);
        tracing::debug!(session = self.key, "the worker went on at another broker");
        dispatch.leave(self.key());
        self.changed.notify_one();
        left
    }
}

/// Leases that an adoption without an answer may have made this broker's: given back after the grace
/// time, unless the worker came back with them.
pub(super) fn fail_unless_held(context: &Arc<SessionContext>, leases: Vec<Lease>) {
    let context = context.clone();
    tokio::spawn(async move {
        tokio::time::sleep(context.config.session_grace).await;
        fail(&context, leases);
    });
}

/// Leases that nobody came back with; those that a session has are left alone.
pub(super) fn fail(context: &SessionContext, leases: Vec<Lease>) {
    let orphans = leases.into_iter().filter(|lease| !context.sessions.holds(*lease)).collect();
    context.release.fail(orphans, LOST);
}

//! Detaches a session from its stream, and ends its leases after the grace time.

use std::{collections::HashSet, sync::Arc, time::Duration};

use howdah_core::job::Lease;
use parking_lot::MutexGuard;
use tokio::time::Instant;

use super::{Changed, Closing, Drain, Gone, Held, Session, SessionContext, State};
use crate::{
    dispatch::{Dispatch, Recipient as _},
    wake::SessionMark,
};

/// Error text of an attempt whose worker was lost.
pub(super) const LOST: &str = "the worker was lost while the job ran";

/// Time in which a worker may resume a session that has no stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResumeTime {
    /// The stream broke: the time to resume is the shorter of the grace time and the worker's liveness.
    Grace,
    /// The worker sent nothing within its liveness, so it has no time to resume.
    None,
}

/// Detaches the session from a stream that has ended. After the time to resume, the leases end and their attempts count
/// as failed.
pub(super) fn detach(context: &Arc<SessionContext>, session: &Arc<Session>, stream: u64, resume_time: ResumeTime) {
    let (unsent, drained, liveness) = {
        let mut state = session.state.lock();
        if state.stream != Some(stream) {
            return; // The session is on another stream already.
        }
        state.stream = None;
        if resume_time == ResumeTime::None && state.gone.is_none() {
            state.gone = Some(Gone::Silent);
        }
        state.unanswered = 0;
        let unsent = state.take_unsent();
        state.outbox.clear();
        // When a stream ends regularly, the worker has asked to drain and has closed its side.
        let drained = state.drain != Drain::No && state.closing == Closing::ByWorker;
        (unsent, drained, state.liveness.unwrap_or(context.config.liveness))
    };
    session.note(Changed::Windows);
    session.answered.notify_one();
    session.changed.notify_one();
    context.dispatch.remove_session(session.key());
    context.dispatch.release(unsent);
    context.sessions.stream_ended();
    let (context, session) = (context.clone(), session.clone());
    if session.held_count() == 0 {
        context.sessions.remove_if_ended(&session, stream);
        return;
    }
    // A worker that asked to drain and closed its side does not come back. When the broker stops, other brokers rescue
    // the remaining leases.
    let is_over = resume_time == ResumeTime::None || drained;
    let grace =
        if is_over && !context.is_draining() { Duration::ZERO } else { context.config.session_grace.min(liveness) };
    tokio::spawn(async move {
        tokio::time::sleep(grace).await;
        if context.is_draining() || !context.sessions.remove_if_ended(&session, stream) {
            return;
        }
        let leases = session.held();
        let (worker, leases_lost) = (session.public_id(), leases.len());
        if resume_time == ResumeTime::None {
            tracing::warn!(
                worker,
                leases_lost,
                ?liveness,
                "nothing was heard from the worker in time; its jobs are retried"
            );
        } else {
            tracing::info!(worker, leases_lost, ?grace, "the worker did not resume in time; its jobs are retried");
        }
        context.release.fail(leases, LOST);
    });
}

impl Session {
    /// Detaches the session if it has held one of these leases since before `before`, because its worker has then
    /// resumed at another broker. Returns the other leases of the session, which never reached the worker.
    pub(super) fn leases_moved(&self, leases: &HashSet<Lease>, before: Instant, dispatch: &Dispatch) -> Vec<Lease> {
        let state = self.state.lock();
        let is_gone = |(&id, held): (&i64, &Held)| {
            !held.settling && held.since < before && leases.contains(&Lease { id, token: held.token })
        };
        if !state.held.iter().any(is_gone) {
            return Vec::new();
        }
        let mut left = self.detach_moved(state, dispatch);
        left.retain(|lease| !leases.contains(lease));
        left
    }

    /// Detaches the session if its current mark is `mark`: then its worker has resumed at another broker. Returns the
    /// leases of the session, which never reached the worker.
    pub(super) fn resumed_elsewhere(&self, mark: &SessionMark, dispatch: &Dispatch) -> Vec<Lease> {
        let state = self.state.lock();
        if state.mark == *mark { self.detach_moved(state, dispatch) } else { Vec::new() }
    }

    fn detach_moved(&self, mut state: MutexGuard<'_, State>, dispatch: &Dispatch) -> Vec<Lease> {
        let left = state.held();
        state.gone = Some(Gone::Moved);
        state.held.retain(|_, held| held.settling);
        state.outbox.clear();
        drop(state);
        self.note(Changed::Windows);
        tracing::debug!(session = self.key, "the worker has resumed its session at another broker");
        dispatch.remove_session(self.key());
        self.changed.notify_one();
        left
    }
}

/// Fails leases that this broker may own without a session: the result of their adoption is unknown, or the worker is
/// on a later stream. Waits for the grace time first, and skips leases that a session holds by then.
pub(super) fn fail_unless_held(context: &Arc<SessionContext>, leases: Vec<Lease>) {
    let context = context.clone();
    tokio::spawn(async move {
        tokio::time::sleep(context.config.session_grace).await;
        fail(&context, leases);
    });
}

/// Fails the given leases, except leases that a session holds.
pub(super) fn fail(context: &SessionContext, leases: Vec<Lease>) {
    let orphans = leases.into_iter().filter(|lease| !context.sessions.holds(*lease)).collect();
    context.release.fail(orphans, LOST);
}

//! Reads the messages of a worker. Reading never waits for outgoing messages, so the two directions of a stream cannot
//! block each other. Reading pauses while too many answers are outstanding.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::Stream;
use howdah_core::{
    error::Error,
    job::{Lease, ProgressReport, Settlement, TaskTypeName, TypeId},
};

use super::{
    Answer, Changed, ClientMessage, Drain, Heartbeat, Loads, Session, SessionContext, State, StoreShare, WindowArgs,
    detach, permit,
};
use crate::{
    access::Operation,
    dispatch::{Load, Recipient, Window},
    settle::{Statuses, Submitter},
};

/// Maximum number of unanswered outcomes before reading pauses: as many as a worker can hold. It must not be lower,
/// because small unread messages that pile up in HTTP/2 end the connection (h2 0.4.16 and later). The bytes of the
/// outcomes are bounded separately (`Settle::room`).
pub const MOST_UNANSWERED: usize = 100_000;

/// Reads until the worker closes its side.
pub(super) async fn read<S>(
    context: &Arc<SessionContext>,
    session: &Arc<Session>,
    incoming: &mut S,
    mut types: HashSet<TaskTypeName>,
    share: Option<&StoreShare>,
    stream: u64,
) -> Result<(), Error>
where
    S: Stream<Item = Result<ClientMessage, Error>> + Send + Unpin,
{
    let liveness = session.state.lock().liveness.unwrap_or(context.config.liveness);
    // The silence of a worker that several stores serve is checked once for all stores.
    let heartbeat = Heartbeat::new(share.is_none().then_some(liveness));
    while let Some(message) = heartbeat.next(incoming, || session.queue_ping()).await {
        match message? {
            ClientMessage::Subscribe(_) => {
                return Err(Error::Precondition(
                    "subscribe was sent already; send window to change the subscription".into(),
                ));
            }
            ClientMessage::Window(window) => set_window(context, session, window, &mut types, share).await?,
            ClientMessage::Settle { accepted, mut refused } => {
                let permitted =
                    permit::remove_foreign_items(context, session, accepted, &mut refused, |item| item.lease).await;
                let permitted = permit::remove_denied_stages(context, session, permitted, &mut refused).await;
                settle(context, session, permitted, refused).await;
            }
            ClientMessage::Extend { accepted, mut refused } => {
                let permitted =
                    permit::remove_foreign_items(context, session, accepted, &mut refused, |item| item.0).await;
                extend(context, session, permitted, refused);
            }
            ClientMessage::Progress { accepted, mut refused } => {
                let permitted =
                    permit::remove_foreign_items(context, session, accepted, &mut refused, |item| item.lease).await;
                progress(context, session, permitted, refused).await;
            }
            ClientMessage::Drain => drain(context, session),
            ClientMessage::Ping => session.answer_ping(),
            ClientMessage::Pong => {}
            ClientMessage::Lost => {
                // Detaches immediately, not after the transport has taken the error, because the worker may not read.
                detach::detach(context, session, stream, detach::ResumeTime::None);
                return Err(Error::WorkerSilent(liveness));
            }
        }
        session.until_answered(MOST_UNANSWERED).await;
    }
    Ok(())
}

async fn set_window(
    context: &Arc<SessionContext>,
    session: &Arc<Session>,
    window: WindowArgs,
    types: &mut HashSet<TaskTypeName>,
    share: Option<&StoreShare>,
) -> Result<(), Error> {
    let limit = context.config.limits.stream_types;
    let caller = session.caller();
    caller.check(Operation::Work, &window.task_type)?;
    types.insert(window.task_type.clone());
    if types.len() > limit {
        return Err(Error::invalid(
            "window.task_type",
            format!("is one task type too many; a stream may have at most {limit}"),
        ));
    }
    let ids = context.registry.resolve(std::slice::from_ref(&window.task_type), caller.principal()).await?;
    if let Some(&type_id) = ids.first()
        && !session.is_draining()
    {
        let held = session.load_of(type_id);
        let recipient: Arc<dyn Recipient> = session.clone();
        context.dispatch.set_window(
            &recipient,
            type_id,
            Window { jobs: window.jobs as u32, bytes: window.bytes },
            held,
            share.map(|share| share.right(&window.task_type)),
        );
        session.note(Changed::Windows);
    }
    Ok(())
}

async fn settle(
    context: &Arc<SessionContext>,
    session: &Arc<Session>,
    mut accepted: Vec<Settlement>,
    refused: Vec<Answer>,
) {
    let freed = session.begin_settling(&mut accepted, refused);
    // Frees the capacity of the worker immediately, because it has finished these jobs. The settle statement checks
    // whether it held their leases.
    freed.free(&context.dispatch, session.key());
    if accepted.is_empty() {
        return;
    }
    // Backpressure: waits while too many bytes are queued for Postgres.
    let room = context.settle.room(&accepted).await;
    let outcomes = Outcomes { context: context.clone(), session: session.clone() };
    let hurries = session.settling.begin() || frees_others(context, &accepted);
    context.settle.submit(accepted, room, outcomes);
    if hurries {
        context.settle.skip_delay();
    }
}

/// Returns whether other jobs may be waiting for the end of one of these jobs, because of a concurrency limit.
fn frees_others(context: &SessionContext, settlements: &[Settlement]) -> bool {
    // Most messages settle jobs of one task type, so a repeated type is not checked again.
    let mut last = None;
    settlements.iter().filter_map(|settlement| settlement.started).any(|started| {
        let same = last.replace(started.type_id) == Some(started.type_id);
        !same && context.registry.has_waiting(started.type_id)
    })
}

/// Outcomes of a session that are being written.
struct Outcomes {
    context: Arc<SessionContext>,
    session: Arc<Session>,
}

impl Drop for Outcomes {
    fn drop(&mut self) {
        self.session.settling.end();
    }
}

impl Submitter for Outcomes {
    fn settled(&self, statuses: Statuses) {
        let answers = statuses.into_iter().map(|(lease, status)| Answer { lease, status: Ok(status) }).collect();
        let orphans = self.session.settled(answers, &self.context.dispatch);
        detach::fail(&self.context, orphans);
    }
}

fn extend(
    context: &Arc<SessionContext>,
    session: &Arc<Session>,
    accepted: Vec<(Lease, Duration)>,
    refused: Vec<Answer>,
) {
    session.expect_answers(accepted.len() + refused.len());
    let (session, context) = (session.clone(), context.clone());
    // `until_answered` bounds the number of tasks that extend leases: reading pauses while too many answers are
    // outstanding.
    tokio::spawn(async move {
        let leases: Vec<Lease> = accepted.iter().map(|(lease, _)| *lease).collect();
        let statuses = context.settle.extend(accepted).await;
        let mut answers = refused;
        answers.extend(leases.into_iter().zip(statuses).map(|(lease, status)| Answer { lease, status: Ok(status) }));
        session.queue_extended(answers);
    });
}

async fn progress(
    context: &Arc<SessionContext>,
    session: &Arc<Session>,
    accepted: Vec<ProgressReport>,
    refused: Vec<Answer>,
) {
    session.expect_answers(accepted.len() + refused.len());
    let leases: Vec<Lease> = accepted.iter().map(|report| report.lease).collect();
    // Submits progress reports in the order of arrival. Backpressure: waits while too many bytes are queued for
    // Postgres.
    let statuses = context.progress.submit(accepted).await;
    let session = session.clone();
    tokio::spawn(async move {
        let statuses = statuses.wait().await;
        let mut answers = refused;
        answers.extend(leases.into_iter().zip(statuses).map(|(lease, status)| Answer { lease, status: Ok(status) }));
        session.queue_progressed(answers);
    });
}

fn drain(context: &Arc<SessionContext>, session: &Arc<Session>) {
    context.dispatch.remove_session(session.key());
    let unsent = session.drain(false, None);
    context.dispatch.release(unsent);
}

impl Session {
    fn queue_extended(&self, answers: Vec<Answer>) {
        self.queue_answer(|state| state.outbox.add_extended(answers));
        self.changed.notify_one();
    }

    fn queue_progressed(&self, answers: Vec<Answer>) {
        self.queue_answer(|state| state.outbox.add_progressed(answers));
        self.changed.notify_one();
    }

    /// Queues an answer and records that the worker is active.
    fn queue_answer(&self, answer: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        state.activity.is_active();
        answer(&mut state);
        drop(state);
        self.note(Changed::Figures);
    }

    fn answer_ping(&self) {
        self.state.lock().outbox.add_pong();
        self.changed.notify_one();
    }

    /// Queues a `Ping`.
    fn queue_ping(&self) {
        self.state.lock().outbox.add_ping();
        self.changed.notify_one();
    }

    fn is_draining(&self) -> bool {
        self.state.lock().drain != Drain::No
    }

    fn expect_answers(&self, count: usize) {
        self.state.lock().unanswered += count;
    }

    /// Returns the jobs and bytes of a task type that the session holds, without jobs whose outcomes are being written.
    pub(super) fn load_of(&self, type_id: TypeId) -> Load {
        let state = self.state.lock();
        let mut loads = Loads::default();
        for held in state.held.values().filter(|h| h.type_id == type_id && !h.settling) {
            loads.add(held.type_id, held.bytes);
        }
        loads.get(type_id)
    }

    /// Marks leases as being settled; returns the capacity that this frees.
    fn begin_settling(&self, accepted: &mut [Settlement], refused: Vec<Answer>) -> Loads {
        let mut freed = Loads::default();
        let mut state = self.state.lock();
        state.unanswered += accepted.len() + refused.len();
        for settlement in accepted {
            if let Some(held) = state.held.get_mut(&settlement.lease.id)
                && held.token == settlement.lease.token
                && !held.settling
            {
                held.settling = true;
                settlement.started = held.started;
                freed.add(held.type_id, held.bytes);
            }
        }
        if !refused.is_empty() {
            state.outbox.add_answers(refused);
            drop(state);
            self.changed.notify_one();
        }
        freed
    }

    /// Waits while more than `most` answers are outstanding.
    async fn until_answered(&self, most: usize) {
        loop {
            let answered = self.answered.notified();
            if self.state.lock().unanswered <= most {
                return;
            }
            answered.await;
        }
    }
}

/// Number of unanswered settle messages below which a worker never holds back outcomes, if it follows the advice for
/// client authors (docs/reference/protocol.md).
const MIN_UNANSWERED: usize = 3;

/// Number of unanswered settle messages: the current one and the highest so far.
///
/// A worker may hold back outcomes while too many of its settle messages are unanswered. The broker does not know the
/// worker's limit, and takes the highest number seen so far. Close to it, outcomes skip the commit delay, so that the
/// worker does not wait.
#[derive(Default)]
pub(super) struct Settling {
    current: AtomicUsize,
    highest: AtomicUsize,
}

impl Settling {
    /// Counts another settle message. Returns whether the worker may be about to hold back the next one.
    pub(super) fn begin(&self) -> bool {
        let current = self.current.fetch_add(1, Relaxed) + 1;
        let highest = self.highest.fetch_max(current, Relaxed);
        current >= MIN_UNANSWERED && current + 1 >= highest
    }

    /// Counts a settle message as answered.
    pub(super) fn end(&self) {
        self.current.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_skip_the_commit_delay_when_nearly_as_many_messages_are_unanswered_as_ever() {
        let settling = Settling::default();
        let begin = |messages: usize| (0..messages).map(|_| settling.begin()).collect::<Vec<_>>();
        let end = |messages: usize| (0..messages).for_each(|_| settling.end());
        assert_eq!(begin(4), [false, false, true, true]);
        end(4);
        assert_eq!(begin(4), [false, false, true, true]);
        assert_eq!(begin(4), [true; 4], "it has not held back any yet");
        end(8);
        assert_eq!(begin(8), [false, false, false, false, false, false, true, true]);
    }
}

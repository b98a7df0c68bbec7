//! Requests that are blocked by a lock of another transaction. They are written in the side lane, so that no other
//! request waits for them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_core::{error::Error, job::TypeId};
use parking_lot::Mutex;

use super::{CONFLICT_TRIES, Pending, Writer, keyed, plain, rounds, wait_for_workers};
use crate::{
    side_lane::{Item, SideLane, Unwritten, Work},
    store::{Lane, LockWait, StoreError},
};

/// Retry delay for callers when the side lane is full.
const FULL_RETRY: Duration = Duration::from_secs(1);
/// Margin before the caller's deadline: a lock-blocked request is answered this much earlier, so that the answer
/// arrives in time.
const MARGIN: Duration = Duration::from_millis(100);

/// Resource that a request needs and another transaction may have locked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Need {
    Key(TypeId, String),
    Request(String),
    Job(i64),
    LimitKey(TypeId, String),
    FairKey(TypeId, String),
}

/// Time until which a request may wait for a lock.
pub(super) struct LockDeadline {
    at: Instant,
    holders: Option<String>,
    reason: Option<LockReason>,
}

/// Why a request waits for a lock: text of the error that a caller gets shortly before its deadline.
pub(super) type LockReason = Arc<Mutex<Option<String>>>;

impl LockDeadline {
    pub(super) fn new(at: Instant, reason: Option<LockReason>) -> Self {
        Self { at, holders: None, reason }
    }
}

/// Returns the time at which a caller with this deadline is told that its request waits for a lock.
pub(super) fn answer_by(deadline: Instant) -> Instant {
    let margin = MARGIN.min(deadline.saturating_duration_since(Instant::now()) / 4);
    deadline.checked_sub(margin).unwrap_or(deadline)
}

impl Item for Pending {
    type Need = Need;

    fn needs(&self) -> Vec<Need> {
        let mut needs: Vec<Need> = self.request.iter().map(|request| Need::Request(request.key.clone())).collect();
        for job in &self.jobs {
            needs.extend(job.job.key.iter().map(|key| Need::Key(job.type_id, key.clone())));
            if let Some(options) = &job.job.options {
                needs.extend(options.after.iter().map(|id| Need::Job(*id)));
                needs.extend(options.limit_key.iter().map(|key| Need::LimitKey(job.type_id, key.clone())));
                needs.extend(options.fair_key.iter().map(|key| Need::FairKey(job.type_id, key.clone())));
            }
        }
        needs
    }

    fn is_over(&self) -> bool {
        self.lock_deadline.at <= Instant::now() || self.reply.is_closed()
    }

    fn held_by(&mut self, holders: Option<&str>) {
        self.lock_deadline.holders = holders.map(str::to_owned);
        if let Some(reason) = &self.lock_deadline.reason {
            let problem = "the request may still be stored; repeat it with the same request key";
            *reason.lock() = Some(format!("{}; {problem}", self.locked_resource()));
        }
    }
}

impl Pending {
    fn locked_message(&self) -> String {
        format!("{}; nothing was stored, try again when that transaction has ended", self.locked_resource())
    }

    /// Describes the locked resource and the holders of the lock.
    fn locked_resource(&self) -> String {
        let need = match self.needs().as_slice() {
            [need] => match need {
                Need::Key(_, key) => format!("the key {key:?} is"),
                Need::Request(key) => format!("the request key {key:?} is"),
                Need::Job(id) => format!("job {id} is"),
                Need::LimitKey(_, key) => format!("the limit key {key:?} is"),
                Need::FairKey(_, key) => format!("the fair key {key:?} is"),
            },
            [] => "a table that this request needs is".to_owned(),
            [Need::Key(_, key), ..] => format!("the key {key:?}, or something else that this request needs, is"),
            _ => "something that this request needs is".to_owned(),
        };
        let holders = self.lock_deadline.holders.as_deref().unwrap_or("locked by another transaction");
        format!("{need} {holders}")
    }
}

/// Writes the requests of the side lane.
pub(super) struct Locked {
    short: Writer,
    long: Writer,
}

impl Locked {
    pub(super) fn new(writer: &Writer) -> Self {
        let with = |lock_wait| Writer { store: writer.store.side_lane(Lane::Enqueue, lock_wait), ..writer.clone() };
        Self { short: with(LockWait::Short), long: with(LockWait::Long) }
    }
}

impl Work for Locked {
    type Item = Pending;

    async fn write(&self, items: Vec<Pending>, lock_wait: LockWait) -> Unwritten<Pending> {
        let writer = match lock_wait {
            LockWait::Short => &self.short,
            LockWait::Long => &self.long,
        };
        // A statement accepts each new request key only once.
        let mut todo = rounds::by_request_key(items);
        let mut now = todo.pop_front().unwrap_or_default();
        let later = todo.into_iter().flatten();
        let mut tries = 0;
        let error = loop {
            tries += 1;
            match keyed::write_coordinated(writer, &now).await {
                Ok(answers) => {
                    wait_for_workers(&mut now);
                    for (request, answer) in now.into_iter().zip(answers) {
                        request.reply(answer);
                    }
                    return Unwritten { locked: Vec::new(), alone: later.collect() };
                }
                Err(StoreError::Conflict(_)) if tries < CONFLICT_TRIES => {}
                Err(error) => break error,
            }
        };
        let alone = now.len() > 1 && (error.may_spare_other_jobs() || matches!(error, StoreError::Conflict(_)));
        if alone || matches!(error, StoreError::Locked(_)) {
            return Unwritten { locked: Vec::new(), alone: now.into_iter().chain(later).collect() };
        }
        writer.metrics.store_errors.inc();
        for request in now {
            request.reply(Err(error.clone().into()));
        }
        Unwritten { locked: Vec::new(), alone: later.collect() }
    }

    async fn holders(&self) -> Option<String> {
        self.long.store.find_holders(Lane::Enqueue).await
    }

    fn give_up(&self, item: Pending) {
        let error = if item.is_over() {
            Error::Locked(item.locked_message())
        } else {
            Error::Unavailable(format!("the broker is stopping, and {}", item.locked_message()))
        };
        item.reply(Err(error));
    }
}

/// Moves lock-blocked requests to the side lane.
pub(super) fn move_to_side_lane(lane: &SideLane<Pending>, requests: Vec<Pending>) {
    refuse(lane.add(requests));
}

/// Moves requests to the side lane if they need the same resource as a request in it; returns the others.
pub(super) fn divert(lane: &SideLane<Pending>, requests: Vec<Pending>) -> Vec<Pending> {
    let (others, refused) = lane.divert(requests);
    refuse(refused);
    others
}

fn refuse(requests: Vec<Pending>) {
    for request in requests {
        let message = format!("too many requests wait for locks of other transactions; {}", request.locked_message());
        request.reply(Err(Error::Exhausted { reason: "LOCKED", message, retry_after: FULL_RETRY }));
    }
}

/// Writes requests while another transaction has locked a table that every request needs. Retries until the lock is
/// released, but at most for the database timeout.
pub(super) async fn wait_for_table(writer: &Writer, requests: Vec<Pending>) {
    let side_lane_writer = Writer { store: writer.store.side_lane(Lane::Enqueue, LockWait::Long), ..writer.clone() };
    let mut holders = None;
    loop {
        let write = plain::write_once(&side_lane_writer, &requests);
        let (result, found) = side_lane_writer.store.with_holders(Lane::Enqueue, Box::pin(write)).await;
        holders = found.or(holders);
        let error = match result {
            Ok(ids) => return plain::answer(requests, ids),
            Err(StoreError::Locked(_)) if !writer.breaker.is_late() => continue,
            Err(StoreError::Locked(_)) => {
                let holders = holders.as_deref().unwrap_or("locked by another transaction");
                let why =
                    format!("a table is {holders}; nothing was stored, try again when that transaction has ended");
                writer.breaker.open(Error::Locked(why.clone()));
                Error::Locked(why)
            }
            Err(error) => {
                writer.breaker.failed(&error);
                error.into()
            }
        };
        return requests.into_iter().for_each(|request| request.reply(Err(error.clone())));
    }
}

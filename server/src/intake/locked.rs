//! Requests that met the lock of another transaction. They are written in a lane of their own, so that no other request
//! waits for them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{CONFLICT_TRIES, Pending, Writer, coordinated, plain, rounds, wait_for_workers};
use crate::{
    error::Error,
    job::TypeId,
    side_lane::{Item, SideLane, Unwritten, Work},
    store::{Lane, Patience, StoreError},
};

/// When the caller of a full lane may come again.
const FULL_RETRY: Duration = Duration::from_secs(1);
/// How long before its caller's deadline a locked request is answered, so that the answer arrives.
const MARGIN: Duration = Duration::from_millis(100);

/// What a request needs that another transaction may have locked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Need {
    Key(TypeId, String),
    Request(String),
    Job(i64),
    LimitKey(TypeId, String),
    FairKey(TypeId, String),
}

/// How long a request may wait for a lock.
pub(super) struct Until {
    at: Instant,
    holders: Option<String>,
    told: Option<Told>,
}

/// Why a request waits, for a caller that has a deadline of its own.
pub(super) type Told = Arc<Mutex<Option<String>>>;

impl Until {
    pub(super) fn new(at: Instant, told: Option<Told>) -> Self {
        Self { at, holders: None, told }
    }
}

/// When a caller with this deadline is answered that its request is locked.
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
        self.until.at <= Instant::now() || self.reply.is_closed()
    }

    fn held_by(&mut self, holders: Option<&str>) {
        self.until.holders = holders.map(str::to_owned);
        if let Some(told) = &self.until.told {
            let problem = "it may still be stored; repeat it with the same request key";
            *told.lock() = Some(format!("{}; {problem}", self.what()));
        }
    }
}

impl Pending {
    fn why(&self) -> String {
        format!("{}; nothing was stored, try again when that transaction has ended", self.what())
    }

    /// What is locked, and by whom.
    fn what(&self) -> String {
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
        let holders = self.until.holders.as_deref().unwrap_or("locked by another transaction");
        format!("{need} {holders}")
    }
}

/// The work of the lane.
pub(super) struct Locked {
    short: Writer,
    long: Writer,
}

impl Locked {
    pub(super) fn new(writer: &Writer) -> Self {
        let with = |patience| Writer { store: writer.store.aside(Lane::Enqueue, patience), ..writer.clone() };
        Self { short: with(Patience::Short), long: with(Patience::Long) }
    }
}

impl Work for Locked {
    type Item = Pending;

    async fn write(&self, items: Vec<Pending>, patience: Patience) -> Unwritten<Pending> {
        let writer = match patience {
            Patience::Short => &self.short,
            Patience::Long => &self.long,
        };
        // A request key can be new only once in a statement.
        let mut todo = rounds::by_request_key(items);
        let mut now = todo.pop_front().unwrap_or_default();
        let later = todo.into_iter().flatten();
        let mut tries = 0;
        let error = loop {
            tries += 1;
            match coordinated::write_once(writer, &now).await {
                Ok(answers) => {
                    wait_for_workers(&mut now);
                    for (request, answer) in now.into_iter().zip(answers) {
                        request.tell(answer);
                    }
                    return Unwritten { locked: Vec::new(), apart: later.collect() };
                }
                Err(StoreError::Conflict(_)) if tries < CONFLICT_TRIES => {}
                Err(error) => break error,
            }
        };
        let apart = now.len() > 1 && (error.is_refused() || matches!(error, StoreError::Conflict(_)));
        if apart || matches!(error, StoreError::Locked(_)) {
            return Unwritten { locked: Vec::new(), apart: now.into_iter().chain(later).collect() };
        }
        writer.metrics.store_errors.inc();
        for request in now {
            request.tell(Err(error.clone().into()));
        }
        Unwritten { locked: Vec::new(), apart: later.collect() }
    }

    async fn holders(&self) -> Option<String> {
        self.long.store.see_holders(Lane::Enqueue).await
    }

    fn give_up(&self, item: Pending) {
        let error = if item.is_over() {
            Error::Locked(item.why())
        } else {
            Error::Unavailable(format!("the broker is stopping, and {}", item.why()))
        };
        item.tell(Err(error));
    }
}

/// These met a lock.
pub(super) fn wait_aside(lane: &SideLane<Pending>, requests: Vec<Pending>) {
    refuse(lane.add(requests));
}

/// Those that need nothing which a request in the lane needs; the others follow it.
pub(super) fn divert(lane: &SideLane<Pending>, requests: Vec<Pending>) -> Vec<Pending> {
    let (others, refused) = lane.divert(requests);
    refuse(refused);
    others
}

fn refuse(requests: Vec<Pending>) {
    for request in requests {
        let message = format!("too many requests wait for locks of other transactions; {}", request.why());
        request.tell(Err(Error::Exhausted { reason: "LOCKED", message, retry_after: FULL_RETRY }));
    }
}

/// Another transaction holds a table that every request needs. Tries until it is free, or for as long as calls wait.
pub(super) async fn wait_for_table(writer: &Writer, requests: Vec<Pending>) {
    let patient = Writer { store: writer.store.aside(Lane::Enqueue, Patience::Long), ..writer.clone() };
    let mut holders = None;
    loop {
        let write = plain::write_once(&patient, &requests);
        let (result, found) = patient.store.with_holders(Lane::Enqueue, Box::pin(write)).await;
        holders = found.or(holders);
        let error = match result {
            Ok(ids) => return plain::answer(requests, ids),
            Err(StoreError::Locked(_)) if !writer.away.is_late() => continue,
            Err(StoreError::Locked(_)) => {
                let holders = holders.as_deref().unwrap_or("locked by another transaction");
                let why =
                    format!("a table is {holders}; nothing was stored, try again when that transaction has ended");
                writer.away.give_up(Error::Locked(why.clone()));
                Error::Locked(why)
            }
            Err(error) => {
                writer.away.failed(&error);
                error.into()
            }
        };
        return requests.into_iter().for_each(|request| request.tell(Err(error.clone())));
    }
}

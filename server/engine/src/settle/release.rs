//! Leases that the broker ends itself. Leases of jobs that could not be sent are released, and their attempts do not
//! count. Attempts fail if the worker is lost or the attempt timed out. The broker ends only leases that it owns, and
//! skips leases that another broker has adopted.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use howdah_core::job::{AttemptError, Lease, Tokens};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::{Writer, traces};
use crate::{
    backoff::Backoff,
    dispatch::Unsent,
    store::{Action, Actor, LeaseFacts, Nack, Nacked, Store, StoreError},
};

/// Maximum number of leases that one statement ends.
const BATCH: usize = 1_000;
/// First and longest pause before the broker tries again to end locked leases.
const LOCKED_PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];
/// Delays before each search for leases of a claim whose answer was lost. When the last search starts, the statement of
/// the claim can no longer be running.
const LOST_CLAIM_DELAYS: [Duration; 4] =
    [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(30)];

/// Ends leases of this broker. Retries until it succeeds, because no other broker ends these leases while this broker
/// is alive.
#[derive(Clone)]
pub struct Release {
    writer: Arc<Writer>,
    guard: LeaseGuard,
}

impl Release {
    pub(crate) fn new(writer: Writer) -> Self {
        Self { writer: Arc::new(writer), guard: LeaseGuard::default() }
    }

    /// Guards leases with which a worker wants to resume. Leases that this broker is failing are left out.
    pub(crate) fn adopt(&self, leases: Vec<Lease>) -> Adopting {
        self.guard.adopt(leases)
    }

    fn broker_id(&self) -> i32 {
        self.writer.dispatch.broker_id()
    }

    fn broker_ids(&self) -> Vec<i32> {
        self.writer.dispatch.broker_ids()
    }

    /// Releases jobs that dispatch could not send, until dispatch has stopped.
    pub(crate) async fn release_unsent(self, mut unsent: mpsc::UnboundedReceiver<Unsent>) {
        while let Some(first) = unsent.recv().await {
            let mut leases = Vec::new();
            let mut flushed = Vec::new();
            let mut next = Some(first);
            while let Some(unsent_now) = next {
                match unsent_now {
                    Unsent::Leases(more) => leases.extend(more),
                    Unsent::Flush(done) => flushed.push(done),
                    Unsent::Claim(tokens) => self.find_lost_claim(tokens),
                    Unsent::Expired(leases) => self.expired(leases, Some(self.broker_id())),
                }
                next = if leases.len() < BATCH { unsent.try_recv().ok() } else { None };
            }
            self.end_owned(leases, Action::Release, None).await;
            for done in flushed {
                let _ = done.send(());
            }
        }
    }

    /// Releases leases of this broker in the background.
    pub(crate) fn release(&self, leases: Vec<Lease>) {
        if !leases.is_empty() {
            let this = self.clone();
            tokio::spawn(async move { this.end_owned(leases, Action::Release, None).await });
        }
    }

    /// Releases leases in the background that a worker left behind when it resumed at another broker. If a lease is
    /// locked, the other broker may be waiting to adopt it. So this broker waits until the lock is gone, and the other
    /// broker gets the lease first.
    pub(crate) fn release_left_behind(&self, leases: Vec<Lease>) {
        if leases.is_empty() {
            return;
        }
        let this = self.clone();
        tokio::spawn(async move {
            let locked = this.writer.locked_of(&leases).await;
            let (locked, free) = leases.into_iter().partition(|lease| locked.contains(&lease.id));
            this.end_owned(free, Action::Release, None).await;
            this.end_when_unlocked(nacks(&locked, Action::Release, None), true, None);
        });
    }

    /// Releases leases in the background whose workers have resumed at another broker with all their leases. Leases
    /// that the other broker has adopted are not affected. Until the release has finished, no worker can adopt these
    /// leases here.
    pub(crate) fn release_after_full_move(&self, leases: Vec<Lease>) {
        let ending = self.guard.end(leases);
        if ending.leases.is_empty() {
            return;
        }
        let this = self.clone();
        tokio::spawn(async move {
            let leases = ending.leases.clone();
            let locked = this.writer.locked_of(&leases).await;
            let (locked, free): (Vec<Lease>, Vec<Lease>) =
                leases.into_iter().partition(|lease| locked.contains(&lease.id));
            let ending = Some(Arc::new(ending));
            this.end(free.clone(), Action::Release, None, || Some(this.broker_ids()), ending.clone()).await;
            traces::moved(this.writer.dispatch.traces(), free.iter().chain(&locked));
            this.end_when_unlocked(nacks(&locked, Action::Release, None), true, ending);
        });
    }

    /// Fails attempts of this broker's workers in the background; their jobs keep `error`. Skips leases with which a
    /// worker is resuming at the moment.
    pub(crate) fn fail(&self, leases: Vec<Lease>, error: &'static str) {
        let ending = self.guard.end(leases);
        if !ending.leases.is_empty() {
            let this = self.clone();
            tokio::spawn(async move {
                let leases = ending.leases.clone();
                let owners = || Some(this.broker_ids());
                this.end(leases, Action::Lost, Some(error), owners, Some(Arc::new(ending))).await;
            });
        }
    }

    /// Releases leases of a `PullJobs` call, which belong to no broker.
    pub(crate) async fn release_pulled(&self, leases: Vec<Lease>) {
        self.end(leases, Action::Release, None, || None, None).await;
    }

    async fn end_owned(&self, leases: Vec<Lease>, action: Action, error: Option<&'static str>) {
        self.end(leases, action, error, || Some(self.broker_ids()), None).await;
    }

    /// Ends leases. `owners` returns the ids of this broker, or `None` for leases without a broker. It is called before
    /// each attempt, because this broker may have got another id meanwhile.
    async fn end(
        &self,
        mut leases: Vec<Lease>,
        action: Action,
        error: Option<&'static str>,
        owners: impl Fn() -> Option<Vec<i32>> + Copy,
        ending: Option<Arc<Ending>>,
    ) {
        leases.sort_unstable();
        leases.dedup_by_key(|lease| lease.id);
        for batch in leases.chunks(BATCH) {
            let locked = self.end_unlocked(nacks(batch, action, error), owners).await;
            self.end_when_unlocked(locked, owners().is_some(), ending.clone());
        }
    }

    /// Ends leases, except locked ones, which it returns.
    async fn end_unlocked(&self, nacks: Vec<Nack>, owners: impl Fn() -> Option<Vec<i32>>) -> Vec<Nack> {
        let mut backoff = backoff();
        loop {
            let (_, locked, result) = self.writer.nack_unlocked(nacks.clone(), owners().as_deref(), false).await;
            let Err(error) = result else { return locked };
            self.writer.store.log_failure("releasing leases", &error);
            if error.is_refused() {
                return Vec::new();
            }
            backoff.pause().await;
        }
    }

    /// Ends locked leases in the background, so that no other lease waits for them. Retries instead of waiting inside
    /// Postgres, so that another broker that waits there to adopt a lease gets it first.
    fn end_when_unlocked(&self, mut nacks: Vec<Nack>, own: bool, ending: Option<Arc<Ending>>) {
        if nacks.is_empty() {
            return;
        }
        let this = self.clone();
        tokio::spawn(async move {
            let [first, longest] = LOCKED_PAUSES;
            let mut backoff = Backoff::new(first, longest);
            while !nacks.is_empty() {
                backoff.pause().await;
                let leases: Vec<Lease> = nacks.iter().map(|nack| nack.lease).collect();
                let locked = this.writer.locked_of(&leases).await;
                let (still, free) = nacks.into_iter().partition(|nack| locked.contains(&nack.lease.id));
                nacks = still;
                nacks.extend(this.end_unlocked(free, || own.then(|| this.broker_ids())).await);
            }
            drop(ending);
        });
    }

    /// Ends attempts whose deadline has passed, and applies their retry policies. Returns the ended leases with their
    /// brokers, and whether there may be more.
    pub(crate) async fn time_out(&self, at_most: i32) -> Result<(Vec<(Lease, Option<i32>)>, bool), StoreError> {
        let mut leases = self.writer.store.timed_out(at_most).await?;
        let more = leases.len() >= at_most as usize;
        if leases.is_empty() {
            return Ok((Vec::new(), false));
        }
        leases.sort_unstable();
        let facts = self.writer.store.lease_facts(&leases).await?;
        let nacks: Vec<Nack> = leases.iter().map(|&lease| self.timeout_of(lease, &facts)).collect();
        // Locked leases are skipped; the next run finds them again.
        let (nacked, _, result) = self.writer.nack_unlocked(nacks, None, true).await;
        let more = more && !nacked.is_empty();
        if nacked.is_empty() {
            result?;
        } else if let Err(error) = result {
            // Continues despite the error, because the workers of the ended attempts must be told. The next run finds
            // the other attempts again.
            self.writer.store.log_failure("ending attempts that timed out", &error);
        }
        let owner = |lease: &Lease| nacked.iter().find(|n: &&Nacked| n.id == lease.id).map(|n| n.broker_id);
        Ok((leases.iter().filter_map(|lease| Some((*lease, owner(lease)?))).collect(), more))
    }

    fn timeout_of(&self, lease: Lease, facts: &[LeaseFacts]) -> Nack {
        let facts = facts.binary_search_by_key(&lease.id, |f| f.id).ok().map(|i| &facts[i]);
        Nack {
            lease,
            action: Action::Retry,
            delay_ms: self.writer.retry_delay_ms(facts),
            error: Some("the attempt took longer than its timeout".into()),
        }
    }

    /// Ends leases, sorted by id, for an operator. With an error the attempts have failed and the retry policies apply;
    /// without one the attempts do not count. Returns the ended leases with their brokers, even if a later statement
    /// fails.
    pub(crate) async fn end_for_operator(
        &self,
        store: Store,
        leases: &[(Lease, i32)],
        error: Option<&str>,
        by: &Actor,
    ) -> (Vec<(Lease, i32)>, Result<(), StoreError>) {
        let writer = Writer { store, ..(*self.writer).clone() };
        let only: Vec<Lease> = leases.iter().map(|(lease, _)| *lease).collect();
        let mut facts = Vec::new();
        if error.is_some() {
            match writer.store.lease_facts(&only).await {
                Ok(found) => facts = found,
                Err(error) => return (Vec::new(), Err(error)),
            }
        }
        let nack = |lease: Lease| {
            let facts = facts.binary_search_by_key(&lease.id, |f| f.id).ok().map(|i| &facts[i]);
            let (action, delay_ms) = match error {
                Some(_) => (Action::Retry, writer.retry_delay_ms(facts)),
                None => (Action::Release, 0),
            };
            Nack { lease, action, delay_ms, error: error.map(AttemptError::from) }
        };
        let brokers: BTreeSet<i32> = leases.iter().map(|(_, broker)| *broker).collect();
        let mut ended = Vec::new();
        for broker in brokers {
            let nacks: Vec<Nack> =
                leases.iter().filter(|(_, owner)| *owner == broker).map(|(lease, _)| nack(*lease)).collect();
            // For an operator, the statement does not store the token, so a later settle by the worker is not answered
            // as a repeat.
            match writer.end_leases(&nacks, broker, by).await {
                Ok(nacked) => {
                    let is_ended = |lease: &&Lease| nacked.iter().any(|n| n.id == lease.id);
                    ended.extend(only.iter().filter(is_ended).map(|lease| (*lease, broker)));
                }
                Err(error) => return (ended, Err(error)),
            }
        }
        (ended, Ok(()))
    }

    /// Ends jobs in the background that had expired when they were claimed. Retries until it succeeds.
    pub(crate) fn expired(&self, mut leases: Vec<Lease>, owner: Option<i32>) {
        if leases.is_empty() {
            return;
        }
        leases.sort_unstable();
        let (this, writer) = (self.clone(), self.writer.clone());
        tokio::spawn(async move {
            let mut backoff = backoff();
            loop {
                match writer.store.expire_leases(&leases, owner).await {
                    Ok(woken) => return writer.dispatch.wakeups(&woken),
                    Err(error) if error.is_refused() => {
                        return writer.store.log_failure("ending expired jobs", &error);
                    }
                    Err(StoreError::Locked(_)) if leases.len() > 1 => {
                        // Splits the batch, so that jobs that are not locked do not wait for locked ones.
                        let second = leases.split_off(leases.len() / 2);
                        this.expired(second, owner);
                    }
                    Err(error) => writer.store.log_failure("ending expired jobs", &error),
                }
                backoff.pause().await;
            }
        });
    }

    /// Ends at most `at_most` leases of coordinated jobs whose brokers have expired. With `keyed`, includes jobs that
    /// have a key and no attempts left, so that their key is freed. Returns the number of ended leases; locked ones are
    /// skipped.
    pub(crate) async fn rescue_coordinated(&self, at_most: i32, keyed: bool) -> Result<usize, StoreError> {
        let mut lost = self.writer.store.lost_coordinated(at_most, self.broker_id(), keyed).await?;
        lost.sort_unstable_by_key(|(lease, broker)| (*broker, *lease));
        let mut rescued = 0;
        for of_broker in lost.chunk_by(|a, b| a.1 == b.1) {
            let nacks: Vec<Nack> = of_broker
                .iter()
                .map(|(lease, _)| Nack {
                    lease: *lease,
                    action: Action::Lost,
                    delay_ms: 0,
                    error: Some("the worker or its broker was lost while the job ran".into()),
                })
                .collect();
            let owner: Vec<i32> = of_broker.iter().take(1).map(|(_, broker)| *broker).collect();
            let (nacked, _, result) = self.writer.nack_unlocked(nacks, Some(&owner), false).await;
            rescued += nacked.len();
            result?;
        }
        Ok(rescued)
    }

    fn find_lost_claim(&self, tokens: Tokens) {
        let this = self.clone();
        let broker_id = self.broker_id();
        tokio::spawn(async move {
            for pause in LOST_CLAIM_DELAYS {
                tokio::time::sleep(pause).await;
                let mut backoff = backoff();
                let leases = loop {
                    match this.writer.store.lost_claim(broker_id, &tokens).await {
                        Ok(leases) => break leases,
                        Err(error) => this.writer.store.log_failure("looking for a claim without an answer", &error),
                    }
                    backoff.pause().await;
                };
                this.end_owned(leases, Action::Release, None).await;
            }
        });
    }
}

fn nacks(leases: &[Lease], action: Action, error: Option<&'static str>) -> Vec<Nack> {
    leases.iter().map(|&lease| Nack { lease, action, delay_ms: 0, error: error.map(AttemptError::from) }).collect()
}

fn backoff() -> Backoff {
    Backoff::new(Duration::from_millis(50), Duration::from_secs(2))
}

/// Guard of leases, shared by all sessions of a broker.
#[derive(Clone, Default)]
pub(super) struct LeaseGuard(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    ending: HashMap<Lease, usize>,
    adopting: HashMap<Lease, usize>,
}

/// Leases that are being adopted. They are not ended at this broker until this guard is dropped.
pub(crate) struct Adopting {
    guard: LeaseGuard,
    /// Leases that may be adopted. The requested leases that are missing here are being ended.
    pub(crate) leases: Vec<Lease>,
}

/// Leases that are being ended. They are not adopted at this broker until this guard is dropped.
pub(super) struct Ending {
    guard: LeaseGuard,
    pub(super) leases: Vec<Lease>,
}

impl LeaseGuard {
    /// Guards leases for adoption. Leaves out duplicates, and leases that are being ended.
    pub(super) fn adopt(&self, mut leases: Vec<Lease>) -> Adopting {
        leases.sort_unstable();
        leases.dedup();
        let mut state = self.0.lock();
        leases.retain(|lease| !state.ending.contains_key(lease));
        leases.iter().for_each(|lease| *state.adopting.entry(*lease).or_default() += 1);
        Adopting { guard: self.clone(), leases }
    }

    /// Guards leases that are to be ended. Leaves out duplicates, and leases that are being adopted: the adopting task
    /// is responsible for those.
    pub(super) fn end(&self, mut leases: Vec<Lease>) -> Ending {
        leases.sort_unstable();
        leases.dedup();
        let mut state = self.0.lock();
        leases.retain(|lease| !state.adopting.contains_key(lease));
        leases.iter().for_each(|lease| *state.ending.entry(*lease).or_default() += 1);
        Ending { guard: self.clone(), leases }
    }
}

impl Drop for Adopting {
    fn drop(&mut self) {
        forget(&mut self.guard.0.lock().adopting, &self.leases);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        forget(&mut self.guard.0.lock().ending, &self.leases);
    }
}

fn forget(counts: &mut HashMap<Lease, usize>, leases: &[Lease]) {
    for lease in leases {
        if let Some(count) = counts.get_mut(lease) {
            *count -= 1;
            if *count == 0 {
                counts.remove(lease);
            }
        }
    }
}

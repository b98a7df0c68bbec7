//! Leases that the broker gives back itself: what it could not send, what a lost worker held, what
//! timed out. Only its own: a lease that another broker adopted is left alone.

use std::{sync::Arc, time::Duration};

use tokio::sync::mpsc;

use super::Writer;
use crate::{
    config::Config,
    dispatch::{Dispatch, Unsent},
    job::Lease,
    metrics::Metrics,
    registry::Registry,
    store::{Action, LeaseFacts, Nack, Nacked, Store, StoreError},
    wake::{Wake, jittered},
};

/// Leases in a statement at most.
const BATCH: usize = 1_000;
/// When to look for what a claim without an answer has committed: at once, and until its statement
/// can no longer be running.
const LOST_CLAIM_LOOKS: [Duration; 4] =
    [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(30)];

/// Leases to be given back, and how.
pub(crate) struct Returned {
    pub(crate) leases: Vec<Lease>,
    pub(crate) action: Action,
    pub(crate) error: Option<&'static str>,
    /// Of a call without a stream: nobody owns them.
    pub(crate) pulled: bool,
}

/// Gives leases back.
#[derive(Clone)]
pub(crate) struct GiveBack {
    writer: Arc<Writer>,
    dispatch: Arc<Dispatch>,
}

impl GiveBack {
    pub(crate) fn new(
        config: &Config,
        store: Store,
        registry: Arc<Registry>,
        wake: Wake,
        metrics: Arc<Metrics>,
        dispatch: Arc<Dispatch>,
    ) -> Self {
        let timeout = config.database_timeout;
        Self { writer: Arc::new(Writer { store, registry, wake, metrics, timeout }), dispatch }
    }

    /// Gives back what dispatch could not send, until dispatch is gone.
    pub(crate) async fn unsent_always(self, mut unsent: mpsc::UnboundedReceiver<Unsent>) {
        while let Some(first) = unsent.recv().await {
            let mut leases = Vec::new();
            let mut flushed = Vec::new();
            let mut next = Some(first);
            while let Some(unsent_now) = next {
                match unsent_now {
                    Unsent::Leases(more) => leases.extend(more),
                    Unsent::Flush(done) => flushed.push(done),
                    Unsent::Claim(token_key) => self.look_for_claim(token_key),
                    Unsent::Expired(leases) => self.expired(leases, Some(self.dispatch.broker_id())),
                }
                next = if leases.len() < BATCH { unsent.try_recv().ok() } else { None };
            }
            self.until_done(Returned { leases, action: Action::Release, error: None, pulled: false }).await;
            for done in flushed {
                let _ = done.send(());
            }
        }
    }

    /// Gives leases back, trying for as long as it takes: nobody else will while this broker lives.
    pub(crate) async fn until_done(&self, returned: Returned) {
        let mut leases = returned.leases;
        leases.sort_unstable();
        leases.dedup_by_key(|lease| lease.id);
        let owner = || (!returned.pulled).then(|| self.dispatch.broker_id());
        for batch in leases.chunks(BATCH) {
            let mut backoff = Duration::from_millis(50);
            while let Err(error) = self.once(batch, returned.action, returned.error, owner()).await {
                tracing::warn!(%error, jobs = batch.len(), "giving jobs back failed; trying again");
                if error.is_refused() {
                    break;
                }
                tokio::time::sleep(jittered(backoff)).await;
                backoff = (backoff * 2).min(Duration::from_secs(2));
            }
        }
    }

    async fn once(
        &self,
        batch: &[Lease],
        action: Action,
        error: Option<&'static str>,
        owner: Option<i32>,
    ) -> Result<(), StoreError> {
        let error = error.map(str::to_owned);
        let nacks: Vec<Nack> =
            batch.iter().map(|&lease| Nack { lease, action, delay_ms: 0, error: error.clone() }).collect();
        self.writer.settle_nacks(&nacks, owner, false).await.1
    }

    /// Ends attempts whose deadline has passed, by their retry policies; returns what took effect, and
    /// whether there may be more.
    pub(crate) async fn time_out(&self, at_most: i32) -> Result<(Vec<(Lease, Option<i32>)>, bool), StoreError> {
        let mut leases = self.writer.store.timed_out(at_most).await?;
        let more = leases.len() >= at_most as usize;
        if leases.is_empty() {
            return Ok((Vec::new(), false));
        }
        leases.sort_unstable();
        let facts = self.writer.store.lease_facts(&leases).await?;
        let nacks: Vec<Nack> = leases.iter().map(|&lease| self.timeout_of(lease, &facts)).collect();
        let (nacked, result) = self.writer.settle_nacks(&nacks, None, true).await;
        if nacked.is_empty() {
            result?;
        } else if let Err(error) = result {
            // Their workers are to be told; the rest is found again.
            tracing::warn!(%error, "ending some of the attempts over their timeout failed; trying again");
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

    /// Ends jobs that had expired when they were claimed, in the background, for as long as it takes.
    pub(crate) fn expired(&self, mut leases: Vec<Lease>, owner: Option<i32>) {
        if leases.is_empty() {
            return;
        }
        leases.sort_unstable();
        let writer = self.writer.clone();
        tokio::spawn(async move {
            let mut backoff = Duration::from_millis(50);
            loop {
                match writer.store.expire_leases(&leases, owner).await {
                    Ok(woken) => return writer.wake.woken(&woken),
                    Err(error) if error.is_refused() => return tracing::error!(%error, "jobs could not be ended"),
                    Err(error) => tracing::warn!(%error, "ending jobs that expired failed; trying again"),
                }
                tokio::time::sleep(jittered(backoff)).await;
                backoff = (backoff * 2).min(Duration::from_secs(2));
            }
        });
    }

    /// Takes back leases of special jobs whose brokers are gone, so many at most; how many there were.
    pub(crate) async fn rescue_special(&self, at_most: i32) -> Result<usize, StoreError> {
        let mut lost = self.writer.store.lost_coordinated(at_most, self.dispatch.broker_id()).await?;
        lost.sort_unstable_by_key(|(lease, broker)| (*broker, *lease));
        for of_broker in lost.chunk_by(|a, b| a.1 == b.1) {
            let nacks: Vec<Nack> = of_broker
                .iter()
                .map(|(lease, _)| Nack {
                    lease: *lease,
                    action: Action::Lost,
                    delay_ms: 0,
                    error: Some("the worker or its broker went away while the job ran".into()),
                })
                .collect();
            let owner = of_broker.first().map(|(_, broker)| *broker);
            self.writer.settle_nacks(&nacks, owner, false).await.1?;
        }
        Ok(lost.len())
    }

    fn look_for_claim(&self, token_key: i64) {
        let this = self.clone();
        let broker_id = self.dispatch.broker_id();
        tokio::spawn(async move {
            for pause in LOST_CLAIM_LOOKS {
                tokio::time::sleep(pause).await;
                let leases = loop {
                    match this.writer.store.lost_claim(broker_id, token_key).await {
                        Ok(leases) => break leases,
                        Err(error) => tracing::warn!(%error, "looking for a lost claim failed; trying again"),
                    }
                    tokio::time::sleep(jittered(Duration::from_secs(1))).await;
                };
                if !leases.is_empty() {
                    this.until_done(Returned { leases, action: Action::Release, error: None, pulled: false }).await;
                }
            }
        });
    }
}

//! The claim loop.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_core::job::{LeasedJob, Ready};
use tokio::sync::oneshot;

use super::{Dispatch, UNSENT_AFTER, Unsent, state::DispatchState};
use crate::{
    backoff::Backoff,
    store::{ClaimRequest, Claimed, Store, StoreError, Want},
};

/// Maximum payload bytes in a claim; only its last job may exceed them. Bounds the memory of a claim.
const CLAIM_BYTES: i64 = 8 << 20;
/// Maximum pause after a failed claim.
const MOST_BACKOFF: Duration = Duration::from_secs(2);

/// Minimum pause between announcements of ready jobs for which this broker has no capacity.
const LEFT_OVER_PAUSE: Duration = Duration::from_millis(100);

impl Dispatch {
    /// Claims jobs in a loop until dispatch is closed.
    pub(crate) async fn run_claims(self: Arc<Self>, store: Store) {
        let mut backoff = Backoff::new(Duration::from_millis(50), MOST_BACKOFF);
        loop {
            let work = self.work.notified();
            let stale_due = self.release_stale();
            let room = self.unsent_memory.room();
            let (wants, closed) = {
                let mut state = self.state.lock();
                let wants = if room > 0 { state.next_claim(Instant::now()) } else { Vec::new() };
                (wants, state.is_closed())
            };
            if closed {
                return;
            }
            if wants.is_empty() {
                let stale_due = async {
                    match stale_due {
                        Some(at) => tokio::time::sleep_until(at.into()).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = work => {}
                    () = stale_due => {}
                    () = self.unsent_memory.freed.notified() => {}
                }
                continue;
            }
            let claimed = self.claim_once(&store, &wants, CLAIM_BYTES.min(room.min(i64::MAX as u64) as i64)).await;
            self.claimed.notify_waiters();
            match claimed {
                Ok(()) => backoff.reset(),
                Err(error) => {
                    store.log_failure("a claim", &error);
                    self.with(|state| state.claim_failed(&wants));
                    backoff.pause().await;
                }
            }
        }
    }

    async fn claim_once(self: &Arc<Self>, store: &Store, wants: &[Want], most_bytes: i64) -> Result<(), StoreError> {
        let request = ClaimRequest {
            broker_id: Some(self.broker_id()),
            bytes: most_bytes,
            ..ClaimRequest::new(wants.to_vec(), self.limited_among(wants), i32::MAX)
        };
        let Claimed { mut jobs, expired, held_back, lost } = match store.claim(&request).await {
            Ok(claimed) => claimed,
            Err(error) => {
                self.metrics.store_errors.inc();
                if matches!(error, StoreError::Unknown(_)) {
                    self.release_lost_claim(request.tokens);
                    self.release_lost_claim(request.limited_tokens);
                }
                return Err(error);
            }
        };
        if let Some(tokens) = lost {
            self.metrics.store_errors.inc();
            self.release_lost_claim(tokens);
        }
        self.measure(&mut jobs);
        let bytes: usize = jobs.iter().map(|j| j.payload.len()).sum();
        let cut = bytes as i64 >= most_bytes || !expired.is_empty();
        let (assigned, unassignable) = self.with(|state| {
            let assigned = state.claimed(wants, jobs, cut, &held_back, Instant::now());
            // Task types with a limit are not prefetched: buffered jobs would occupy slots of the limit that other jobs
            // could use.
            state.stop_prefetch(request.limited.iter());
            assigned
        });
        self.wait_for_limits(&held_back);
        self.release_expired(expired);
        self.deliver(assigned);
        self.release(unassignable);
        self.announce_left_over(wants);
        Ok(())
    }

    /// Announces ready jobs for which this broker has no capacity, so that other brokers can claim them. Announces at
    /// most once per `LEFT_OVER_PAUSE`, because under load the other brokers are full too. They find the rest by
    /// polling.
    fn announce_left_over(&self, wants: &[Want]) {
        let mut last = self.left_over_announced.lock();
        if last.is_some_and(|last| last.elapsed() < LEFT_OVER_PAUSE) {
            return;
        }
        let left = self.state.lock().left_over(wants);
        if !left.is_empty() {
            *last = Some(Instant::now());
            self.wake.announce(&left);
        }
    }

    fn measure(&self, jobs: &mut [LeasedJob]) {
        if jobs.is_empty() {
            return;
        }
        self.metrics.claimed.inc_by(jobs.len() as u64);
        self.metrics.claim_batch.observe(jobs.len() as f64);
        self.picked_up(jobs);
        self.watch_deadlines(jobs);
    }

    /// Records metrics and traces of jobs that are leased for workers of this broker.
    pub(crate) fn picked_up(&self, jobs: &mut [LeasedJob]) {
        let mut traced = self.traces.leased(jobs, false).into_iter().peekable();
        for (index, job) in jobs.iter().enumerate() {
            let trace = traced.next_if(|(of, _)| *of == index).map(|(_, trace)| trace);
            self.metrics.pickup_latency.observe_traced(job.waited_us.max(0) as f64 / 1e6, trace);
        }
    }

    /// Records metrics and traces of jobs that a `PullJobs` call leased.
    pub(crate) fn pulled(&self, jobs: &mut [LeasedJob]) {
        self.traces.leased(jobs, true);
        self.metrics.claimed.inc_by(jobs.len() as u64);
        self.watch_deadlines(jobs);
    }

    fn watch_deadlines(&self, jobs: &[LeasedJob]) {
        if let Some(ms) = jobs.iter().filter_map(|j| j.deadline_in_ms).min() {
            self.wake.deadline_in(Duration::from_millis(ms.max(0) as u64));
        }
    }

    fn release_stale(self: &Arc<Self>) -> Option<Instant> {
        let assigned = self.with(DispatchState::assign_all_buffered);
        self.deliver(assigned);
        let (stale, next) = self.with(|state| state.take_stale(Instant::now()));
        self.release(stale.jobs);
        if !stale.returning.is_empty() {
            self.hold_up(stale.returning);
        }
        next
    }

    /// Stops claims of these task types until the jobs just released are ready again. Otherwise later jobs would
    /// overtake the released jobs.
    fn hold_up(self: &Arc<Self>, returning: Vec<Ready>) {
        let (done, released) = oneshot::channel();
        let _ = self.unsent.send(Unsent::Flush(done));
        let dispatch = self.clone();
        tokio::spawn(async move {
            // The release may time out, because another transaction has locked one of the jobs. Then claims continue
            // without that job.
            let _ = tokio::time::timeout(UNSENT_AFTER, released).await;
            dispatch.with(|state| state.returned(&returning));
            dispatch.work.notify_one();
        });
    }
}

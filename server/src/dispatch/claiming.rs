//! The claim loop.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{Dispatch, UNSENT_AFTER, Unsent, state::DispatchState};
use crate::{
    backoff::Backoff,
    job::{LeasedJob, Ready},
    store::{ClaimRequest, Claimed, Store, StoreError, Want},
};

/// The most payload bytes in a claim (in addition to one job): bounds the memory of a claim.
const CLAIM_BYTES: i64 = 8 << 20;
/// The longest pause after a failed claim.
const MOST_BACKOFF: Duration = Duration::from_secs(2);

/// The pause between announcements of ready jobs that claims left.
const LEFT_OVER_PAUSE: Duration = Duration::from_millis(100);

impl Dispatch {
    /// Claims for as long as the broker takes part.
    pub(crate) async fn claim_always(self: Arc<Self>, store: Store) {
        let mut backoff = Backoff::new(Duration::from_millis(50), MOST_BACKOFF);
        loop {
            let work = self.work.notified();
            let hand_due = self.release_stale_hand();
            let (wants, closed) = {
                let mut state = self.state.lock();
                (state.next_claim(Instant::now()), state.is_closed())
            };
            if closed {
                return;
            }
            if wants.is_empty() {
                let hand_due = async {
                    match hand_due {
                        Some(at) => tokio::time::sleep_until(at.into()).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = work => {}
                    () = hand_due => {}
                }
                continue;
            }
            let claimed = self.claim_once(&store, &wants).await;
            self.claimed.notify_waiters();
            match claimed {
                Ok(()) => backoff.reset(),
                Err(error) => {
                    store.failed("a claim", &error);
                    self.with(|state| state.claim_failed(&wants));
                    backoff.pause().await;
                }
            }
        }
    }

    async fn claim_once(self: &Arc<Self>, store: &Store, wants: &[Want]) -> Result<(), StoreError> {
        let request = ClaimRequest {
            broker_id: Some(self.broker_id()),
            bytes: CLAIM_BYTES,
            ..ClaimRequest::new(wants.to_vec(), self.limited_among(wants), i32::MAX)
        };
        let Claimed { mut jobs, expired, held_back, lost } = match store.claim(&request).await {
            Ok(claimed) => claimed,
            Err(error) => {
                self.metrics.store_errors.inc();
                if matches!(error, StoreError::Unknown(_)) {
                    self.look_for_lost(request.tokens);
                    self.look_for_lost(request.limited_tokens);
                }
                return Err(error);
            }
        };
        if let Some(tokens) = lost {
            self.metrics.store_errors.inc();
            self.look_for_lost(tokens);
        }
        self.measure(&mut jobs);
        let bytes: usize = jobs.iter().map(|j| j.payload.len()).sum();
        let cut = bytes as i64 >= CLAIM_BYTES || !expired.is_empty();
        let (dealt, nobodys) = self.with(|state| {
            let dealt = state.claimed(wants, jobs, cut, &held_back, Instant::now());
            // They would hold slots that other jobs may have.
            state.stop_ahead(request.limited.iter());
            dealt
        });
        self.wait_for_limits(&held_back);
        self.release_expired(expired);
        self.deliver(dealt);
        self.release(nobodys);
        self.tell_of_left_over(wants);
        Ok(())
    }

    /// When the workers here are full, other brokers may have capacity. This is not done after every claim: under load
    /// the others are full too, and have their sweeps.
    fn tell_of_left_over(&self, wants: &[Want]) {
        let mut last = self.told_of_left_over.lock();
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

    /// These jobs are leased, and on their way to workers here.
    pub(crate) fn picked_up(&self, jobs: &mut [LeasedJob]) {
        let mut traced = self.traces.leased(jobs, false).into_iter().peekable();
        for (index, job) in jobs.iter().enumerate() {
            let trace = traced.next_if(|(of, _)| *of == index).map(|(_, trace)| trace);
            self.metrics.pickup_latency.observe_traced(job.waited_us.max(0) as f64 / 1e6, trace);
        }
    }

    /// These jobs were leased without a stream.
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

    fn release_stale_hand(self: &Arc<Self>) -> Option<Instant> {
        let dealt = self.with(DispatchState::deal_hands);
        self.deliver(dealt);
        let (stale, next) = self.with(|state| state.stale_hand(Instant::now()));
        self.release(stale.jobs);
        if !stale.returning.is_empty() {
            self.hold_up(stale.returning);
        }
        next
    }

    /// Until the jobs that were just released are ready again, nothing is claimed that could overtake them.
    fn hold_up(self: &Arc<Self>, returning: Vec<Ready>) {
        let (done, released) = oneshot::channel();
        let _ = self.unsent.send(Unsent::Flush(done));
        let dispatch = self.clone();
        tokio::spawn(async move {
            // A transaction that has locked one of them must not hold up the others.
            let _ = tokio::time::timeout(UNSENT_AFTER, released).await;
            dispatch.with(|state| state.returned(&returning));
            dispatch.work.notify_one();
        });
    }
}

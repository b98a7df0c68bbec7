//! Direct enqueue: leases jobs in the statement that stores them, if no ready jobs precede them and workers of this
//! broker have capacity.

use std::time::{Duration, Instant};

use howdah_core::job::{Lease, LeasedJob, Started, Tokens};

use super::{Pending, Writer};
use crate::{
    dispatch::{Load, Need, Offered, Reserved},
    store::{PlainJob, StoreError, StoredDirect},
};

/// Writes the requests that may go direct to workers; returns the others.
pub(super) async fn write_some(writer: &Writer, requests: Vec<Pending>) -> Vec<Pending> {
    let needs: Vec<Vec<Need>> = requests.iter().map(needs).collect();
    writer.dispatch.until_claimed(needs.iter().flatten().map(|need| need.type_id)).await;
    let (may, reserved) = writer.dispatch.reserve(needs.iter().map(Vec::as_slice));
    if reserved.is_empty() {
        return requests;
    }
    let mut may = may.into_iter();
    let (direct, others): (Vec<_>, Vec<_>) = requests.into_iter().partition(|_| may.next().unwrap_or_default());
    match write(writer, &direct, reserved).await {
        Ok(Some((stored, offered))) => {
            let ids = stored.leases.iter().map(|lease| lease.id);
            offered.send_and_answer(direct.len(), || super::answer(direct, ids));
            others
        }
        // Nothing was stored. The requests take the normal path, ahead of the other requests.
        Ok(None) => direct.into_iter().chain(others).collect(),
        Err(error @ StoreError::Unknown(_)) => {
            for request in direct {
                request.reply(Err(error.clone().into()));
            }
            others
        }
        Err(error) => {
            tracing::debug!(%error, "jobs could not be stored and leased in one statement; storing them as ready");
            direct.into_iter().chain(others).collect()
        }
    }
}

/// Stores and leases the jobs, and assigns them to workers, which are not woken yet.
async fn write(
    writer: &Writer,
    requests: &[Pending],
    reserved: Reserved,
) -> Result<Option<(StoredDirect, Offered)>, StoreError> {
    let begun = Instant::now();
    let jobs: Vec<PlainJob<'_>> = requests.iter().flat_map(|r| &r.jobs).map(super::Resolved::as_plain).collect();
    let tokens = Tokens::draw(jobs.len());
    let broker_id = writer.dispatch.broker_id();
    let stored = match writer.store.enqueue_direct(&jobs, super::request_keys(requests), broker_id, &tokens).await {
        Ok(Some(stored)) => stored,
        Ok(None) => {
            writer.dispatch.unreserve(reserved);
            return Ok(None);
        }
        Err(error) => {
            writer.dispatch.unreserve(reserved);
            writer.metrics.store_errors.inc();
            writer.breaker.failed(&error);
            if matches!(error, StoreError::Unknown(_)) {
                writer.dispatch.release_lost_claim(tokens);
            }
            return Err(error);
        }
    };
    let waited = begun.elapsed();
    let mut leased: Vec<LeasedJob> =
        jobs.iter().zip(&stored.leases).map(|(job, lease)| leased_job(job, *lease, &stored, waited)).collect();
    leased.sort_unstable_by_key(|job| (job.rank, job.lease.id));
    measure(writer, &mut leased);
    let offered = writer.dispatch.assign_reserved(reserved, leased);
    Ok(Some((stored, offered)))
}

fn measure(writer: &Writer, jobs: &mut [LeasedJob]) {
    writer.metrics.enqueued.inc_by(jobs.len() as u64);
    writer.metrics.direct.inc_by(jobs.len() as u64);
    writer.dispatch.picked_up(jobs);
    if let Some(ms) = jobs.iter().filter_map(|j| j.deadline_in_ms).min() {
        writer.wake.deadline_in(Duration::from_millis(ms.max(0) as u64));
    }
}

fn leased_job(job: &PlainJob<'_>, lease: Lease, stored: &StoredDirect, waited: Duration) -> LeasedJob {
    let since_1970 = stored.now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let new = job.job;
    let now_us = since_1970.as_micros() as i64;
    LeasedJob {
        lease,
        type_id: job.type_id,
        rank: job.rank_base + now_us,
        attempt: 1,
        max_attempts: job.max_attempts,
        created: stored.now,
        deadline: new.timeout.map(|timeout| stored.now + timeout),
        deadline_in_ms: new.timeout.map(|timeout| timeout.as_millis() as i64),
        waited_us: waited.as_micros() as i64,
        started: Started { type_id: job.type_id, at_us: now_us, waited_us: 0 },
        headers: new.headers.clone(),
        options: new.options.clone(),
        payload: new.payload.clone(),
        dependencies: Vec::new(),
        weight: new.leased_weight(),
    }
}

/// Returns the worker capacity that a request needs, by task type.
fn needs(request: &Pending) -> Vec<Need> {
    let mut needs: Vec<Need> = Vec::with_capacity(1);
    for job in &request.jobs {
        let weight = job.job.leased_weight();
        match needs.last_mut() {
            Some(need) if need.type_id == job.type_id => {
                need.load.jobs += 1;
                need.load.bytes += weight;
                need.heaviest = need.heaviest.max(weight);
            }
            _ => {
                let load = Load { jobs: 1, bytes: weight };
                needs.push(Need { type_id: job.type_id, load, heaviest: weight });
            }
        }
    }
    // Merges entries of the same task type; usually there is only one entry.
    needs.sort_unstable_by_key(|need| need.type_id);
    needs.dedup_by(|later, first| {
        let same = later.type_id == first.type_id;
        if same {
            first.load.jobs += later.load.jobs;
            first.load.bytes += later.load.bytes;
            first.heaviest = first.heaviest.max(later.heaviest);
        }
        same
    });
    needs
}

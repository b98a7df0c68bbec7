//! The hot path: jobs that may run at once and have no key of their own.

use std::collections::{HashMap, VecDeque};

use super::{Pending, Remedy, Writer, locked, remedy};
use crate::{
    job::Ready,
    side_lane::SideLane,
    store::{PlainJob, StoreError, StoredPlain},
};

/// Writes the requests in one statement; if it is refused, one by one. Those that may be repeats of
/// earlier ones come back.
pub(super) async fn write(writer: &Writer, lane: &SideLane<Pending>, requests: Vec<Pending>) -> Vec<Pending> {
    let mut repeats = Vec::new();
    let mut todo = VecDeque::from([requests]);
    while let Some(requests) = todo.pop_front() {
        let requests = locked::divert(lane, writer.away.tell(requests));
        if requests.is_empty() {
            continue;
        }
        let mut tries = 0;
        loop {
            tries += 1;
            match write_once(writer, &requests).await {
                Ok(ids) => {
                    answer(requests, ids);
                    break;
                }
                Err(StoreError::Taken(_)) => {
                    repeats.extend(requests);
                    break;
                }
                Err(error) => match remedy(error, tries, requests.len(), writer) {
                    Remedy::Repeat => {}
                    Remedy::Split => {
                        todo.extend(requests.into_iter().map(|r| vec![r]));
                        break;
                    }
                    Remedy::Aside => {
                        // What needs nothing but the tables waits here: nothing could go past it.
                        let (keyed, others): (Vec<_>, Vec<_>) = requests.into_iter().partition(|r| r.request.is_some());
                        if keyed.is_empty() {
                            locked::wait_for_table(writer, others).await;
                        } else {
                            locked::wait_aside(lane, keyed);
                            todo.push_front(others);
                        }
                        break;
                    }
                    Remedy::Tell(error) => {
                        for request in requests {
                            request.tell(Err(error.clone()));
                        }
                        break;
                    }
                },
            }
        }
    }
    repeats
}

/// Returns the ids of the jobs.
pub(super) async fn write_once(writer: &Writer, requests: &[Pending]) -> Result<Vec<i64>, StoreError> {
    let jobs: Vec<PlainJob<'_>> = requests.iter().flat_map(|r| &r.jobs).map(super::Resolved::as_plain).collect();
    let stored = writer.store.enqueue_plain(&jobs, super::request_keys(requests)).await?;
    announce(writer, &jobs, &stored);
    writer.metrics.enqueued.inc_by(stored.ids.len() as u64);
    Ok(stored.ids)
}

/// They are stored.
pub(super) fn answer(mut requests: Vec<Pending>, ids: Vec<i64>) {
    super::wait_for_workers(&mut requests);
    super::answer(requests, ids);
}

fn announce(writer: &Writer, jobs: &[PlainJob<'_>], stored: &StoredPlain) {
    let mut by_type: HashMap<i32, Ready> = HashMap::new();
    for job in jobs {
        let rank = job.rank_base + stored.now_us;
        let ready = by_type.entry(job.type_id).or_insert(Ready { type_id: job.type_id, lowest_rank: rank, jobs: 0 });
        ready.lowest_rank = ready.lowest_rank.min(rank);
        ready.jobs += 1;
    }
    writer.dispatch.ready(by_type.into_values());
}

//! The hot path: jobs that are due immediately and have no job key.

use std::collections::{HashMap, VecDeque};

use howdah_core::job::Ready;

use super::{Pending, Remedy, Writer, locked, remedy};
use crate::{
    side_lane::SideLane,
    store::{PlainJob, StoreError, StoredPlain},
};

/// Writes the requests in one statement, or one by one if Postgres refuses it. Returns requests whose request keys may
/// have been used before.
pub(super) async fn write(writer: &Writer, lane: &SideLane<Pending>, requests: Vec<Pending>) -> Vec<Pending> {
    let mut repeats = Vec::new();
    let mut todo = VecDeque::from([requests]);
    while let Some(requests) = todo.pop_front() {
        let requests = locked::divert(lane, writer.breaker.reply_if_open(requests));
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
                    Remedy::SideLane => {
                        // Only a lock on a whole table blocks requests without a request key. All later requests need
                        // the same tables, so the requests wait here and not in the side lane.
                        let (keyed, others): (Vec<_>, Vec<_>) = requests.into_iter().partition(|r| r.request.is_some());
                        if keyed.is_empty() {
                            locked::wait_for_table(writer, others).await;
                        } else {
                            locked::move_to_side_lane(lane, keyed);
                            todo.push_front(others);
                        }
                        break;
                    }
                    Remedy::Reply(error) => {
                        for request in requests {
                            request.reply(Err(error.clone()));
                        }
                        break;
                    }
                },
            }
        }
    }
    repeats
}

/// Stores the requests in one statement. Returns the ids of the jobs.
pub(super) async fn write_once(writer: &Writer, requests: &[Pending]) -> Result<Vec<i64>, StoreError> {
    let jobs: Vec<PlainJob<'_>> = requests.iter().flat_map(|r| &r.jobs).map(super::Resolved::as_plain).collect();
    let stored = writer.store.enqueue_plain(&jobs, super::request_keys(requests)).await?;
    writer.breaker.stored();
    announce(writer, &jobs, &stored);
    writer.metrics.enqueued.inc_by(stored.ids.len() as u64);
    Ok(stored.ids)
}

/// Answers the callers of stored requests.
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

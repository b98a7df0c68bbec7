//! The hot path: jobs that may run at once and have no key of their own.

use std::collections::{HashMap, VecDeque};

use super::{Pending, Remedy, Writer, remedy};
use crate::{
    job::Ready,
    store::{PlainJob, StoreError, StoredPlain},
};

/// Writes the requests in one statement; if it is refused, one by one. Those that may be repeats of
/// earlier ones come back.
pub(super) async fn write(writer: &Writer, requests: Vec<Pending>) -> Vec<Pending> {
    let mut repeats = Vec::new();
    let mut todo = VecDeque::from([requests]);
    while let Some(requests) = todo.pop_front() {
        let mut requests = writer.away.tell(requests);
        if requests.is_empty() {
            continue;
        }
        let mut tries = 0;
        loop {
            tries += 1;
            let jobs: Vec<PlainJob<'_>> =
                requests.iter().flat_map(|r| &r.jobs).map(super::Resolved::as_plain).collect();
            match writer.store.enqueue_plain(&jobs, super::request_keys(&requests)).await {
                Ok(stored) => {
                    announce(writer, &jobs, &stored);
                    writer.metrics.enqueued.inc_by(stored.ids.len() as u64);
                    super::wait_for_workers(&mut requests);
                    super::answer(requests, stored.ids);
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

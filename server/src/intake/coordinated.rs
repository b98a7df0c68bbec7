//! Requests with jobs whose options need coordination: key policies, stages, dependencies, limits, fair keys.

use super::{
    Pending, Remedy, Writer,
    keyed::{repeat, rounds_by_key},
    locked, remedy,
};
use crate::{
    error::Error,
    job::Enqueued,
    side_lane::SideLane,
    store::{KeyedJob, RequestColumns, StoreError},
};

/// Writes the requests in one statement; if it is refused, one by one.
pub(super) async fn write(writer: &Writer, lane: &SideLane<Pending>, requests: Vec<Pending>) {
    // Within one statement a request key can be new only once: repeats go into a later one.
    let mut todo = rounds_by_key(requests);
    let mut tries = 0;
    while let Some(requests) = todo.pop_front() {
        let mut requests = locked::divert(lane, writer.away.tell(requests));
        if requests.is_empty() {
            continue;
        }
        tries += 1;
        match write_once(writer, &requests).await {
            Ok(answers) => {
                tries = 0;
                super::wait_for_workers(&mut requests);
                for (request, answer) in requests.into_iter().zip(answers) {
                    request.tell(answer);
                }
            }
            Err(error) => match remedy(error, tries, requests.len(), writer) {
                Remedy::Repeat => todo.push_front(requests),
                Remedy::Split => {
                    tries = 0;
                    // In their order: a job of one may have the key of another's.
                    for request in requests.into_iter().rev() {
                        todo.push_front(vec![request]);
                    }
                }
                Remedy::Aside => {
                    tries = 0;
                    locked::wait_aside(lane, requests);
                }
                Remedy::Tell(error) => {
                    tries = 0;
                    for request in requests {
                        request.tell(Err(error.clone()));
                    }
                }
            },
        }
    }
}

pub(super) async fn write_once(
    writer: &Writer,
    requests: &[Pending],
) -> Result<Vec<Result<Vec<Enqueued>, Error>>, StoreError> {
    let mut columns = RequestColumns::default();
    let mut jobs = Vec::new();
    for (no, request) in requests.iter().enumerate() {
        if let Some(key) = &request.request {
            columns.request_no.push(no as i32);
            columns.key.push(&key.key);
            columns.body_hash.push(&key.body_hash);
        }
        jobs.extend(request.jobs.iter().map(|j| KeyedJob { plain: j.as_plain(), request_no: no as i32 }));
    }
    let stored = writer.store.enqueue_coordinated(&jobs, &columns).await?;
    let new = stored.jobs.iter().flatten().filter(|job| job.is_new()).count();
    writer.metrics.enqueued.inc_by(new as u64);
    writer.dispatch.wakeups(&stored.wakeups);

    let mut rest = &stored.jobs[..];
    let mut answers = Vec::with_capacity(requests.len());
    for request in requests {
        let (mine, others) = rest.split_at(request.jobs.len().min(rest.len()));
        rest = others;
        let enqueued: Option<Vec<Enqueued>> = mine.iter().copied().collect();
        answers.push(match (enqueued, &request.request) {
            (Some(enqueued), _) => Ok(enqueued),
            (None, Some(key)) => {
                let repeated = writer.store.repeated_requests(&[key.key.as_str()]).await?;
                let purged = || {
                    Err(Error::Unavailable(
                        "the first call with this request_key was just purged; send it again".into(),
                    ))
                };
                repeat(key, &repeated).unwrap_or_else(purged)
            }
            (None, None) => Err(Error::Internal("a request without a key counted as a repeat".into())),
        });
    }
    Ok(answers)
}

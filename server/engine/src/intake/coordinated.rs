//! Requests with jobs whose options need coordination: key policies, stages, dependencies, limits, fair keys.

use howdah_core::{error::Error, job::Enqueued};

use super::{Pending, Writer, keyed::repeat};
use crate::store::{KeyedJob, RequestColumns, StoreError};

/// Writes the requests in one statement.
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
                        "the record of the first call with this request_key was just deleted; send the request again"
                            .into(),
                    ))
                };
                repeat(key, &repeated).unwrap_or_else(purged)
            }
            (None, None) => {
                Err(Error::Internal("bug: a request without a request_key was answered as a duplicate".into()))
            }
        });
    }
    Ok(answers)
}

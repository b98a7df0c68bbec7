//! Requests whose jobs need more than an insert: with job keys or start times; with options that need coordination (key
//! policies, stages, dependencies, limits, fair keys); and requests that repeat an earlier one.

use std::{collections::HashMap, time::Duration};

use howdah_core::{
    error::Error,
    job::{EnqueueOutcome, Enqueued, Ready, RequestKey, TypeId},
};

use super::{Pending, Writer, rounds::Answers};
use crate::store::{FirstRequests, KeyedJob, KeyedOutcome, KeyedTransaction, RequestColumns, StoreError};

/// Writes the requests in one statement.
pub(super) async fn write_coordinated(
    writer: &Writer,
    requests: &[Pending],
) -> Result<Vec<Result<Vec<Enqueued>, Error>>, StoreError> {
    let (jobs, columns) = numbered(requests);
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
            (None, Some(key)) => repeat(key, &writer.store.repeated_requests(&[key.key.as_str()]).await?)
                .unwrap_or_else(|| Err(request_forgotten())),
            (None, None) => {
                Err(Error::Internal("bug: a request without a request_key was answered as a duplicate".into()))
            }
        });
    }
    Ok(answers)
}

/// Returns the jobs of the requests, each with the number of its request, and the idempotent requests.
fn numbered(requests: &[Pending]) -> (Vec<KeyedJob<'_>>, RequestColumns<'_>) {
    let (mut jobs, mut columns) = (Vec::new(), RequestColumns::default());
    for (request_no, request) in (0..).zip(requests) {
        columns.push(request_no, request.request.as_ref());
        jobs.extend(request.jobs.iter().map(|job| KeyedJob { plain: job.as_plain(), request_no }));
    }
    (jobs, columns)
}

/// Writes requests without options that need coordination in one transaction.
pub(super) async fn write_keyed(writer: &Writer, requests: &[Pending]) -> Result<Answers, StoreError> {
    let (jobs, columns) = numbered(requests);
    let mut transaction = writer.store.enqueue_keyed(&jobs, &columns).await?;
    let answers = match decide(&mut transaction, requests, &jobs).await {
        Ok(answers) => answers,
        Err(error) => {
            transaction.roll_back().await;
            return Err(error);
        }
    };
    if answers.iter().any(Option::is_none) {
        // A holder has ended meanwhile. Requests are atomic, so all are rolled back and start over, one at a time.
        transaction.roll_back().await;
        let (types, keys) = keys_of(jobs.iter());
        writer.store.free_held_keys(&types, &keys).await?;
        return Ok(requests.iter().map(|_| None).collect());
    }
    let outcomes: Vec<KeyedOutcome> = transaction.stored.jobs.iter().map(|(_, outcome)| *outcome).collect();
    let now_us = transaction.stored.now_us;
    transaction.commit().await?;
    announce(writer, &jobs, &outcomes, now_us);
    Ok(answers)
}

async fn decide(
    transaction: &mut KeyedTransaction<'_>,
    requests: &[Pending],
    jobs: &[KeyedJob<'_>],
) -> Result<Answers, StoreError> {
    let stored = transaction.stored.jobs.clone();
    let holders = key_holders(transaction, jobs, &stored).await?;
    let repeated = repeated(transaction, requests, &stored).await?;
    let mut answers = Vec::with_capacity(requests.len());
    let mut rest = &stored[..];
    for request in requests {
        let (mine, others) = rest.split_at(request.jobs.len());
        rest = others;
        let is_repeat = mine.first().is_some_and(|(_, outcome)| *outcome == KeyedOutcome::RepeatedRequest);
        let answer = match &request.request {
            Some(key) if is_repeat => repeat(key, &repeated),
            _ => fresh(request, mine, &holders).map(Ok),
        };
        if let (Some(Ok(enqueued)), Some(key), false) = (&answer, &request.request, is_repeat)
            && enqueued.iter().zip(mine).any(|(job, (id, _))| job.id != *id)
        {
            let ids: Vec<i64> = enqueued.iter().map(|job| job.id).collect();
            transaction.amend(&key.key, &ids).await?;
        }
        answers.push(answer);
    }
    Ok(answers)
}

/// Answers a request whose request key was used before: with the job ids of the first call, or with an error if that
/// call had other jobs.
pub(crate) fn repeat(key: &RequestKey, repeated: &FirstRequests) -> Option<Result<Vec<Enqueued>, Error>> {
    // The request counts as new if the row of its key expired between the insert and this read.
    let (hash, ids) = repeated.get(&key.key)?;
    if hash[..] != key.body_hash[..] {
        return Some(Err(Error::RequestKeyReused(RequestKey::given(&key.key).to_owned())));
    }
    Some(Ok(ids.iter().map(|&id| Enqueued { id, outcome: EnqueueOutcome::Repeated }).collect()))
}

/// Error for a repeated request whose first call was deleted between two statements.
pub(crate) fn request_forgotten() -> Error {
    Error::Unavailable(
        "the record of the first call with this request_key was just deleted; send the request again".into(),
    )
}

fn fresh(
    request: &Pending,
    mine: &[(i64, KeyedOutcome)],
    holders: &HashMap<(TypeId, String), i64>,
) -> Option<Vec<Enqueued>> {
    let answer = request.jobs.iter().zip(mine).map(|(job, (id, outcome))| match outcome {
        KeyedOutcome::KeyHeld => {
            let key = job.job.key.clone().unwrap_or_default();
            holders.get(&(job.type_id, key)).map(|&id| Enqueued { id, outcome: EnqueueOutcome::Kept })
        }
        _ => Some(Enqueued::new(*id)),
    });
    answer.collect()
}

async fn key_holders(
    transaction: &mut KeyedTransaction<'_>,
    jobs: &[KeyedJob<'_>],
    stored: &[(i64, KeyedOutcome)],
) -> Result<HashMap<(TypeId, String), i64>, StoreError> {
    let held = jobs.iter().zip(stored).filter(|(_, (_, outcome))| *outcome == KeyedOutcome::KeyHeld);
    let (types, keys) = keys_of(held.map(|(job, _)| job));
    if keys.is_empty() { Ok(HashMap::new()) } else { transaction.key_holders(&types, &keys).await }
}

/// Returns the keys of jobs with their task types.
fn keys_of<'a>(jobs: impl Iterator<Item = &'a KeyedJob<'a>>) -> (Vec<TypeId>, Vec<&'a str>) {
    jobs.filter_map(|job| Some((job.plain.type_id, job.plain.job.key.as_deref()?))).unzip()
}

async fn repeated(
    transaction: &mut KeyedTransaction<'_>,
    requests: &[Pending],
    stored: &[(i64, KeyedOutcome)],
) -> Result<FirstRequests, StoreError> {
    if stored.iter().all(|(_, outcome)| *outcome != KeyedOutcome::RepeatedRequest) {
        return Ok(HashMap::new());
    }
    let keys: Vec<&str> = requests.iter().filter_map(|r| r.request.as_ref()).map(|k| k.key.as_str()).collect();
    transaction.repeated(&keys).await
}

/// Counts the committed jobs, and reports them to dispatch.
fn announce(writer: &Writer, jobs: &[KeyedJob<'_>], outcomes: &[KeyedOutcome], now_us: i64) {
    let mut soonest: Option<i64> = None;
    let mut ready = Vec::new();
    let mut stored = 0;
    for (job, outcome) in jobs.iter().zip(outcomes) {
        match outcome {
            KeyedOutcome::Ready => {
                stored += 1;
                let lowest_rank = job.plain.rank_base + now_us;
                ready.push(Ready { type_id: job.plain.type_id, lowest_rank, jobs: 1 });
            }
            KeyedOutcome::Scheduled(us) => {
                stored += 1;
                soonest = Some(soonest.map_or(*us, |s| s.min(*us)));
            }
            KeyedOutcome::KeyHeld | KeyedOutcome::RepeatedRequest => {}
        }
    }
    writer.metrics.enqueued.inc_by(stored);
    writer.dispatch.ready(ready.into_iter());
    if let Some(us) = soonest {
        writer.wake.due_in(Duration::from_micros(us.max(0) as u64));
    }
}

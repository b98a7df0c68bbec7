//! `WaitJobs`: waits for jobs, and streams each job when it has ended.

use std::{collections::HashMap, time::Duration};

use futures::{StreamExt as _, stream::select_all};
use howdah_engine::operate::{Ended, WaitingCaller, wait::READ_TIMEOUT};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, codegen::BoxStream};

use crate::api::{
    authenticate::counted,
    end::End,
    verbs::{Gateway, prelude::*},
};

pub(in crate::api::verbs) const RULE: Rule = Rule::Types(Operation::Read);
/// Maximum wait of a `WaitJobs` request that has no timeout.
pub(crate) const WAIT: Duration = Duration::from_mins(1);
pub(crate) const LONGEST_WAIT: Duration = Duration::from_hours(24);

/// Checks a `WaitJobs` request. Returns the job ids, and how long the call waits for the jobs.
pub(in crate::api::verbs) fn check(
    request: v1::WaitJobsRequest,
    limits: &ClusterSettings,
) -> Result<(Vec<i64>, Duration), Error> {
    numbers::entries("ids", request.ids.len(), 1..=limits.batch)?;
    let timeout = time::optional("timeout", request.timeout, &(Duration::ZERO..=LONGEST_WAIT))?;
    Ok((request.ids, timeout.unwrap_or(WAIT)))
}

impl Gateway {
    pub(in crate::api::verbs) async fn wait_jobs(
        &self,
        request: Request<v1::WaitJobsRequest>,
    ) -> Result<Response<BoxStream<v1::WaitJobsResponse>>, Status> {
        let (call, message) = Call::open(self, Rpc::WaitJobs, request)?;
        if call.stores.only().is_some() {
            return Ok(Response::new(in_store(&call, message).await?));
        }
        let moved = call.moved(&message.ids).await?;
        let ids = message.ids.iter().map(|id| moved.get(id).copied().unwrap_or(*id)).collect();
        // Map from the current ids of moved jobs to the ids that the caller sent.
        let old: HashMap<i64, i64> = moved.into_iter().map(|(old, new)| (new, old)).collect();
        let by_store = call.by_store(ids, |id| *id).into_iter();
        // All stores are looked up first, so that the call fails for an unreachable store before it waits.
        let parts = by_store.map(|(name, ids)| Ok((call.at(call.broker_named(&name)?), ids)));
        let mut streams = Vec::new();
        for (part, ids) in parts.collect::<Result<Vec<_>, Error>>()? {
            streams.push(in_store(&part, v1::WaitJobsRequest { ids, ..message }).await?);
        }
        if streams.is_empty() {
            // There are no ids. The primary store rejects the request.
            return Ok(Response::new(in_store(&call, message).await?));
        }
        let known = move |mut answer: Result<v1::WaitJobsResponse, Status>| {
            if let Ok(v1::WaitJobsResponse { job: Some(job) }) = &mut answer
                && let Some(id) = old.get(&job.id)
            {
                job.id = *id;
            }
            answer
        };
        Ok(Response::new(select_all(streams).map(known).boxed()))
    }
}

/// Waits for the jobs of a request, which are all in one store.
async fn in_store(call: &Call, request: v1::WaitJobsRequest) -> Result<BoxStream<v1::WaitJobsResponse>, Error> {
    let (ids, timeout) = check(request, &call.broker.cluster())?;
    let caller = call.caller.clone();
    let hidden = permit::foreign(&call.broker, &caller, Operation::Read, &ids).await?;
    let (answers, ended) = mpsc::channel(1);
    let (operator, end) = (call.broker.operator.clone(), End::new(&caller, &call.stopping));
    let open = caller.open_stream()?;
    let accounts = &call.peer.accounts;
    let to =
        WaitingCaller { answers: answers.clone(), account: accounts.waits.clone(), job_quota: accounts.waited.clone() };
    tokio::spawn(async move {
        tokio::select! {
            () = operator.wait_jobs(ids, hidden, timeout, to) => {}
            error = end.reached("call another one") => {
                // The send has a time limit, because the client may not have read the previous answer yet.
                let _ = answers.send_timeout(Ended { job: Err(error), room: None }, READ_TIMEOUT).await;
            }
        }
    });
    // Keeps the memory reservation of a message until the transport polls for the next one, because only then is the message
    // sent.
    let answers = futures::stream::unfold((ended, caller, None), |(mut ended, caller, sent)| async move {
        drop(sent);
        let Ended { job, room } = ended.recv().await?;
        let job = job.and_then(|job| {
            let id = job.id;
            permit::seen(&caller, job).ok_or_else(|| permit::no_job(id))
        });
        let answer = job.map(|job| v1::WaitJobsResponse { job: Some(render::job(job)) }).map_err(Status::from);
        Some((answer, (ended, caller, room)))
    });
    Ok(counted(answers, open))
}

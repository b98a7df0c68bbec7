//! `EnqueueJobs`: stores jobs in one transaction.

use std::time::Instant;

use howdah_engine::broker::SharedBroker;

use crate::api::{
    check,
    metadata::{deadline, give_trace_context},
    pace,
    pipeline::Storing,
    verbs::{
        prelude::*,
        router::{common_store, kinds},
    },
};

impl Verb for EnqueueJobs {
    const RULE: Rule = Rule::Types(Operation::Enqueue);

    type Args = v1::EnqueueJobsRequest;

    /// Checks nothing: [`place`] checks the jobs, after the rate limit.
    fn check(request: v1::EnqueueJobsRequest, _: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        Ok(request)
    }

    async fn run(call: &mut Call, mut request: v1::EnqueueJobsRequest) -> Result<v1::EnqueueJobsResponse, Error> {
        let deadline = deadline(&call.metadata);
        give_trace_context(call.metadata.as_ref(), &mut request.jobs);
        let (broker, caller) = (call.broker.clone(), call.caller.clone());
        let jobs = enqueue(broker, caller, request.jobs, request.request_key, deadline).await?;
        Ok(v1::EnqueueJobsResponse { jobs })
    }

    async fn route(call: &Call, request: v1::EnqueueJobsRequest) -> Answer<Self> {
        let broker = common_store(&call.stores, &call.metadata, &call.caller, &kinds(&request.jobs)).await?;
        call.in_store::<Self>(&broker, request).await
    }
}

/// Checks and stores the jobs of one gRPC or HTTP request.
pub(crate) async fn enqueue(
    broker: SharedBroker,
    caller: Caller,
    jobs: Vec<v1::NewJob>,
    request_key: String,
    deadline: Option<Instant>,
) -> Result<Vec<v1::EnqueuedJob>, Error> {
    pace::check(&caller, &jobs)?;
    place(broker, caller, jobs, request_key, deadline).await.await
}

/// Checks one request of a call or a pipeline, and queues its jobs to be stored. The returned future waits until the jobs are
/// stored.
pub(super) async fn place(
    broker: SharedBroker,
    caller: Caller,
    jobs: Vec<v1::NewJob>,
    request_key: String,
    deadline: Option<Instant>,
) -> Storing {
    let placed = async {
        let (jobs, request) = check::enqueue(jobs, request_key, &broker.cluster())?;
        permit::enqueue(&broker, &caller, &jobs).await?;
        let request = request.map(|request| request.for_principal(caller.principal()));
        broker.intake.enqueue(jobs, request, deadline, caller.principal()).await
    };
    let placed = placed.await;
    Box::pin(async {
        let enqueued = placed?.stored().await?;
        Ok(enqueued.into_iter().map(render::enqueued).collect())
    })
}

//! `StreamEnqueue`: a stream of enqueue requests, answered in order.

use std::{future::ready, sync::Arc};

use howdah_engine::broker::SharedBroker;
use tonic::{Request, Response, Status, Streaming, codegen::BoxStream};

use crate::api::{
    authenticate::counted,
    end::End,
    pace,
    pipeline::{Bounds, InFlight, Storing, pipeline},
    verbs::{
        Gateway,
        jobs::enqueue::place,
        prelude::*,
        router::{common_store, kinds},
    },
};

pub(in crate::api::verbs) const RULE: Rule = Rule::Types(Operation::Enqueue);

impl Gateway {
    /// Serves a `StreamEnqueue` call. The limits and the memory budget of the primary store apply.
    #[allow(clippy::unused_async, reason = "the generated trait has async methods")]
    pub(in crate::api::verbs) async fn stream_enqueue(
        &self,
        request: Request<Streaming<v1::StreamEnqueueRequest>>,
    ) -> Result<Response<BoxStream<v1::StreamEnqueueResponse>>, Status> {
        let (call, requests) = Call::open(self, Rpc::StreamEnqueue, request)?;
        if call.stores.only().is_none() {
            // An unknown store name ends the call at once, instead of failing each request.
            call.named_store()?;
        }
        let bounds = Bounds::new(&call.broker.config().limits);
        let in_flight = InFlight::new(&call.broker.answers, &call.peer.accounts.answers);
        let (open, end) = (call.caller.open_stream()?, End::new(&call.caller, &call.stopping));
        // In an `Arc`, because copying the call for each small request costs a tenth of the throughput.
        let call = Arc::new(call);
        let answers = pipeline(requests, (bounds, in_flight), end, move |request| one(call.clone(), request));
        Ok(Response::new(counted(answers, open)))
    }
}

/// Waits until the rate limits of the caller allow one request of a pipeline, and queues it.
#[allow(clippy::async_yields_async, reason = "one future queues a request and returns another future that stores it")]
async fn one(call: Arc<Call>, request: v1::StreamEnqueueRequest) -> Storing {
    if let Err(exceeded) = pace::take(&call.caller, &request.jobs)
        && let Err(error) = pace::wait(&call.caller, &request.jobs, exceeded, &call.stopping).await
    {
        return refused(error);
    }
    match store(&call, &request.jobs).await {
        Ok(broker) => place(broker, call.caller.clone(), request.jobs, request.request_key, None).await,
        Err(error) => refused(error),
    }
}

async fn store(call: &Call, jobs: &[v1::NewJob]) -> Result<SharedBroker, Error> {
    // A stream may outlive the list of stores at its start.
    let stores = call.all_stores.now();
    match stores.only() {
        Some(only) => Ok(only.clone()),
        None => common_store(&stores, &call.metadata, &call.caller, &kinds(jobs)).await,
    }
}

fn refused(error: Error) -> Storing {
    Box::pin(ready(Err(error)))
}

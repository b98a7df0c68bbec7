//! `StartBulk`: starts a bulk operation.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Limits},
};
use howdah_engine::{
    access::{Operation, Rule},
    operate::bulk::StartBulkQuery,
};
use howdah_proto::{Rpc, v1};

use super::{complete, in_store, of_spec, permitted};
use crate::api::{
    check::{self, text},
    pace, render,
    verbs::{Answer, Call, Verb},
};

/// The call `StartBulk`.
pub(crate) struct StartBulk;

impl Verb for StartBulk {
    const RPC: Rpc = Rpc::StartBulk;
    const RULE: Rule = Rule::Types(Operation::Operate);

    type Request = v1::StartBulkRequest;
    type Response = v1::StartBulkResponse;
    type Args = v1::StartBulkRequest;

    /// Checks nothing. `run` checks the request after [`complete`] has filled in the task type of an undo.
    fn check(request: v1::StartBulkRequest, _: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        Ok(request)
    }

    async fn run(call: &mut Call, mut request: v1::StartBulkRequest) -> Result<v1::StartBulkResponse, Error> {
        let by = call.by()?;
        request.spec = complete(call, request.spec).await?;
        let query = check(request, &call.broker.cluster())?;
        permitted(&call.caller, &query.spec)?;
        pace::may(&call.caller)?;
        let bulk = Some(render::bulk(call.broker.operator.start_bulk(&query, &by).await?));
        Ok(v1::StartBulkResponse { bulk })
    }

    async fn route(call: &Call, request: v1::StartBulkRequest) -> Answer<Self> {
        let broker = of_spec(call, request.spec.as_ref()).await?;
        in_store::<Self>(call, broker, request, |answer| &mut answer.bulk).await
    }
}

/// Checks a request to start a bulk operation. The task type of an undo must be filled in already.
pub(in crate::api::verbs) fn check(
    request: v1::StartBulkRequest,
    cluster: &ClusterSettings,
) -> Result<StartBulkQuery, Error> {
    let spec = check::bulk_spec(request.spec, cluster)?;
    let request_key = text::optional("request_key", request.request_key, cluster.key_bytes)?;
    Ok(StartBulkQuery { spec, request_key })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_key_over_200_bytes_is_refused() {
        let spec = v1::BulkSpec { operation: 2, task_type: "a".into(), ..v1::BulkSpec::default() };
        let start = v1::StartBulkRequest { spec: Some(spec), request_key: "k".repeat(201) };
        assert_eq!(check(start, &ClusterSettings::DEFAULT).unwrap_err().field(), Some("request_key"));
    }
}

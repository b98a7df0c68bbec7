//! `GetBulk`: the progress of a bulk operation.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Limits},
};
use howdah_engine::access::{Operation, Rule};
use howdah_proto::{Rpc, v1};

use super::{in_store, of_bulk, own};
use crate::api::{
    render,
    verbs::{Answer, Call, Verb},
};

/// The call `GetBulk`.
pub(crate) struct GetBulk;

impl Verb for GetBulk {
    const RPC: Rpc = Rpc::GetBulk;
    const RULE: Rule = Rule::Types(Operation::Read);

    type Request = v1::GetBulkRequest;
    type Response = v1::GetBulkResponse;
    type Args = i64;

    fn check(request: v1::GetBulkRequest, _: &ClusterSettings, _: &Limits) -> Result<i64, Error> {
        Ok(request.id)
    }

    async fn run(call: &mut Call, id: i64) -> Result<v1::GetBulkResponse, Error> {
        Ok(v1::GetBulkResponse { bulk: Some(render::bulk(own(call, Operation::Read, id).await?)) })
    }

    async fn route(call: &Call, request: v1::GetBulkRequest) -> Answer<Self> {
        let broker = of_bulk(call, request.id).await?;
        in_store::<Self>(call, broker, request, |answer| &mut answer.bulk).await
    }
}

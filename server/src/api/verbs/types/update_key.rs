//! `UpdateLimitKey`: replaces the settings of one limit key.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Limits, TaskTypeName},
};
use howdah_engine::access::{Caller, Operation, Rule};
use howdah_proto::{Rpc, v1};

use super::{pause_key::key, update::most};
use crate::api::{
    check::task_type,
    verbs::{Answer, Call, Merge, Verb},
};

/// The call `UpdateLimitKey`.
pub(crate) struct UpdateLimitKey;

impl Verb for UpdateLimitKey {
    const RPC: Rpc = Rpc::UpdateLimitKey;
    const RULE: Rule = Rule::Types(Operation::Operate);

    type Request = v1::UpdateLimitKeyRequest;
    type Response = v1::UpdateLimitKeyResponse;
    /// Checked request: the task type, the limit key, and the own limit of the key.
    type Args = (TaskTypeName, String, Option<i32>);

    fn check(request: v1::UpdateLimitKeyRequest, cluster: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        Ok((
            task_type("task_type", &request.task_type)?,
            key(request.limit_key, cluster)?,
            most("max_running", request.max_running)?,
        ))
    }

    fn permit(caller: &Caller, (task_type, ..): &Self::Args) -> Result<(), Error> {
        caller.check(Operation::Operate, task_type)
    }

    async fn run(
        call: &mut Call,
        (task_type, key, max_running): Self::Args,
    ) -> Result<v1::UpdateLimitKeyResponse, Error> {
        let by = call.by()?;
        call.broker.operator.limit_key(task_type, &key, max_running, &by).await?;
        Ok(v1::UpdateLimitKeyResponse {})
    }

    async fn route(call: &Call, request: v1::UpdateLimitKeyRequest) -> Answer<Self> {
        let stores = call.concerned_or_home(&request.task_type).await?;
        call.change::<Self>(stores, request).await
    }
}

impl Merge for UpdateLimitKey {
    fn merge(_: &mut v1::UpdateLimitKeyResponse, _: v1::UpdateLimitKeyResponse, _: &str) {}
}

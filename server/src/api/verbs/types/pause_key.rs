//! `PauseLimitKey` and `ResumeLimitKey`: stop and continue the jobs of a limit key.

use std::time::Duration;

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Limits, TaskTypeName},
};
use howdah_engine::access::{Caller, Operation, Rule};
use howdah_proto::{Rpc, v1};

use crate::api::{
    check::{task_type, text, time},
    verbs::{Answer, Call, Merge, Verb},
};

/// The call `PauseLimitKey`.
pub(crate) struct PauseLimitKey;

/// A limit key to pause, and the length of the pause.
#[derive(Clone, Debug)]
pub(crate) struct PauseKey {
    /// The task type.
    pub(crate) task_type: TaskTypeName,
    /// The key.
    pub(crate) key: String,
    /// Duration of the pause. `None` pauses the key until an operator resumes it.
    pub(crate) duration: Option<Duration>,
}

impl Verb for PauseLimitKey {
    const RPC: Rpc = Rpc::PauseLimitKey;
    const RULE: Rule = Rule::Types(Operation::Operate);

    type Request = v1::PauseLimitKeyRequest;
    type Response = v1::PauseLimitKeyResponse;
    type Args = PauseKey;

    fn check(request: v1::PauseLimitKeyRequest, cluster: &ClusterSettings, _: &Limits) -> Result<PauseKey, Error> {
        Ok(PauseKey {
            task_type: task_type("task_type", &request.task_type)?,
            key: key(request.limit_key, cluster)?,
            duration: time::optional("duration", request.duration, &(time::MILLISECOND..=cluster.max_delay))?,
        })
    }

    fn permit(caller: &Caller, pause: &PauseKey) -> Result<(), Error> {
        caller.check(Operation::Operate, &pause.task_type)
    }

    async fn run(call: &mut Call, pause: PauseKey) -> Result<v1::PauseLimitKeyResponse, Error> {
        let by = call.by()?;
        call.broker.operator.pause_limit_key(pause.task_type, &pause.key, pause.duration, &by).await?;
        Ok(v1::PauseLimitKeyResponse {})
    }

    async fn route(call: &Call, request: v1::PauseLimitKeyRequest) -> Answer<Self> {
        let stores = call.concerned_or_home(&request.task_type).await?;
        call.change::<Self>(stores, request).await
    }
}

impl Merge for PauseLimitKey {
    fn merge(_: &mut v1::PauseLimitKeyResponse, _: v1::PauseLimitKeyResponse, _: &str) {}
}

/// The call `ResumeLimitKey`.
pub(crate) struct ResumeLimitKey;

impl Verb for ResumeLimitKey {
    const RPC: Rpc = Rpc::ResumeLimitKey;
    const RULE: Rule = Rule::Types(Operation::Operate);

    type Request = v1::ResumeLimitKeyRequest;
    type Response = v1::ResumeLimitKeyResponse;
    type Args = (TaskTypeName, String);

    fn check(request: v1::ResumeLimitKeyRequest, cluster: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        Ok((task_type("task_type", &request.task_type)?, key(request.limit_key, cluster)?))
    }

    fn permit(caller: &Caller, (task_type, _): &Self::Args) -> Result<(), Error> {
        caller.check(Operation::Operate, task_type)
    }

    async fn run(call: &mut Call, (task_type, key): Self::Args) -> Result<v1::ResumeLimitKeyResponse, Error> {
        let by = call.by()?;
        call.broker.operator.resume_limit_key(&task_type, &key, &by).await?;
        Ok(v1::ResumeLimitKeyResponse {})
    }

    async fn route(call: &Call, request: v1::ResumeLimitKeyRequest) -> Answer<Self> {
        let stores = call.concerned(&request.task_type).await?;
        call.change::<Self>(stores, request).await
    }
}

impl Merge for ResumeLimitKey {
    fn merge(_: &mut v1::ResumeLimitKeyResponse, _: v1::ResumeLimitKeyResponse, _: &str) {}
}

/// Checks a limit key, which must not be empty.
pub(super) fn key(key: String, limits: &ClusterSettings) -> Result<String, Error> {
    text::optional("limit_key", key, limits.key_bytes)?
        .ok_or_else(|| Error::invalid("limit_key", format!("is empty; 1 to {} bytes are allowed", limits.key_bytes)))
}

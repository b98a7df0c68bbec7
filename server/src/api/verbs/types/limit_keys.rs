//! Limit keys: `ListLimitKeys` with their waiting and running jobs, `UpdateLimitKey` for their settings, `PauseLimitKey` and
//! `ResumeLimitKey`.

use std::time::Duration;

use howdah_core::job::TaskTypeName;
use howdah_engine::store::LimitKeyView;

use super::update::most;
use crate::api::verbs::prelude::*;

pub(crate) const MAX_PAGE: usize = 1000;
pub(crate) const PAGE: usize = 100;

impl Verb for ListLimitKeys {
    const RULE: Rule = Rule::Types(Operation::Read);
    const ANSWER_BYTES: usize = answer::MEDIUM;

    /// Checked request: the task type, the last key of the previous page, and the page size.
    type Args = (TaskTypeName, String, usize);

    paged!(limit_keys, page_size);

    fn check(request: v1::ListLimitKeysRequest, _: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        Ok((
            task_type("task_type", &request.task_type)?,
            page_token::name(&request.page_token)?,
            numbers::page_size(request.page_size, PAGE, MAX_PAGE)?,
        ))
    }

    fn permit(caller: &Caller, (task_type, ..): &Self::Args) -> Result<(), Error> {
        caller.check(Operation::Read, task_type)
    }

    async fn run(call: &mut Call, (task_type, after, size): Self::Args) -> Result<v1::ListLimitKeysResponse, Error> {
        let keys = call.broker.operator.list_limit_keys(&task_type, &after, size).await?;
        let last = keys.last().filter(|_| keys.len() >= size);
        Ok(v1::ListLimitKeysResponse {
            next_page_token: last.map(|last| page_token::encode_name(&last.key)).unwrap_or_default(),
            limit_keys: keys.into_iter().map(limit_key).collect(),
        })
    }

    async fn route(call: &Call, request: v1::ListLimitKeysRequest) -> Answer<Self> {
        let stores = call.concerned(&request.task_type).await?;
        call.pages::<Self>(stores, request).await
    }
}

merged!(ListLimitKeys: of_store limit_keys);

fn limit_key(view: LimitKeyView) -> v1::LimitKey {
    v1::LimitKey {
        limit_key: view.key,
        waiting_count: view.waiting,
        running_count: view.running,
        paused_until: view.paused_until.map(render::time),
        paused: view.paused,
        max_running: view.max_running.map_or(0, |most| u32::try_from(most).unwrap_or_default()),
        store: String::new(),
    }
}

impl Verb for UpdateLimitKey {
    const RULE: Rule = Rule::Types(Operation::Operate);

    /// Checked request: the task type, the limit key, and the key's own limit.
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

merged!(UpdateLimitKey);

/// A limit key to pause, and the length of the pause.
#[derive(Clone, Debug)]
pub(crate) struct PauseKey {
    pub(crate) task_type: TaskTypeName,
    pub(crate) key: String,
    /// Duration of the pause. `None` pauses the key until an operator resumes it.
    pub(crate) duration: Option<Duration>,
}

impl Verb for PauseLimitKey {
    const RULE: Rule = Rule::Types(Operation::Operate);

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

merged!(PauseLimitKey);

impl Verb for ResumeLimitKey {
    const RULE: Rule = Rule::Types(Operation::Operate);

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

merged!(ResumeLimitKey);

/// Checks a limit key, which must not be empty.
pub(super) fn key(key: String, limits: &ClusterSettings) -> Result<String, Error> {
    text::optional("limit_key", key, limits.key_bytes)?
        .ok_or_else(|| Error::invalid("limit_key", format!("is empty; 1 to {} bytes are allowed", limits.key_bytes)))
}

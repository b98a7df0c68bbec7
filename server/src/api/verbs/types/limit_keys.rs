//! `ListLimitKeys`: the limit keys of a type, with their waiting and running jobs.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Limits, TaskTypeName},
};
use howdah_engine::{
    access::{Caller, Operation, Rule},
    store::LimitKeyView,
};
use howdah_proto::{Rpc, v1};

use crate::api::{
    answer,
    check::{numbers, task_type},
    page_token,
    render::time,
    verbs::{Answer, Call, Merge, Verb, paged},
};

pub(crate) const MAX_PAGE: usize = 1000;
pub(crate) const PAGE: usize = 100;

/// The call `ListLimitKeys`.
pub(crate) struct ListLimitKeys;

impl Verb for ListLimitKeys {
    const RPC: Rpc = Rpc::ListLimitKeys;
    const RULE: Rule = Rule::Types(Operation::Read);

    type Request = v1::ListLimitKeysRequest;
    type Response = v1::ListLimitKeysResponse;
    /// Checked request: the task type, the last key of the previous page, and the page size.
    type Args = (TaskTypeName, String, usize);

    paged!(limit_keys, page_size);

    fn check(request: v1::ListLimitKeysRequest, _: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        Ok((
            task_type("task_type", &request.task_type)?,
            page_token::limit_key(&request.page_token)?,
            numbers::page_size(request.page_size, PAGE, MAX_PAGE)?,
        ))
    }

    fn permit(caller: &Caller, (task_type, ..): &Self::Args) -> Result<(), Error> {
        caller.check(Operation::Read, task_type)
    }

    fn answer_bytes(_: &Self::Args, _: &ClusterSettings) -> usize {
        answer::MEDIUM
    }

    async fn run(call: &mut Call, (task_type, after, size): Self::Args) -> Result<v1::ListLimitKeysResponse, Error> {
        let keys = call.broker.operator.list_limit_keys(&task_type, &after, size).await?;
        let last = keys.last().filter(|_| keys.len() >= size);
        Ok(v1::ListLimitKeysResponse {
            next_page_token: last.map(|last| page_token::encode_limit_key(&last.key)).unwrap_or_default(),
            limit_keys: keys.into_iter().map(limit_key).collect(),
        })
    }

    async fn route(call: &Call, request: v1::ListLimitKeysRequest) -> Answer<Self> {
        let stores = call.concerned(&request.task_type).await?;
        call.pages::<Self>(stores, request).await
    }
}

impl Merge for ListLimitKeys {
    fn merge(all: &mut v1::ListLimitKeysResponse, part: v1::ListLimitKeysResponse, store: &str) {
        all.limit_keys.extend(part.limit_keys.into_iter().map(|key| v1::LimitKey { store: store.to_owned(), ..key }));
    }
}

fn limit_key(view: LimitKeyView) -> v1::LimitKey {
    v1::LimitKey {
        limit_key: view.key,
        waiting_count: view.waiting,
        running_count: view.running,
        paused_until: view.paused_until.map(time),
        paused: view.paused,
        max_running: view.max_running.map_or(0, |most| u32::try_from(most).unwrap_or_default()),
        store: String::new(),
    }
}

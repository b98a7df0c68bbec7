//! `ListSchedules`: the schedules whose jobs the caller may read.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Limits},
};
use howdah_engine::{
    access::{Operation, Rule},
    store::SchedulePage,
};
use howdah_proto::{Rpc, v1};

use crate::api::{
    answer,
    check::numbers,
    page_token, permit, render,
    verbs::{Answer, Call, Merge, Verb, paged},
};

pub(crate) const PAGE: usize = 100;
pub(crate) const MAX_PAGE: usize = 1000;

/// The call `ListSchedules`.
pub(crate) struct ListSchedules;

impl Verb for ListSchedules {
    const RPC: Rpc = Rpc::ListSchedules;
    const RULE: Rule = Rule::Types(Operation::Read);

    type Request = v1::ListSchedulesRequest;
    type Response = v1::ListSchedulesResponse;
    /// Checked request: the last name of the previous page, and the page size.
    type Args = (String, usize);

    paged!(schedules, page_size);

    fn check(request: v1::ListSchedulesRequest, _: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        let after = page_token::schedule(&request.page_token)?;
        Ok((after, numbers::page_size(request.page_size, PAGE, MAX_PAGE)?))
    }

    fn answer_bytes(_: &Self::Args, cluster: &ClusterSettings) -> usize {
        answer::page_bytes(0, cluster, true)
    }

    async fn run(call: &mut Call, (after, page_size): Self::Args) -> Result<v1::ListSchedulesResponse, Error> {
        let page = visible(call, after, page_size).await?;
        let last = page.schedules.last().filter(|_| page.more);
        let next_page_token = last.map(|last| page_token::encode_schedule(&last.spec.name)).unwrap_or_default();
        let seen = |schedule| render::schedule(permit::seen_schedule(&call.caller, schedule), 1);
        let schedules = page.schedules.into_iter().map(seen).collect();
        Ok(v1::ListSchedulesResponse { schedules, next_page_token })
    }

    async fn route(call: &Call, request: v1::ListSchedulesRequest) -> Answer<Self> {
        call.pages::<Self>(call.concerned("").await?, request).await
    }
}

impl Merge for ListSchedules {
    fn merge(all: &mut v1::ListSchedulesResponse, part: v1::ListSchedulesResponse, store: &str) {
        let of_store = |schedule| v1::Schedule { store: store.to_owned(), ..schedule };
        all.schedules.extend(part.schedules.into_iter().map(of_store));
    }
}

/// Returns a page of the schedules that the caller may read. The last one is always readable for the caller, because the next
/// page token contains its name.
async fn visible(call: &Call, mut after: String, page_size: usize) -> Result<SchedulePage, Error> {
    let operator = &call.broker.operator;
    if call.caller.may_everywhere(Operation::Read) {
        return operator.list_schedules(&after, page_size).await;
    }
    loop {
        let mut page = operator.list_schedules(&after, MAX_PAGE).await?;
        let last = page.schedules.last().map(|schedule| schedule.spec.name.clone());
        page.schedules.retain(|schedule| permit::may(&call.caller, Operation::Read, &schedule.spec.template.task_type));
        page.more |= page.schedules.len() > page_size;
        page.schedules.truncate(page_size);
        match last {
            Some(last) if page.more && page.schedules.is_empty() => after = last,
            _ => return Ok(page),
        }
    }
}

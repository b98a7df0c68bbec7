//! `ListBulks`: bulk operations, the newest first.

use howdah_core::{
    error::Error,
    job::{Bulk, ClusterSettings, Limits, TaskTypeName},
};
use howdah_engine::access::{Caller, Operation, Rule};
use howdah_proto::{Rpc, v1};

use crate::api::{
    answer,
    check::{numbers, optional_task_type},
    page_token, permit, render,
    verbs::{Answer, Call, Merge, Verb, paged},
};

pub(crate) const PAGE: usize = 100;
pub(crate) const MAX_PAGE: usize = 1_000;

/// The call `ListBulks`.
pub(crate) struct ListBulks;

/// A query for bulk operations.
#[derive(Clone, Debug)]
pub(crate) struct BulkQuery {
    /// Task type; `None` for all types.
    pub(crate) task_type: Option<TaskTypeName>,
    /// If true, lists only bulk operations that have not ended.
    pub(crate) open_only: bool,
    /// Page size.
    pub(crate) page_size: usize,
    /// Lists only bulk operations whose id is lower than this.
    pub(crate) before: i64,
}

impl Verb for ListBulks {
    const RPC: Rpc = Rpc::ListBulks;
    const RULE: Rule = Rule::Types(Operation::Read);

    type Request = v1::ListBulksRequest;
    type Response = v1::ListBulksResponse;
    type Args = BulkQuery;

    paged!(bulks, page_size);

    fn check(request: v1::ListBulksRequest, _: &ClusterSettings, _: &Limits) -> Result<BulkQuery, Error> {
        Ok(BulkQuery {
            task_type: optional_task_type("task_type", &request.task_type)?,
            open_only: request.open_only,
            page_size: numbers::page_size(request.page_size, PAGE, MAX_PAGE)?,
            before: page_token::bulk(&request.page_token)?.unwrap_or(i64::MAX),
        })
    }

    fn permit(caller: &Caller, query: &BulkQuery) -> Result<(), Error> {
        query.task_type.as_ref().map_or(Ok(()), |only| caller.check(Operation::Read, only))
    }

    fn answer_bytes(_: &BulkQuery, _: &ClusterSettings) -> usize {
        answer::MEDIUM
    }

    async fn run(call: &mut Call, query: BulkQuery) -> Result<v1::ListBulksResponse, Error> {
        let (bulks, next) = visible(call, query).await?;
        Ok(v1::ListBulksResponse {
            bulks: bulks.into_iter().map(render::bulk).collect(),
            next_page_token: next.map(page_token::encode_bulk).unwrap_or_default(),
        })
    }

    async fn route(call: &Call, request: v1::ListBulksRequest) -> Answer<Self> {
        let stores = call.concerned(&request.task_type).await?;
        call.pages::<Self>(stores, request).await
    }
}

impl Merge for ListBulks {
    fn merge(all: &mut v1::ListBulksResponse, part: v1::ListBulksResponse, store: &str) {
        all.bulks.extend(part.bulks.into_iter().map(|bulk| v1::Bulk { store: store.to_owned(), ..bulk }));
    }
}

/// Returns a page of the bulk operations that the caller may read. Also returns the id before which the next page starts.
async fn visible(call: &Call, query: BulkQuery) -> Result<(Vec<Bulk>, Option<i64>), Error> {
    let BulkQuery { task_type, open_only, page_size, mut before } = query;
    let name = task_type.as_ref().map(TaskTypeName::as_str);
    loop {
        let mut bulks = call.broker.operator.list_bulks(before, name, open_only, page_size).await?;
        let next = bulks.last().filter(|_| bulks.len() >= page_size).map(|last| last.id);
        bulks.retain(|bulk| permit::may(&call.caller, Operation::Read, bulk.spec.task_type.as_str()));
        match next {
            Some(last) if bulks.is_empty() => before = last,
            next => return Ok((bulks, next)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_page_size_and_an_invalid_page_token_are_refused() {
        let check = |request| ListBulks::check(request, &ClusterSettings::DEFAULT, &Limits::default());
        let list = v1::ListBulksRequest { page_size: -1, ..Default::default() };
        assert_eq!(check(list).unwrap_err().field(), Some("page_size"));
        let list = v1::ListBulksRequest { page_token: "x".into(), ..Default::default() };
        assert_eq!(check(list).unwrap_err().field(), Some("page_token"));
    }
}

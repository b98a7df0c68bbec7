//! `ListAudit`: entries of the audit log, the newest first.

use howdah_core::job::TaskTypeName;
use howdah_engine::{
    access::PRINCIPAL_BYTES,
    store::{AuditEntry, AuditQuery},
};

use crate::api::verbs::prelude::*;

pub(crate) const PAGE: usize = 100;
/// Maximum page size. Generated clients accept messages of 4 MiB, and an entry has at most about 5 KiB.
pub(crate) const MAX_PAGE: usize = 500;
/// Maximum length of an id in an audit entry, in bytes; the longest ids are limit keys.
const ID_BYTES: usize = 2_000;

impl Verb for ListAudit {
    const RULE: Rule = Rule::Everything(Operation::Admin);
    const READS: bool = true;
    const ANSWER_BYTES: usize = answer::MEDIUM;

    type Args = AuditQuery;

    paged!(entries, page_size);

    fn check(request: v1::ListAuditRequest, _: &ClusterSettings, _: &Limits) -> Result<AuditQuery, Error> {
        let v1::ListAuditRequest { since, until, principal, method, id, page_size, page_token, task_type } = request;
        let us = |field, time: Option<prost_types::Timestamp>| time.map(|time| time::at(field, time)).transpose();
        Ok(AuditQuery {
            since_us: us("since", since)?,
            until_us: us("until", until)?,
            after: page_token::numbers(&page_token)?.map(|[time_us, id]| (time_us, id)),
            principal: text::optional("principal", principal, PRINCIPAL_BYTES)?,
            method: text::optional("method", method, PRINCIPAL_BYTES)?,
            id: text::optional("id", id, ID_BYTES)?,
            // Not checked as a name, because entries of grants have patterns of types.
            task_type: text::optional("task_type", task_type, TaskTypeName::MAX_BYTES)?,
            at_most: i32::try_from(numbers::page_size(page_size, PAGE, MAX_PAGE)?).unwrap_or(i32::MAX),
        })
    }

    async fn run(call: &mut Call, query: AuditQuery) -> Result<v1::ListAuditResponse, Error> {
        let entries = call.broker.operator.list_audit(&query).await?;
        let last = entries.last().filter(|_| entries.len() >= query.at_most as usize);
        Ok(v1::ListAuditResponse {
            next_page_token: last.map(|last| page_token::encode([last.time_us, last.id])).unwrap_or_default(),
            entries: entries.into_iter().map(entry).collect(),
        })
    }

    async fn route(call: &Call, request: v1::ListAuditRequest) -> Answer<Self> {
        call.pages::<Self>(call.concerned("").await?, request).await
    }
}

merged!(ListAudit: of_store entries);

fn entry(entry: AuditEntry) -> v1::AuditEntry {
    v1::AuditEntry {
        time: Some(render::time(entry.time())),
        principal: entry.principal,
        broker: entry.broker.unwrap_or_default(),
        peer: entry.peer,
        method: entry.method,
        task_types: entry.types,
        count: entry.count,
        ids: entry.ids,
        reason: entry.reason,
        changes: entry.changes,
        store: String::new(),
    }
}

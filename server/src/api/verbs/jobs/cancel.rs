//! `CancelJobs`: cancels unfinished jobs by their ids or by a filter, and tells their workers.

use std::collections::{HashMap, HashSet};

use howdah_engine::operate::{CANCEL_STATES, Selection};

use crate::api::{
    check::job_filter::{no_token, selection},
    verbs::prelude::*,
};

impl Verb for CancelJobs {
    const RULE: Rule = Rule::Types(Operation::Operate);
    const ENTRY_BYTES: usize = 0;
    const ANSWER_BYTES: usize = answer::SHORT;

    type Args = Selection;

    paged!(cancelled_ids);

    fn check(request: v1::CancelJobsRequest, cluster: &ClusterSettings, _: &Limits) -> Result<Selection, Error> {
        if request.filter.is_some() {
            if !request.ids.is_empty() {
                return Err(Error::invalid("filter", "is set together with ids; set one of them"));
            }
            return selection(request.filter, &request.page_token, &CANCEL_STATES, cluster);
        }
        numbers::entries("ids", request.ids.len(), 1..=cluster.batch)?;
        no_token(&request.page_token)?;
        Ok(Selection::Ids(request.ids.into()))
    }

    async fn run(call: &mut Call, selection: Selection) -> Result<v1::CancelJobsResponse, Error> {
        let by = call.by()?;
        let selection = permit::own_selection(&call.broker, &call.caller, selection).await?;
        let (cancelled_ids, next) = call.broker.operator.cancel_jobs(selection, &by).await?;
        let next_page_token = next.map(page_token::encode_job).unwrap_or_default();
        Ok(v1::CancelJobsResponse { cancelled_ids, next_page_token })
    }

    async fn route(call: &Call, request: v1::CancelJobsRequest) -> Answer<Self> {
        let v1::JobFilter { ids, task_type, .. } = request.filter.clone().unwrap_or_default();
        if !task_type.is_empty() {
            return call.pages::<Self>(call.concerned(&task_type).await?, request).await;
        }
        let ids = if ids.is_empty() { request.ids.clone() } else { ids };
        let mut answer = call.split::<Self>(request.clone(), ids.clone(), with_ids).await?;
        // Also cancels jobs that have moved to other stores. The response has the ids that the caller sent.
        let done: HashSet<i64> = answer.get_ref().cancelled_ids.iter().copied().collect();
        let others: Vec<i64> = ids.into_iter().filter(|id| !done.contains(id)).collect();
        let moved = call.moved(&others).await?;
        if !moved.is_empty() {
            let old: HashMap<i64, i64> = moved.iter().map(|(old, new)| (*new, *old)).collect();
            let more = call.split::<Self>(request, moved.into_values().collect(), with_ids).await?.into_inner();
            let more = more.cancelled_ids.into_iter().map(|id| old.get(&id).copied().unwrap_or(id));
            answer.get_mut().cancelled_ids.extend(more);
        }
        Ok(answer)
    }
}

merged!(CancelJobs: cancelled_ids);

/// Returns a copy of the request with these job ids.
fn with_ids(request: &v1::CancelJobsRequest, ids: Vec<i64>) -> v1::CancelJobsRequest {
    match &request.filter {
        Some(filter) if !filter.ids.is_empty() => {
            v1::CancelJobsRequest { filter: Some(v1::JobFilter { ids, ..filter.clone() }), ..request.clone() }
        }
        _ => v1::CancelJobsRequest { ids, ..request.clone() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancel_names_1_to_10000_jobs_or_a_filter() {
        let check = |request| CancelJobs::check(request, &ClusterSettings::DEFAULT, &Limits::default());
        let cancel = |count| check(v1::CancelJobsRequest { ids: vec![-1; count], ..Default::default() });
        assert!(cancel(1).is_ok() && cancel(10_000).is_ok());
        for count in [0, 10_001] {
            assert_eq!(cancel(count).unwrap_err().field(), Some("ids"));
        }
        let filter = Some(v1::JobFilter { ids: vec![-1], ..Default::default() });
        let both = v1::CancelJobsRequest { ids: vec![1], filter, ..Default::default() };
        assert_eq!(check(both).unwrap_err().field(), Some("filter"));
    }
}

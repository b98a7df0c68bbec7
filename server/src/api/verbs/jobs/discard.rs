//! `DiscardJobs`: moves dead jobs to history.

use howdah_core::job::JobState;
use howdah_engine::operate::Selection;

use crate::api::{check::job_filter::selection, verbs::prelude::*};

impl Verb for DiscardJobs {
    const RULE: Rule = Rule::Types(Operation::Operate);
    const ENTRY_BYTES: usize = 0;
    const ANSWER_BYTES: usize = answer::SHORT;

    type Args = Selection;

    paged!(discarded_ids);

    fn check(request: v1::DiscardJobsRequest, cluster: &ClusterSettings, _: &Limits) -> Result<Selection, Error> {
        selection(request.filter, &request.page_token, &[JobState::Dead], cluster)
    }

    async fn run(call: &mut Call, selection: Selection) -> Result<v1::DiscardJobsResponse, Error> {
        let by = call.by()?;
        let selection = permit::own_selection(&call.broker, &call.caller, selection).await?;
        let (discarded_ids, next) = call.broker.operator.discard_jobs(selection, &by).await?;
        let next_page_token = next.map(page_token::encode_job).unwrap_or_default();
        Ok(v1::DiscardJobsResponse { discarded_ids, next_page_token })
    }

    async fn route(call: &Call, request: v1::DiscardJobsRequest) -> Answer<Self> {
        call.filtered::<Self>(request, |request| &mut request.filter).await
    }
}

merged!(DiscardJobs: discarded_ids);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dead_jobs_are_discarded() {
        let discard = |state| {
            let filter = Some(v1::JobFilter { task_type: "a".into(), state, ..Default::default() });
            let request = v1::DiscardJobsRequest { filter, ..Default::default() };
            DiscardJobs::check(request, &ClusterSettings::DEFAULT, &Limits::default())
        };
        assert!(discard(0).is_ok() && discard(5).is_ok());
        assert_eq!(discard(3).unwrap_err().field(), Some("filter.state"));
    }
}

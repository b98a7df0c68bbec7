//! `EndLeases`: ends the running attempts of jobs, so that other workers get them.

use howdah_core::job::{JobState, truncated};
use howdah_engine::operate::Selection;

use crate::api::{check::job_filter::selection, verbs::prelude::*};

impl Verb for EndLeases {
    const RULE: Rule = Rule::Types(Operation::Operate);
    const ENTRY_BYTES: usize = 0;
    const ANSWER_BYTES: usize = answer::SHORT;

    /// Checked request: the jobs, and the error text for their attempts.
    type Args = (Selection, Option<String>);

    paged!(ended_ids);

    fn check(request: v1::EndLeasesRequest, cluster: &ClusterSettings, limits: &Limits) -> Result<Self::Args, Error> {
        let selection = selection(request.filter, &request.page_token, &[JobState::Leased], cluster)?;
        Ok((selection, request.error.map(|error| truncated(&error, limits.error_bytes))))
    }

    async fn run(call: &mut Call, (selection, error): Self::Args) -> Result<v1::EndLeasesResponse, Error> {
        let by = call.by()?;
        let selection = permit::own_selection(&call.broker, &call.caller, selection).await?;
        let (ended_ids, next) = call.broker.operator.end_leases(selection, error.as_deref(), &by).await?;
        let next_page_token = next.map(page_token::encode_job).unwrap_or_default();
        Ok(v1::EndLeasesResponse { ended_ids, next_page_token })
    }

    async fn route(call: &Call, request: v1::EndLeasesRequest) -> Answer<Self> {
        call.filtered::<Self>(request, |request| &mut request.filter).await
    }
}

merged!(EndLeases: ended_ids);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_leases_of_leased_jobs_are_ended() {
        let end = |state| {
            let filter = Some(v1::JobFilter { task_type: "a".into(), state, ..Default::default() });
            let request = v1::EndLeasesRequest { filter, ..Default::default() };
            EndLeases::check(request, &ClusterSettings::DEFAULT, &Limits::default())
        };
        assert!(end(0).is_ok() && end(v1::JobState::Leased as i32).is_ok());
        assert_eq!(end(v1::JobState::Dead as i32).unwrap_err().field(), Some("filter.state"));
    }
}

//! `ReprioritizeJobs`: sets the priority of jobs that have not started.

use howdah_engine::operate::{REPRIORITIZE_STATES, Selection, TypeSelection};

use crate::api::{
    check::{
        job_filter::job_conditions,
        job_filter::{no_token, of_worker},
        new_job,
    },
    verbs::prelude::*,
};

impl Verb for ReprioritizeJobs {
    const RULE: Rule = Rule::Types(Operation::Operate);
    const ENTRY_BYTES: usize = 0;
    const ANSWER_BYTES: usize = answer::SHORT;

    /// Checked request: the selected jobs, and their new priority.
    type Args = (Selection, i16);

    paged!(reprioritized_ids);

    fn check(request: v1::ReprioritizeJobsRequest, cluster: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        let priority = new_job::priority(request.priority)?;
        if request.task_type.is_empty() {
            numbers::entries("ids", request.ids.len(), 1..=cluster.batch)?;
            no_token(&request.page_token)?;
            if request.conditions.is_some() {
                return Err(Error::invalid("conditions", "is set without task_type; set task_type, or leave it out"));
            }
            return Ok((Selection::Ids(request.ids.into()), priority));
        }
        if !request.ids.is_empty() {
            return Err(Error::invalid("ids", "is set together with task_type; set one of them"));
        }
        let task_type = task_type("task_type", &request.task_type)?;
        let conditions = job_conditions("conditions", request.conditions, cluster)?;
        of_worker("conditions", &conditions, None, &REPRIORITIZE_STATES)?;
        let from = page_token::job(&request.page_token)?;
        if from.is_some_and(|position| !REPRIORITIZE_STATES.contains(&position.state)) {
            return Err(Error::invalid("page_token", "is not a next_page_token of ReprioritizeJobs"));
        }
        let selection = TypeSelection { task_type, state: None, error_group: None, conditions, from };
        Ok((Selection::OfType(selection), priority))
    }

    async fn run(call: &mut Call, (selection, priority): Self::Args) -> Result<v1::ReprioritizeJobsResponse, Error> {
        let by = call.by()?;
        let selection = permit::own_selection(&call.broker, &call.caller, selection).await?;
        let done = call.broker.operator.reprioritize(selection, priority, &by).await?;
        Ok(v1::ReprioritizeJobsResponse {
            reprioritized_ids: done.ids,
            job_count: done.jobs,
            next_page_token: done.next.map(page_token::encode_job).unwrap_or_default(),
        })
    }

    async fn route(call: &Call, request: v1::ReprioritizeJobsRequest) -> Answer<Self> {
        if !request.task_type.is_empty() {
            return call.pages::<Self>(call.concerned(&request.task_type).await?, request).await;
        }
        let ids = request.ids.clone();
        let with = |request: &v1::ReprioritizeJobsRequest, ids| v1::ReprioritizeJobsRequest { ids, ..request.clone() };
        call.split::<Self>(request, ids, with).await
    }
}

impl Merge for ReprioritizeJobs {
    fn merge(all: &mut v1::ReprioritizeJobsResponse, part: v1::ReprioritizeJobsResponse, _: &str) {
        all.reprioritized_ids.extend(part.reprioritized_ids);
        all.job_count += part.job_count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use howdah_core::job::{JobState, PagePosition};

    fn reprioritize_jobs(
        request: v1::ReprioritizeJobsRequest,
        cluster: &ClusterSettings,
    ) -> Result<(Selection, i16), Error> {
        ReprioritizeJobs::check(request, cluster, &Limits::default())
    }

    #[test]
    fn jobs_are_named_by_ids_or_by_their_type_and_not_by_both() {
        let request = |ids: &[i64], task_type: &str, priority| v1::ReprioritizeJobsRequest {
            ids: ids.to_vec(),
            task_type: task_type.into(),
            priority,
            ..Default::default()
        };
        let check = |request| reprioritize_jobs(request, &ClusterSettings::DEFAULT);
        assert!(matches!(check(request(&[1], "", -1000)), Ok((Selection::Ids(_), -1000))));
        assert!(matches!(check(request(&[], "a", 1000)), Ok((Selection::OfType(_), 1000))));
        let conditions = |worker_id: &str| {
            Some(v1::JobConditions { tag: "t".into(), worker_id: worker_id.into(), ..Default::default() })
        };
        let tagged = v1::ReprioritizeJobsRequest { conditions: conditions(""), ..request(&[], "a", 1) };
        assert!(matches!(check(tagged), Ok((Selection::OfType(of_type), 1)) if of_type.conditions.tag.is_some()));
        let of_worker = conditions("0123456789abcdef");
        let dead = page_token::encode_job(PagePosition { state: JobState::Dead, rank: 0, id: 1 });
        let cases = [
            ("conditions", v1::ReprioritizeJobsRequest { conditions: conditions(""), ..request(&[1], "", 0) }),
            ("conditions.worker_id", v1::ReprioritizeJobsRequest { conditions: of_worker, ..request(&[], "a", 0) }),
            ("ids", request(&[], "", 0)),
            ("ids", request(&vec![1; 10_001], "", 0)),
            ("ids", request(&[1], "a", 0)),
            ("task_type", request(&[], "a b", 0)),
            ("priority", request(&[1], "", 1001)),
            ("priority", request(&[1], "", i32::MIN)),
            ("page_token", v1::ReprioritizeJobsRequest { page_token: "00".into(), ..request(&[], "a", 0) }),
            ("page_token", v1::ReprioritizeJobsRequest { page_token: dead, ..request(&[], "a", 0) }),
            ("page_token", v1::ReprioritizeJobsRequest { page_token: "00".into(), ..request(&[1], "", 0) }),
        ];
        for (field, request) in cases {
            assert_eq!(check(request).expect_err(field).field(), Some(field));
        }
    }
}

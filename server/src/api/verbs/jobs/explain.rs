//! `ExplainJob`: explains why a job does not run, or how it ended.

use howdah_core::job::{Explanation, JobState, Reason, RelatedJob};

use crate::api::{
    render::{duration, time},
    verbs::prelude::*,
};

impl Verb for ExplainJob {
    const RULE: Rule = Rule::Types(Operation::Read);
    const ANSWER_BYTES: usize = answer::SHORT;

    type Args = i64;

    fn check(request: v1::ExplainJobRequest, _: &ClusterSettings, _: &Limits) -> Result<i64, Error> {
        Ok(request.id)
    }

    async fn run(call: &mut Call, id: i64) -> Result<v1::ExplainJobResponse, Error> {
        let may_read = |task_type: &str| permit::may(&call.caller, Operation::Read, task_type);
        let explained = call.broker.operator.explain_job(id, &may_read).await?;
        explained.map(explanation).ok_or_else(|| permit::no_job(id))
    }

    async fn route(call: &Call, request: v1::ExplainJobRequest) -> Answer<Self> {
        call.follow::<Self>(request.id, |id| v1::ExplainJobRequest { id }).await
    }

    fn entries(response: &v1::ExplainJobResponse) -> usize {
        response.reasons.len()
    }
}

fn explanation(explanation: Explanation) -> v1::ExplainJobResponse {
    let Explanation { id, task_type, state, reasons, before, expected_in, settled_per_minute } = explanation;
    v1::ExplainJobResponse {
        id,
        task_type,
        state: state.to_proto() as i32,
        reasons: reasons.into_iter().map(reason).collect(),
        position: before.map(|before| v1::QueuePosition { jobs_before: before.jobs, has_more: before.has_more }),
        expected_in: expected_in.map(duration),
        settled_per_minute: settled_per_minute.round() as i32,
    }
}

fn reason(reason: Reason) -> v1::JobReason {
    v1::JobReason {
        kind: reason.kind as i32,
        text: reason.text,
        remedy: reason.remedy,
        since: reason.since.map(time),
        until: reason.until.map(time),
        jobs: reason.jobs.into_iter().map(related_job).collect(),
        key: reason.key,
        limit: reason.limit,
        used: reason.used,
        broker: reason.broker,
        worker_id: reason.worker,
        error: reason.error,
    }
}

fn related_job(job: RelatedJob) -> v1::RelatedJob {
    let (task_type, state) = job.known.unzip();
    v1::RelatedJob {
        id: job.id,
        task_type: task_type.unwrap_or_default(),
        state: state.map_or(v1::JobState::Unspecified, JobState::to_proto) as i32,
    }
}

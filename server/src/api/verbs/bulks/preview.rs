//! `PreviewBulk`: counts the jobs that a bulk operation would change, and shows examples.

use howdah_core::{
    error::Error,
    job::{BulkPreview, BulkSpec, ClusterSettings, JobState, JobView, Limits},
};
use howdah_engine::{
    access::{Operation, Rule},
    operate::bulk::expected,
};
use howdah_proto::{Rpc, v1};

use super::{complete, of_spec, permitted};
use crate::api::{
    answer, check, render,
    verbs::{Answer, Call, Verb},
};

/// The call `PreviewBulk`.
pub(crate) struct PreviewBulk;

impl Verb for PreviewBulk {
    const RPC: Rpc = Rpc::PreviewBulk;
    const RULE: Rule = Rule::Types(Operation::Operate);
    const READS: bool = true;

    type Request = v1::PreviewBulkRequest;
    type Response = v1::PreviewBulkResponse;
    type Args = Option<v1::BulkSpec>;

    /// Checks nothing. `run` checks the spec after [`complete`] has filled in the task type of an undo.
    fn check(request: v1::PreviewBulkRequest, _: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        Ok(request.spec)
    }

    fn answer_bytes(_: &Self::Args, _: &ClusterSettings) -> usize {
        answer::MEDIUM
    }

    async fn run(call: &mut Call, spec: Self::Args) -> Result<v1::PreviewBulkResponse, Error> {
        let spec = check::bulk_spec(complete(call, spec).await?, &call.broker.cluster())?;
        permitted(&call.caller, &spec)?;
        let preview = call.broker.operator.preview_bulk(&spec).await?;
        let reads = call.caller.check(Operation::Read, &spec.task_type).is_ok();
        Ok(shown(&spec, preview, reads))
    }

    async fn route(call: &Call, request: v1::PreviewBulkRequest) -> Answer<Self> {
        let broker = of_spec(call, request.spec.as_ref()).await?;
        call.in_store::<Self>(broker, request).await
    }

    fn entries(response: &v1::PreviewBulkResponse) -> usize {
        response.examples.len()
    }
}

/// Converts a preview to the response. The examples contain only ids and states, unless the caller may read the jobs (`reads`).
fn shown(spec: &BulkSpec, preview: BulkPreview, reads: bool) -> v1::PreviewBulkResponse {
    let jobs = if preview.has_more { preview.in_states.unwrap_or_default() } else { preview.selected };
    v1::PreviewBulkResponse {
        selected_count: preview.selected,
        has_more: preview.has_more,
        examples: preview.examples.into_iter().map(|job| example(job, reads)).collect(),
        states_count: preview.in_states,
        running_count: preview.running,
        creates_task_type: preview.creates_type,
        expected_duration: Some(render::duration(expected(spec, jobs.max(preview.selected)))),
    }
}

fn example(mut job: JobView, reads: bool) -> v1::Job {
    (job.payload, job.result) = (None, None);
    let last = job.failures.pop();
    job.failures = last.into_iter().collect();
    let (id, state): (i64, JobState) = (job.id, job.state);
    if reads { render::job(job) } else { v1::Job { id, state: state.to_proto() as i32, ..v1::Job::default() } }
}

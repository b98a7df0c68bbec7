//! Explanations: why a job does not run.

use howdah_proto::v1;

use super::time::{duration, time};
use crate::job::{Explanation, JobState, Reason, RelatedJob};

/// Converts an explanation.
pub(crate) fn explanation(explanation: Explanation) -> v1::ExplainJobResponse {
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

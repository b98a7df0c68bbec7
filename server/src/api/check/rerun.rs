//! Makes the message for a copy of a finished job, from what history keeps of the job.

use howdah_core::{
    job::{CompletedStage, CoordinationView, JobOptions, JobView, StagePayload},
    plain_options,
};
use howdah_proto::v1;

use crate::api::{
    enums::WireEnum,
    render::{plain, retry_policy},
};

/// History keeps this many completed stages of a job.
const KEPT_STAGES: usize = 100;

/// Why no copy can be made.
#[derive(Debug, PartialEq)]
pub(in crate::api) enum Lost {
    /// The payload with which the job was enqueued is not kept, and the caller gave none.
    Payload(&'static str),
    /// The task type or the stages with which the job was enqueued are not kept.
    Types(&'static str),
}

/// Returns the copy of a finished job. `wanted` has the start of the copy, and its payload if `has_payload`.
pub(in crate::api) fn copy(job: JobView, wanted: &v1::NewJob, has_payload: bool) -> Result<v1::NewJob, Lost> {
    let options = job.options.map(|options| *options).unwrap_or_default();
    let coordination = job.coordination.map(|view| *view).unwrap_or_default();
    let went_to_fallback = options.fallback_from.is_some();
    let (task_type, next_stages) = types(&job.task_type, job.original_task_type.as_deref(), &options, &coordination)?;
    let fallback = match (went_to_fallback, options.fallback) {
        (true, _) => job.task_type,
        (false, Some(_)) => {
            coordination.fallback.ok_or(Lost::Types("the task type of its fallback has been deleted"))?
        }
        (false, None) => String::new(),
    };
    let payload = if has_payload {
        wanted.payload.clone()
    } else if !coordination.completed_stages.is_empty() && options.stage_payload != Some(StagePayload::Unchanged) {
        return Err(Lost::Payload(
            "the payload of its first stage is not kept, because each stage got the result of the previous one",
        ));
    } else {
        let is_complete =
            |payload: &bytes::Bytes| !payload.is_empty() || options.payload_bytes.unwrap_or_default() == 0;
        job.payload.filter(is_complete).ok_or(Lost::Payload("its payload is not kept"))?
    };
    macro_rules! copied {
        (() $($name:ident)+) => { v1::NewJob { $($name: plain(options.$name.as_ref()),)+ ..v1::NewJob::default() } };
    }
    Ok(v1::NewJob {
        fallback: if fallback == task_type { String::new() } else { fallback },
        stage_payload: if next_stages.is_empty() { 0 } else { options.stage_payload.map_or(0, WireEnum::number) },
        on_holder_failure: if job.key.is_some() { options.on_holder_failure.map_or(0, WireEnum::number) } else { 0 },
        // `max_attempts` of a job in its fallback comes from the fallback type, so the copy does not get it.
        max_attempts: if went_to_fallback { 0 } else { u32::try_from(job.max_attempts).unwrap_or_default() },
        task_type,
        next_stages,
        payload,
        start: wanted.start,
        headers: job.headers,
        priority: i32::from(job.priority),
        key: job.key.unwrap_or_default(),
        tags: job.tags,
        retry_policy: Some(&options.retry_policy).filter(|policy| !policy.is_empty()).map(retry_policy),
        parent_id: job.id,
        history: options.history.map_or(0, WireEnum::number),
        ..plain_options!(copied)
    })
}

/// Returns the task type with which the job was enqueued, and its further stages.
fn types(
    current: &str,
    original: Option<&str>,
    options: &JobOptions,
    coordination: &CoordinationView,
) -> Result<(String, Vec<String>), Lost> {
    let CoordinationView { next_stages, completed_stages, .. } = coordination;
    if completed_stages.len() >= KEPT_STAGES {
        return Err(Lost::Types("it completed so many stages that not all of them are kept"));
    }
    if options.fallback_from.is_some() {
        if !completed_stages.is_empty() {
            return Err(Lost::Types(
                "it went to its fallback after it had completed a stage, and its further stages are not kept",
            ));
        }
        let original = original.ok_or(Lost::Types("the task type with which it was enqueued has been deleted"))?;
        return Ok((original.to_owned(), Vec::new()));
    }
    if next_stages.len() < options.next_stages.len() {
        return Err(Lost::Types("the task type of one of its stages has been deleted"));
    }
    let completed = completed_stages.iter().map(|CompletedStage { task_type, .. }| task_type.as_str());
    let mut all = completed.chain([current]).chain(next_stages.iter().map(String::as_str)).map(str::to_owned);
    Ok((all.next().unwrap_or_default(), all.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use howdah_core::job::{HolderFailure, JobState, RetryOverride};

    /// A job of the type `c` that went through `a` and `b`, with one more stage.
    fn staged(stage_payload: StagePayload) -> JobView {
        let stage = |name: &str| CompletedStage { task_type: name.into(), attempt: 1, started: None, finished: None };
        let options = JobOptions { next_stages: vec![4], stage_payload: Some(stage_payload), ..JobOptions::default() };
        let coordination = CoordinationView {
            next_stages: vec!["d".into()],
            completed_stages: vec![stage("a"), stage("b")],
            ..CoordinationView::default()
        };
        JobView {
            task_type: "c".into(),
            payload: Some("p".into()),
            options: options.boxed(),
            coordination: Some(Box::new(coordination)),
            ..JobView::forgotten(7, JobState::Cancelled)
        }
    }

    fn copy_of(job: JobView) -> Result<v1::NewJob, Lost> {
        copy(job, &v1::NewJob::default(), false)
    }

    #[test]
    fn a_job_with_stages_runs_again_from_its_first_stage_if_its_payload_is_known() {
        let again = copy_of(staged(StagePayload::Unchanged)).unwrap();
        assert_eq!((again.task_type.as_str(), again.next_stages.join(" ").as_str()), ("a", "b c d"));
        assert_eq!((again.stage_payload(), &again.payload[..]), (v1::StagePayload::Unchanged, &b"p"[..]));
        assert!(matches!(copy_of(staged(StagePayload::Result)), Err(Lost::Payload(_))));
        let wanted = v1::NewJob { payload: "new".into(), ..v1::NewJob::default() };
        let again = copy(staged(StagePayload::Result), &wanted, true).unwrap();
        assert_eq!((again.task_type.as_str(), &again.payload[..]), ("a", &b"new"[..]));
    }

    #[test]
    fn a_job_whose_stages_are_not_all_known_is_not_copied() {
        let mut job = staged(StagePayload::Unchanged);
        job.coordination.as_mut().unwrap().next_stages.clear();
        assert!(matches!(copy_of(job), Err(Lost::Types(_))), "a stage's type was deleted");
        let mut job = staged(StagePayload::Unchanged);
        let stages = &mut job.coordination.as_mut().unwrap().completed_stages;
        *stages = vec![stages[0].clone(); KEPT_STAGES];
        assert!(matches!(copy_of(job), Err(Lost::Types(_))), "older stages may be missing");
        let mut job = staged(StagePayload::Unchanged);
        job.options.as_mut().unwrap().fallback_from = Some(1);
        assert!(matches!(copy_of(job), Err(Lost::Types(_))), "a fallback drops the further stages");
    }

    #[test]
    fn a_job_in_its_fallback_gets_its_first_type_and_that_fallback() {
        let options = JobOptions { fallback_from: Some(1), fallback: Some(9), ..JobOptions::default() };
        let job = |original: Option<&str>| JobView {
            task_type: "by_hand".into(),
            original_task_type: original.map(str::to_owned),
            max_attempts: 3,
            payload: Some("p".into()),
            options: options.clone().boxed(),
            ..JobView::forgotten(7, JobState::Succeeded)
        };
        let again = copy_of(job(Some("send"))).unwrap();
        assert_eq!((&*again.task_type, &*again.fallback, again.max_attempts), ("send", "by_hand", 0));
        assert!(matches!(copy_of(job(None)), Err(Lost::Types(_))));
        // A bulk operation has moved the job back to its first type.
        assert_eq!(copy_of(job(Some("by_hand"))).unwrap().fallback, "");
    }

    #[test]
    fn the_payload_and_the_options_are_those_of_the_enqueue() {
        let options = JobOptions {
            retry_policy: RetryOverride { max_delay_ms: Some(1_500), ..RetryOverride::default() },
            on_holder_failure: Some(HolderFailure::Retry),
            limit_key: Some("l".into()),
            fair_key: Some("f".into()),
            expire_at_us: Some(1),
            parent_id: Some(3),
            traceparent: Some("t".into()),
            payload_bytes: Some(5_000),
            ..JobOptions::default()
        };
        let job = |payload: Option<&'static str>| JobView {
            task_type: "a".into(),
            key: Some("k".into()),
            max_attempts: 3,
            priority: -7,
            payload: payload.map(Into::into),
            tags: vec!["x".into()],
            options: options.clone().boxed(),
            ..JobView::forgotten(7, JobState::Expired)
        };
        let again = copy_of(job(Some("p"))).unwrap();
        assert_eq!((&*again.key, again.on_holder_failure(), again.max_attempts), ("k", v1::HolderFailure::Retry, 3));
        assert_eq!((&*again.limit_key, &*again.fair_key, again.priority, again.parent_id), ("l", "f", -7, 7));
        assert_eq!(again.retry_policy.unwrap().max_delay.unwrap().nanos, 500_000_000);
        assert_eq!((again.expiry, &*again.traceparent, again.tags), (None, "", vec!["x".to_owned()]));
        for lost in [None, Some("")] {
            assert!(matches!(copy_of(job(lost)), Err(Lost::Payload(_))), "the payload was stored out of line");
        }
    }
}

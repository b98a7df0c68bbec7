//! Objects of `--json`, one per line. Their field names are stable and follow the protocol.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use howdah_client::proto;
use serde::Serialize;

use super::text;
use howdah_server::job::JobState;

/// JSON object of a job.
#[derive(Debug, Serialize)]
pub(super) struct JobJson {
    id: i64,
    task_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    original_task_type: Option<String>,
    state: &'static str,
    priority: i32,
    attempt: u32,
    max_attempts: u32,
    key: Option<String>,
    create_time: Option<String>,
    run_time: Option<String>,
    start_time: Option<String>,
    finish_time: Option<String>,
    update_time: Option<String>,
    deadline: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    broker: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_id: Option<String>,
    headers: BTreeMap<String, String>,
    #[serde(flatten)]
    coordination: CoordinationJson,
    #[serde(flatten)]
    payload: Option<PayloadJson>,
    #[serde(flatten)]
    result: Option<ResultJson>,
    #[serde(flatten)]
    way: Option<WayJson>,
    failures: Vec<FailureJson>,
}

/// Options that few jobs use. Omitted if unset.
#[derive(Debug, Serialize)]
struct CoordinationJson {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fair_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expire_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_id: Option<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    next_stages: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    completed_stages: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    after: Vec<i64>,
}

impl CoordinationJson {
    fn new(job: &proto::Job) -> Self {
        let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        Self {
            tags: job.tags.clone(),
            limit_key: text(&job.limit_key),
            fair_key: text(&job.fair_key),
            expire_time: text::timestamp(job.expire_time.as_ref()).map(|time| time.to_string()),
            parent_id: Some(job.parent_id).filter(|id| *id > 0),
            next_stages: job.next_stages.clone(),
            completed_stages: job.completed_stages.iter().map(|stage| stage.task_type.clone()).collect(),
            after: job.after.clone(),
        }
    }
}

/// Bytes as base64, and also as text if they are text.
#[derive(Debug, Serialize)]
struct PayloadJson {
    payload: String,
    payload_text: Option<String>,
}

#[derive(Debug, Serialize)]
struct ResultJson {
    result: String,
    result_text: Option<String>,
}

/// Progress and checkpoint. Absent in lists, because only the answer about a single job contains them.
#[derive(Debug, Serialize)]
struct WayJson {
    progress: Option<ProgressJson>,
    checkpoint: Option<String>,
    checkpoint_text: Option<String>,
}

#[derive(Debug, Serialize)]
struct ProgressJson {
    fraction: Option<f64>,
    text: String,
    update_time: Option<String>,
}

#[derive(Debug, Serialize)]
struct FailureJson {
    attempt: u32,
    error: String,
    start_time: Option<String>,
    finish_time: Option<String>,
}

impl JobJson {
    /// Converts a job. `with_payload` says whether the request asked for payload and result.
    pub(super) fn new(job: &proto::Job, with_payload: bool) -> Self {
        let time = |time: &Option<_>| text::timestamp(time.as_ref()).map(|time| time.to_string());
        let failure = |failure: &proto::AttemptFailure| FailureJson {
            attempt: failure.attempt,
            error: failure.error.clone(),
            start_time: time(&failure.start_time),
            finish_time: time(&failure.finish_time),
        };
        let text = |bytes: &[u8]| text::as_text(bytes).map(str::to_owned);
        Self {
            id: job.id,
            task_type: job.task_type.clone(),
            original_task_type: Some(job.original_task_type.clone()).filter(|name| !name.is_empty()),
            state: state_name(job),
            priority: job.priority,
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            key: Some(job.key.clone()).filter(|key| !key.is_empty()),
            create_time: time(&job.create_time),
            run_time: time(&job.run_time),
            start_time: time(&job.start_time),
            finish_time: time(&job.finish_time),
            update_time: time(&job.update_time),
            deadline: time(&job.deadline),
            broker: Some(job.broker.clone()).filter(|name| !name.is_empty()),
            worker_id: Some(job.worker_id.clone()).filter(|id| !id.is_empty()),
            headers: job.headers.clone().into_iter().collect(),
            coordination: CoordinationJson::new(job),
            payload: with_payload
                .then(|| PayloadJson { payload: STANDARD.encode(&job.payload), payload_text: text(&job.payload) }),
            result: with_payload
                .then(|| ResultJson { result: STANDARD.encode(&job.result), result_text: text(&job.result) }),
            way: with_payload.then(|| WayJson {
                progress: job.progress.as_ref().map(|progress| ProgressJson {
                    fraction: progress.fraction,
                    text: progress.text.clone(),
                    update_time: time(&progress.update_time),
                }),
                checkpoint: (!job.checkpoint.is_empty()).then(|| STANDARD.encode(&job.checkpoint)),
                checkpoint_text: text(&job.checkpoint).filter(|text| !text.is_empty()),
            }),
            failures: job.failures.iter().map(failure).collect(),
        }
    }
}

/// Name of the job's state. `unknown` for a state of a newer broker.
pub(super) fn state_name(job: &proto::Job) -> &'static str {
    JobState::from_proto(job.state).map_or("unknown", JobState::name)
}

/// JSON object of a task type.
#[derive(Debug, Serialize)]
pub(super) struct TypeJson {
    task_type: String,
    ready: i64,
    leased: i64,
    scheduled: i64,
    waiting: i64,
    dead: i64,
    /// In seconds. Null if no job is ready.
    oldest_ready_age: Option<f64>,
    /// In seconds. Null if no job is scheduled.
    next_due_in: Option<f64>,
    settings: SettingsJson,
}

/// Settings of a task type. Null stands for the broker's default.
#[derive(Debug, Serialize)]
pub(super) struct SettingsJson {
    max_attempts: Option<u32>,
    /// In seconds.
    retry_initial_delay: Option<f64>,
    retry_multiplier: Option<f64>,
    /// In seconds.
    retry_max_delay: Option<f64>,
    retry_jitter: Option<f64>,
    /// `exponential`, `linear`, `fixed` or `list`.
    retry_kind: Option<&'static str>,
    /// In seconds.
    retry_delays: Option<Vec<f64>>,
    /// `full`, `failures`, `without_empty` or `none`.
    history: Option<&'static str>,
    history_days: Option<u32>,
    /// In seconds.
    priority_step: Option<f64>,
    /// In seconds.
    timeout: Option<f64>,
    paused: bool,
    max_payload_bytes: Option<i64>,
    max_backlog: Option<i64>,
    /// Name of the fallback task type.
    fallback: Option<String>,
    max_running: Option<u32>,
    rate: Option<RateJson>,
    key_max_running: Option<u32>,
    key_strict_order: bool,
    /// In seconds.
    key_min_gap: Option<f64>,
    key_rate: Option<RateJson>,
}

/// Rate limit, as a token bucket.
#[derive(Debug, Serialize)]
pub(super) struct RateJson {
    per_second: f64,
    burst: u32,
}

impl RateJson {
    fn new(rate: proto::Rate) -> Self {
        Self { per_second: rate.per_second, burst: rate.burst }
    }
}

impl TypeJson {
    pub(super) fn new(task_type: &proto::TaskType) -> Self {
        let counts = task_type.counts.unwrap_or_default();
        let age = text::duration(task_type.oldest_ready_age.as_ref());
        Self {
            task_type: task_type.name.clone(),
            ready: counts.ready,
            leased: counts.leased,
            scheduled: counts.scheduled,
            waiting: counts.waiting,
            dead: counts.dead,
            oldest_ready_age: age.map(|age| age.as_secs_f64()),
            next_due_in: text::duration(task_type.next_due_in.as_ref()).map(|time| time.as_secs_f64()),
            settings: SettingsJson::new(task_type.settings.as_ref()),
        }
    }
}

impl SettingsJson {
    pub(super) fn new(settings: Option<&proto::TaskTypeSettings>) -> Self {
        let retry = settings.and_then(|settings| settings.retry_policy.as_ref());
        let seconds = |time: Option<&prost_types::Duration>| text::duration(time).map(|time| time.as_secs_f64());
        Self {
            max_attempts: settings.map(|settings| settings.max_attempts).filter(|attempts| *attempts > 0),
            retry_initial_delay: seconds(retry.and_then(|retry| retry.initial_delay.as_ref())),
            retry_multiplier: retry.and_then(|retry| retry.multiplier),
            retry_max_delay: seconds(retry.and_then(|retry| retry.max_delay.as_ref())),
            retry_jitter: retry.and_then(|retry| retry.jitter),
            retry_kind: retry.and_then(super::retry_args::kind_word),
            retry_delays: retry
                .filter(|retry| !retry.delays.is_empty())
                .map(|retry| retry.delays.iter().filter_map(|delay| seconds(Some(delay))).collect()),
            history: settings.and_then(super::type_set::history_word),
            history_days: settings.map(|settings| settings.history_days).filter(|days| *days > 0),
            priority_step: seconds(settings.and_then(|settings| settings.priority_step.as_ref())),
            timeout: seconds(settings.and_then(|settings| settings.timeout.as_ref())),
            paused: settings.is_some_and(|settings| settings.paused),
            max_payload_bytes: settings.map(|settings| settings.max_payload_bytes).filter(|bytes| *bytes > 0),
            max_backlog: settings.map(|settings| settings.max_backlog).filter(|jobs| *jobs > 0),
            fallback: settings.map(|settings| settings.fallback.clone()).filter(|name| !name.is_empty()),
            max_running: settings.map(|settings| settings.max_running).filter(|jobs| *jobs > 0),
            rate: settings.and_then(|settings| settings.rate).map(RateJson::new),
            key_max_running: settings.map(|settings| settings.key_max_running).filter(|jobs| *jobs > 0),
            key_strict_order: settings.is_some_and(|settings| settings.key_strict_order),
            key_min_gap: seconds(settings.and_then(|settings| settings.key_min_gap.as_ref())),
            key_rate: settings.and_then(|settings| settings.key_rate).map(RateJson::new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> proto::Job {
        proto::Job {
            id: 17,
            task_type: "email.send".into(),
            state: proto::JobState::Dead as i32,
            payload: b"\x1b\n".as_slice().into(),
            result: vec![0xff].into(),
            attempt: 3,
            max_attempts: 10,
            create_time: Some(prost_types::Timestamp { seconds: 1, nanos: 500_000_000 }),
            failures: vec![proto::AttemptFailure { attempt: 3, error: "no".into(), ..Default::default() }],
            ..Default::default()
        }
    }

    #[test]
    fn a_job_has_stable_names() {
        let line = serde_json::to_string(&JobJson::new(&job(), true)).unwrap();
        let expected = concat!(
            r#"{"id":17,"task_type":"email.send","state":"dead","priority":0,"attempt":3,"max_attempts":10,"#,
            r#""key":null,"create_time":"1970-01-01T00:00:01.5Z","run_time":null,"start_time":null,"#,
            r#""finish_time":null,"update_time":null,"deadline":null,"headers":{},"payload":"Gwo=","payload_text":"\u001b\n","#,
            r#""result":"/w==","result_text":null,"progress":null,"checkpoint":null,"checkpoint_text":null,"#,
            r#""failures":[{"attempt":3,"error":"no","start_time":null,"#,
            r#""finish_time":null}]}"#
        );
        assert_eq!(line, expected);
    }

    #[test]
    fn payloads_that_were_not_asked_for_are_left_out() {
        let line = serde_json::to_string(&JobJson::new(&job(), false)).unwrap();
        assert!(!line.contains("payload") && !line.contains("result"), "{line}");
    }

    #[test]
    fn a_task_type_has_stable_names() {
        let task_type = proto::TaskType {
            name: "a".into(),
            counts: Some(proto::TaskTypeCounts { ready: 1, leased: 2, scheduled: 3, waiting: 4, dead: 5 }),
            oldest_ready_age: Some(prost_types::Duration { seconds: 2, nanos: 500_000_000 }),
            next_due_in: Some(prost_types::Duration { seconds: 60, nanos: 0 }),
            settings: Some(proto::TaskTypeSettings { max_attempts: 3, ..Default::default() }),
            store: String::new(),
        };
        let line = serde_json::to_string(&TypeJson::new(&task_type)).unwrap();
        let expected = concat!(
            r#"{"task_type":"a","ready":1,"leased":2,"scheduled":3,"waiting":4,"dead":5,"oldest_ready_age":2.5,"next_due_in":60.0,"#,
            r#""settings":{"max_attempts":3,"retry_initial_delay":null,"retry_multiplier":null,"retry_max_delay":null,"#,
            r#""retry_jitter":null,"retry_kind":null,"retry_delays":null,"history":null,"history_days":null,"priority_step":null,"#,
            r#""timeout":null,"paused":false,"max_payload_bytes":null,"max_backlog":null,"fallback":null,"#,
            r#""max_running":null,"rate":null,"key_max_running":null,"key_strict_order":false,"key_min_gap":null,"key_rate":null}}"#
        );
        assert_eq!(line, expected);
    }
}

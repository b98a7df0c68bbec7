//! Rarely used options of a job, stored together in one database column.

use std::time::{Duration, UNIX_EPOCH};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use howdah_proto::v1;
use serde::{Deserialize, Serialize};

use super::{DependencyFailure, HistoryMode, HolderFailure, KeyPolicy, Progress, RetryOverride, StagePayload, TypeId};

/// Calls the macro `$then` with its arguments in parentheses, and with the names of the plain options. A plain option is checked
/// by the bounds of its row in `options.rs`, stored, shown and copied as it is. So a new one needs only its fields in the protocol
/// and in [`JobOptions`], its row, and its name here.
#[macro_export]
macro_rules! plain_options {
    ($then:ident $($argument:tt)*) => {
        $then! { ($($argument)*) limit_key limit_max fair_key }
    };
}

macro_rules! names {
    (() $($name:ident)+) => { &[$(stringify!($name)),+] };
}

/// Names of the plain options.
pub const PLAIN: &[&str] = plain_options!(names);

/// Returns the plain options that a job has, with their values as text.
pub fn plain_values(job: &v1::Job) -> Vec<(&'static str, String)> {
    fn text<T: ToString + Default + PartialEq>(value: &T) -> String {
        if *value == T::default() { String::new() } else { value.to_string() }
    }
    macro_rules! values {
        (() $($name:ident)+) => { [$((stringify!($name), text(&job.$name))),+] };
    }
    plain_options!(values).into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

/// Heap memory of an option, in bytes.
trait Heap {
    fn heap(&self) -> usize;
}

impl Heap for String {
    fn heap(&self) -> usize {
        self.len()
    }
}

impl Heap for i32 {
    fn heap(&self) -> usize {
        0
    }
}

/// Rarely used options. They are stored in one JSON column, which is null for all other jobs and so costs them one bit.
/// The names match the protocol; names of times end with the unit (`server/core/src/job/options.rs`). The fields after the
/// blank line are set by the broker and the store. Options that only the enqueue needs (`howdah.enqueue_only`) are not
/// stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobOptions {
    /// The job's own retry policy.
    #[serde(skip_serializing_if = "RetryOverride::is_empty")]
    pub retry_policy: RetryOverride,
    /// W3C trace context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// W3C trace state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
    /// Tags by which the job is found, without duplicates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Task type that gets the job when its attempts are used up; unset: the setting of its task type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<TypeId>,
    /// Whether history keeps the job if it succeeds; unset: the setting of its task type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<HistoryMode>,
    /// Policy for the enqueue when another job holds the key. Not stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_policy: Option<KeyPolicy>,
    /// Version that `KeyPolicy::ReplaceIfNewer` compares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_version: Option<i64>,
    /// Time in ms for which the job holds its key; unset: until the job ends. Not stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_hold_ms: Option<i64>,
    /// Maximum total delay in ms that `KeyPolicy::Debounce` may cause. Not stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_debounce_limit_ms: Option<i64>,
    /// Policy for the running holder of the key when its attempt fails while this job waits for the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_holder_failure: Option<HolderFailure>,
    /// Expiry time of a job that has not started, in µs after 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expire_at_us: Option<i64>,
    /// Time from the enqueue to the expiry, by the database's clock. Not stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expire_after_ms: Option<i64>,
    /// Limit key: concurrency and rate limits count the job under this key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_key: Option<String>,
    /// Number of jobs of the limit key that may run at once when this job starts; unset: the limit of the key or the task type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_max: Option<i32>,
    /// Fair key: the ready jobs of each fair key get an equal share of the workers of the type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_key: Option<String>,
    /// Task types of the next stages.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next_stages: Vec<TypeId>,
    /// Payload of the next stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage_payload: Option<StagePayload>,
    /// Ids of the jobs that this job runs after, in the order of the request. Stored with the ids of `after_ordinals`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<i64>,
    /// Jobs of the same request that this job runs after, as ordinals from 1. Not stored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after_ordinals: Vec<usize>,
    /// Policy for this job when a job in `after` does not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_dependency_failure: Option<DependencyFailure>,
    /// Id of the job that enqueued this job, if the producer gave one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<i64>,

    /// Priority step used in the job's rank, if the step is not the default and the priority is not 0. With it, the
    /// time at which the job became ready can be computed from the rank. Set by intake.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_step_us: Option<i64>,
    /// Task type of the job before it moved to its fallback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_from: Option<TypeId>,
    /// Size of a payload that is stored out of line, in bytes. Set by the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_bytes: Option<i64>,
    /// Progress from 0 to 1. `sql/settle/report_progress.sql` writes this field and the next three fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_fraction: Option<f64>,
    /// Progress as text for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_text: Option<String>,
    /// Time of the last progress report, in µs after 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_us: Option<i64>,
    /// Checkpoint for the next attempt, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
}

impl JobOptions {
    /// Whether the job must be enqueued by `howdah.enqueue_jobs`, because storing its row is not enough.
    pub fn needs_coordination(&self) -> bool {
        self.key_policy.is_some()
            || self.key_version.is_some()
            || self.key_hold_ms.is_some()
            || self.key_debounce_limit_ms.is_some()
            || self.on_holder_failure.is_some()
            || self.expire_at_us.is_some()
            || self.expire_after_ms.is_some()
            || self.limit_key.is_some()
            || self.fair_key.is_some()
            || self.stage_payload.is_some()
            // The mark `coordinated` lets `howdah.ack_coordinated` settle the job.
            || self.history.is_some()
            // Tags are also written to a separate table, which only `howdah.enqueue_jobs` does.
            || !self.tags.is_empty()
            || !self.after.is_empty()
            || !self.after_ordinals.is_empty()
    }

    /// Heap memory of the options, in bytes.
    pub(super) fn weight(&self) -> usize {
        macro_rules! heap {
            (() $($name:ident)+) => { 0 $(+ self.$name.as_ref().map_or(0, Heap::heap))+ };
        }
        let texts = [&self.traceparent, &self.tracestate, &self.checkpoint];
        let texts: usize = texts.into_iter().flatten().map(String::len).sum::<usize>() + plain_options!(heap);
        let tags: usize = self.tags.iter().map(|tag| size_of::<String>() + tag.len()).sum();
        texts + tags + size_of_val(&*self.after) + size_of_val(&*self.after_ordinals) + size_of_val(&*self.next_stages)
    }

    /// The progress, if a worker has reported any.
    pub fn progress(&self) -> Option<Progress> {
        if self.progress_fraction.is_none() && self.progress_text.is_none() {
            return None;
        }
        let us = u64::try_from(self.progress_us.unwrap_or_default()).unwrap_or_default();
        Some(Progress {
            fraction: self.progress_fraction,
            text: self.progress_text.clone().unwrap_or_default(),
            updated: UNIX_EPOCH + Duration::from_micros(us),
        })
    }

    /// Checkpoint of an earlier attempt; empty if it is missing or not valid base64.
    pub fn checkpoint(&self) -> Bytes {
        let text = self.checkpoint.as_deref().unwrap_or_default();
        STANDARD.decode(text).unwrap_or_default().into()
    }

    /// Boxes the options; `None` if no option is set.
    pub fn boxed(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }
}

//! The options of a job that have no column of their own.

use std::time::{Duration, UNIX_EPOCH};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{DependencyFailure, HolderFailure, KeyPolicy, Progress, RetryOverride, StagePayload, TypeId};

/// Options that few jobs have. They are one JSON column, which is null for all other jobs and so costs them one bit. The
/// names are those of the protocol, and names of times end with the unit (`server/src/job/options.rs`). The fields after
/// the blank line are set by the broker and the store. Options that only the enqueue needs (`howdah.enqueue_only`) are
/// not stored.
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
    /// Words by which it is found, each once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The task type that gets the job when its attempts are used up; unset: the setting of its task type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<TypeId>,
    /// What the enqueue does when another job has the key. Not stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_policy: Option<KeyPolicy>,
    /// The version that `KeyPolicy::ReplaceIfNewer` compares. Not stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_version: Option<i64>,
    /// How long the key is held; unset: until the job ends. Not stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_hold_ms: Option<i64>,
    /// How long `KeyPolicy::Debounce` may delay the job at most. Not stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_debounce_limit_ms: Option<i64>,
    /// What happens to the running holder of the key when its attempt fails while this job waits for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_holder_failure: Option<HolderFailure>,
    /// When the job expires if it has not started, µs after 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expire_at_us: Option<i64>,
    /// How long after the enqueue it expires, by the database's clock. Not stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expire_after_ms: Option<i64>,
    /// The key by which limits count the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_key: Option<String>,
    /// The key by which ready jobs share the workers of the type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_key: Option<String>,
    /// The task types of the next stages.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next_stages: Vec<TypeId>,
    /// The payload of the next stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage_payload: Option<StagePayload>,
    /// Ids of the jobs that it runs after. Not stored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<i64>,
    /// The jobs of its request that it runs after, by ordinal from 1. Not stored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after_ordinals: Vec<usize>,
    /// What happens to it when one of those jobs does not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_dependency_failure: Option<DependencyFailure>,
    /// The job that enqueued it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<i64>,

    /// The priority step in its rank, if the step is not the default and the priority is not 0. With it, the time at which
    /// the job became ready can be computed from the rank. Set by intake.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_step_us: Option<i64>,
    /// Its task type before it went to its fallback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_from: Option<TypeId>,
    /// Bytes of a payload that is stored out of line. Set by the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_bytes: Option<i64>,
    /// Progress from 0 to 1. `sql/settle/report_progress.sql` writes this field and the three below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_fraction: Option<f64>,
    /// Progress as a text for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_text: Option<String>,
    /// When the worker reported progress, µs after 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_us: Option<i64>,
    /// The checkpoint for the next attempt, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
}

impl JobOptions {
    /// Whether the job must be enqueued by `howdah.enqueue_jobs`, because storing it is not enough.
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
            // They are written to a table of their own as well. The statements for other jobs need not know.
            || !self.tags.is_empty()
            || !self.after.is_empty()
            || !self.after_ordinals.is_empty()
    }

    /// Bytes that its fields point to.
    pub(super) fn weight(&self) -> usize {
        let texts = [&self.traceparent, &self.tracestate, &self.limit_key, &self.fair_key, &self.checkpoint];
        let texts: usize = texts.into_iter().flatten().map(String::len).sum();
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

    /// The checkpoint of an earlier attempt; empty if there is none, or if it is not valid base64.
    pub fn checkpoint(&self) -> Bytes {
        let text = self.checkpoint.as_deref().unwrap_or_default();
        STANDARD.decode(text).unwrap_or_default().into()
    }

    /// Boxes the options; `None` if no option is set.
    pub fn boxed(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }
}

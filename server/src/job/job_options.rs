//! The options of a job that have no column of their own.

use std::time::{Duration, UNIX_EPOCH};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{DependencyFailure, KeyPolicy, Progress, RetryOverride, StagePayload, TypeId};

/// What few jobs have, in one JSON column, so that the others pay one bit for all of it. The names are those of the
/// protocol, with the unit behind a time (`server/src/job/options.rs`). Below the options stands what the broker and the
/// store add. What only the enqueue needs (`howdah.enqueue_only`) is not kept.
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
    /// The type that it goes to when it is out of attempts; unset: what its type says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<TypeId>,
    /// What the enqueue does when another job has the key. Not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_policy: Option<KeyPolicy>,
    /// The version that `KeyPolicy::ReplaceIfNewer` compares. Not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_version: Option<i64>,
    /// How long the key is held; unset: until the job ends. Not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_hold_ms: Option<i64>,
    /// The longest that `KeyPolicy::Debounce` may put the job off. Not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_debounce_limit_ms: Option<i64>,
    /// When the job expires if it has not started, µs after 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expire_at_us: Option<i64>,
    /// The same, after the enqueue, whose time the database knows. Not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expire_after_ms: Option<i64>,
    /// What limits count it by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_key: Option<String>,
    /// What its waiting jobs share the type's workers by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_key: Option<String>,
    /// The types that it goes on to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next_stages: Vec<TypeId>,
    /// What the next stage gets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage_payload: Option<StagePayload>,
    /// Jobs that it runs after. Not kept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<i64>,
    /// The same, by their ordinals in the request, from 1. Not kept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after_ordinals: Vec<usize>,
    /// What becomes of it when one of those does not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_dependency_failure: Option<DependencyFailure>,
    /// The job that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<i64>,

    /// The type's step that its rank was made with, if that is not the default and the priority is not 0: so the time
    /// that it became ready can be told from the rank. Intake sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_step_us: Option<i64>,
    /// The type that it had before it went to its fallback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_from: Option<TypeId>,
    /// Size of a payload that is kept out of line. Intake sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_bytes: Option<i64>,
    /// How far the job has come, 0 to 1; these four are written by `sql/settle/report_progress.sql`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_fraction: Option<f64>,
    /// The same, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_text: Option<String>,
    /// When the worker said so, µs after 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_us: Option<i64>,
    /// What the next attempt shall find, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
}

impl JobOptions {
    /// Whether the enqueue has more to do than to store the job: `howdah.enqueue_jobs` does it.
    pub fn needs_coordination(&self) -> bool {
        self.key_policy.is_some()
            || self.key_version.is_some()
            || self.key_hold_ms.is_some()
            || self.key_debounce_limit_ms.is_some()
            || self.expire_at_us.is_some()
            || self.expire_after_ms.is_some()
            || self.limit_key.is_some()
            || self.fair_key.is_some()
            || self.stage_payload.is_some()
            || !self.after.is_empty()
            || !self.after_ordinals.is_empty()
    }

    /// How far the job has come, if a worker said so.
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

    /// What an attempt has left for the next one; empty: nothing, or nothing that a worker wrote.
    pub fn checkpoint(&self) -> Bytes {
        let text = self.checkpoint.as_deref().unwrap_or_default();
        STANDARD.decode(text).unwrap_or_default().into()
    }

    /// The same in a box; nothing if no option is set.
    pub fn boxed(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }
}

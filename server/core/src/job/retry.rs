//! Retry policies: backoff with jitter.

use std::time::Duration;

use rand::Rng;
use serde::{Deserialize, Deserializer, Serialize};

/// How the delay grows with each failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryKind {
    /// `initial * multiplier^(n-1)` after failure n, at most `max`.
    #[default]
    Exponential,
    /// `initial * n` after failure n, at most `max`.
    Linear,
    /// Always `initial`.
    Fixed,
    /// The delays of a list in order; the last one repeats.
    List,
}

impl RetryKind {
    /// Parses the stored name.
    fn parse(name: &str) -> Option<Self> {
        match name {
            "exponential" => Some(Self::Exponential),
            "linear" => Some(Self::Linear),
            "fixed" => Some(Self::Fixed),
            "list" => Some(Self::List),
            _ => None,
        }
    }
}

/// A complete policy. The kind determines a delay, which is then changed at random by up to ±`jitter`, so that jobs which failed
/// together are not retried together.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// How the retry delay grows with each failure.
    pub kind: RetryKind,
    /// Delay after the first failure.
    pub initial: Duration,
    /// Growth factor of the delay, for the exponential kind.
    pub multiplier: f64,
    /// Maximum delay before jitter, for the exponential and the linear kind.
    pub max: Duration,
    /// Fraction by which a delay is changed at random, up or down; 0 to 1.
    pub jitter: f64,
    /// Retry delays of the list kind.
    pub delays: Vec<Duration>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            kind: RetryKind::Exponential,
            initial: Duration::from_secs(5),
            multiplier: 2.0,
            max: Duration::from_secs(3600),
            jitter: 0.1,
            delays: Vec::new(),
        }
    }
}

/// Policy fields that a job or a task type overrides. Stored as JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RetryOverride {
    /// How the retry delay grows with each failure.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "known_kind")]
    pub kind: Option<RetryKind>,
    /// Delay after the first failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_delay_ms: Option<u64>,
    /// Growth factor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multiplier: Option<f64>,
    /// Maximum before jitter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_delay_ms: Option<u64>,
    /// Fraction by which a delay is changed at random, up or down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<f64>,
    /// Retry delays of the list kind.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub delays_ms: Vec<u64>,
}

/// Reads an unknown retry kind, which a later version has written, as `None`, so that the other fields can still be
/// read.
fn known_kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<RetryKind>, D::Error> {
    let name = Option::<String>::deserialize(deserializer)?;
    Ok(name.as_deref().and_then(RetryKind::parse))
}

impl RetryOverride {
    /// Maximum number of delays in a list.
    pub const MAX_DELAYS: usize = 100;

    /// Whether no field is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl RetryPolicy {
    /// Returns this policy with the fields that `over` sets.
    #[must_use]
    pub fn with(self, over: &RetryOverride) -> Self {
        let list = || over.delays_ms.iter().map(|&ms| Duration::from_millis(ms)).collect();
        Self {
            kind: over.kind.unwrap_or(self.kind),
            initial: over.initial_delay_ms.map_or(self.initial, Duration::from_millis),
            multiplier: over.multiplier.unwrap_or(self.multiplier),
            max: over.max_delay_ms.map_or(self.max, Duration::from_millis),
            jitter: over.jitter.unwrap_or(self.jitter),
            delays: if over.delays_ms.is_empty() { self.delays } else { list() },
        }
    }

    /// Delay after the failure of `attempt` (from 1).
    pub fn delay(&self, attempt: u32, rng: &mut impl Rng) -> Duration {
        let moved = self.planned(attempt.max(1)) * (1.0 + self.jitter * (2.0 * uniform(rng) - 1.0));
        Duration::from_secs_f64(moved.max(0.0))
    }

    /// Delay before jitter, in seconds.
    fn planned(&self, attempt: u32) -> f64 {
        let (initial, max) = (self.initial.as_secs_f64(), self.max.as_secs_f64());
        match self.kind {
            // `min` also handles an infinite product.
            RetryKind::Exponential => (initial * self.multiplier.powf(f64::from(attempt - 1))).min(max),
            RetryKind::Linear => (initial * f64::from(attempt)).min(max),
            RetryKind::Fixed => initial,
            RetryKind::List => {
                let ordinal = (attempt as usize).min(self.delays.len());
                // The API rejects a list without delays; such a list works like `Fixed`.
                ordinal.checked_sub(1).map_or(initial, |last| self.delays[last].as_secs_f64())
            }
        }
    }
}

/// A number in [0, 1).
fn uniform(rng: &mut impl Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::needless_pass_by_value)]
    fn delays(policy: RetryPolicy, attempts: std::ops::Range<u32>) -> Vec<u64> {
        attempts.map(|n| policy.delay(n, &mut rand::rng()).as_millis() as u64).collect()
    }

    #[test]
    fn the_delay_doubles_up_to_the_cap() {
        let policy = RetryPolicy { jitter: 0.0, max: Duration::from_secs(30), ..RetryPolicy::default() };
        assert_eq!(delays(policy, 1..6), [5_000, 10_000, 20_000, 30_000, 30_000]);
    }

    #[test]
    fn jitter_stays_within_ten_percent_of_the_delay() {
        for delay in delays(RetryPolicy::default(), 1..2).into_iter().chain(delays(RetryPolicy::default(), 900..1000)) {
            assert!((4_500..=5_500).contains(&delay) || (3_240_000..=3_960_000).contains(&delay), "{delay}");
        }
    }

    #[test]
    fn linear_fixed_and_list_policies_have_their_own_delays() {
        let minutes = |m: u64| Duration::from_secs(60 * m);
        let policy =
            |kind| RetryPolicy { kind, jitter: 0.0, initial: minutes(5), max: minutes(12), ..Default::default() };
        let minutes_of = |policy| delays(policy, 1..5).into_iter().map(|ms| ms / 60_000).collect::<Vec<_>>();
        assert_eq!(minutes_of(policy(RetryKind::Linear)), [5, 10, 12, 12]);
        assert_eq!(minutes_of(policy(RetryKind::Fixed)), [5, 5, 5, 5]);
        assert_eq!(minutes_of(RetryPolicy { max: minutes(1), ..policy(RetryKind::Fixed) }), [5, 5, 5, 5]);
        let list = RetryPolicy { delays: vec![minutes(1), minutes(0), minutes(90)], ..policy(RetryKind::List) };
        assert_eq!(minutes_of(list), [1, 0, 90, 90]);
        assert_eq!(minutes_of(policy(RetryKind::List)), [5, 5, 5, 5], "a list without delays");
    }

    #[test]
    fn an_unknown_retry_kind_is_read_as_unset() {
        let stored = r#"{"kind": "fibonacci", "initial_delay_ms": 7}"#;
        let over: RetryOverride = serde_json::from_str(stored).unwrap();
        assert_eq!((over.kind, over.initial_delay_ms), (None, Some(7)));
        let over = RetryOverride { kind: Some(RetryKind::List), delays_ms: vec![1, 2], ..over };
        let stored = serde_json::to_string(&over).unwrap();
        assert_eq!(stored, r#"{"kind":"list","initial_delay_ms":7,"delays_ms":[1,2]}"#);
        assert_eq!(serde_json::from_str::<RetryOverride>(&stored).unwrap(), over);
    }

    #[test]
    fn an_override_changes_only_what_it_sets() {
        let over = RetryOverride { initial_delay_ms: Some(7), ..RetryOverride::default() };
        let policy = RetryPolicy::default().with(&over);
        assert_eq!(policy.initial, Duration::from_millis(7));
        assert_eq!(policy.max, RetryPolicy::default().max);
    }
}

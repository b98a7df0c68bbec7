//! When to try again: exponential backoff with a cap and jitter.

use std::time::Duration;

use rand::Rng;
use serde::{Deserialize, Serialize};

/// A complete policy: the delay after failed attempt n is `initial * multiplier^(n-1)`, at most
/// `max`, then moved at random by up to ±`jitter`, so that jobs which failed together do not come
/// back together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Delay after the first failure.
    pub initial: Duration,
    /// Growth from one failure to the next.
    pub multiplier: f64,
    /// Upper bound before jitter.
    pub max: Duration,
    /// Part of the delay that is random, 0 to 1.
    pub jitter: f64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { initial: Duration::from_secs(5), multiplier: 2.0, max: Duration::from_secs(3600), jitter: 0.1 }
    }
}

/// A policy with holes, as set for a job or a task type. Stored as JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RetryOverride {
    /// Delay after the first failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_ms: Option<u64>,
    /// Growth from one failure to the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multiplier: Option<f64>,
    /// Upper bound before jitter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ms: Option<u64>,
    /// Part of the delay that is random.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<f64>,
}

impl RetryOverride {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl RetryPolicy {
    /// This policy with the fields that `over` sets.
    #[must_use]
    pub fn with(self, over: &RetryOverride) -> Self {
        Self {
            initial: over.initial_ms.map_or(self.initial, Duration::from_millis),
            multiplier: over.multiplier.unwrap_or(self.multiplier),
            max: over.max_ms.map_or(self.max, Duration::from_millis),
            jitter: over.jitter.unwrap_or(self.jitter),
        }
    }

    /// How long to wait after `attempt` (from 1) failed.
    pub fn delay(&self, attempt: u32, rng: &mut impl Rng) -> Duration {
        let exponent = f64::from(attempt.saturating_sub(1));
        let grown = self.initial.as_secs_f64() * self.multiplier.powf(exponent);
        // min also takes care of an infinite product.
        let capped = grown.min(self.max.as_secs_f64());
        let moved = capped * (1.0 + self.jitter * (2.0 * uniform(rng) - 1.0));
        Duration::from_secs_f64(moved.max(0.0))
    }
}

/// A number in [0, 1).
fn uniform(rng: &mut impl Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(policy: RetryPolicy, attempts: std::ops::Range<u32>) -> Vec<u64> {
        attempts.map(|n| policy.delay(n, &mut rand::rng()).as_millis() as u64).collect()
    }

    #[test]
    fn the_delay_doubles_up_to_the_cap() {
        let policy = RetryPolicy { jitter: 0.0, max: Duration::from_secs(30), ..RetryPolicy::default() };
        assert_eq!(delays(policy, 1..6), [5_000, 10_000, 20_000, 30_000, 30_000]);
    }

    #[test]
    fn jitter_stays_within_its_part() {
        for delay in delays(RetryPolicy::default(), 1..2).into_iter().chain(delays(RetryPolicy::default(), 900..1000)) {
            assert!((4_500..=5_500).contains(&delay) || (3_240_000..=3_960_000).contains(&delay), "{delay}");
        }
    }

    #[test]
    fn an_override_changes_only_what_it_sets() {
        let over = RetryOverride { initial_ms: Some(7), ..RetryOverride::default() };
        let policy = RetryPolicy::default().with(&over);
        assert_eq!(policy.initial, Duration::from_millis(7));
        assert_eq!(policy.max, RetryPolicy::default().max);
    }
}

//! Conversion of task types and their settings.

use std::time::Duration;

use howdah_core::job::{Braked, HistoryMode, RetryOverride, TypeSettings, TypeView};
use howdah_proto::v1;

use super::time::{duration, time};
use crate::api::enums::WireEnum;

/// Converts a task type with its job counts.
pub(crate) fn task_type(view: TypeView) -> v1::TaskType {
    v1::TaskType {
        name: view.name,
        counts: Some(counts(view.counts)),
        oldest_ready_age: view.oldest_ready.map(duration),
        next_due_in: view.next_due.map(duration),
        settings: Some(settings(&view.settings)),
        store: String::new(),
        braked: view.braked.map(braked),
    }
}

fn braked(Braked { since, failures, next }: Braked) -> v1::Braked {
    v1::Braked { since_time: Some(time(since)), failures_in_a_row: failures, next_attempt_time: Some(time(next)) }
}

pub(crate) fn counts([ready, leased, scheduled, waiting, dead]: [i64; 5]) -> v1::TaskTypeCounts {
    v1::TaskTypeCounts { ready, leased, scheduled, waiting, dead }
}

/// Converts the settings of a task type. A setting without a value becomes 0 or is left out.
pub(crate) fn settings(settings: &TypeSettings) -> v1::TaskTypeSettings {
    let limits = &settings.limits;
    v1::TaskTypeSettings {
        max_attempts: settings.max_attempts.map_or(0, |attempts| u32::try_from(attempts).unwrap_or_default()),
        retry_policy: Some(&settings.retry).filter(|retry| !retry.is_empty()).map(retry_policy),
        history: settings.history.map_or(0, WireEnum::number),
        fallback: settings.fallback.as_ref().map(ToString::to_string).unwrap_or_default(),
        priority_step: settings.priority_step_us.map(|us| duration(Duration::from_micros(us.max(0) as u64))),
        timeout: settings.timeout.map(duration),
        paused: settings.paused,
        max_payload_bytes: settings.max_payload_bytes.map_or(0, i64::from),
        max_backlog: settings.max_backlog.unwrap_or_default(),
        history_days: days(settings.history_days),
        dead_days: days(settings.dead_days),
        max_running: limit(limits.max_running),
        rate: rate(limits.rate_per_s, limits.rate_burst),
        key_max_running: limit(limits.key_max_running),
        key_strict_order: limits.key_strict.unwrap_or_default(),
        key_min_gap: limits.key_min_gap_ms.map(millis),
        key_gap_from_end: limits.key_gap_from_end.unwrap_or_default(),
        key_rate: rate(limits.key_rate_per_s, limits.key_rate_burst),
        brake: limits.brake_failures.map(|failures| v1::Brake {
            failures: limit(Some(failures)),
            initial_delay: limits.brake_initial_ms.map(millis),
            max_delay: limits.brake_max_ms.map(millis),
        }),
    }
}

fn days(days: Option<i16>) -> u32 {
    days.map_or(0, |days| u32::try_from(days).unwrap_or_default())
}

fn millis(ms: i64) -> prost_types::Duration {
    duration(Duration::from_millis(ms.max(0) as u64))
}

fn limit(limit: Option<i32>) -> u32 {
    limit.map_or(0, |limit| u32::try_from(limit).unwrap_or_default())
}

fn rate(per_second: Option<f64>, burst: Option<i32>) -> Option<v1::Rate> {
    per_second.map(|per_second| v1::Rate { per_second, burst: limit(burst) })
}

/// Converts a history mode.
pub(crate) fn history_mode(mode: HistoryMode) -> v1::HistoryMode {
    v1::HistoryMode::try_from(mode.number()).unwrap_or_default()
}

/// Converts a retry policy of a job or a task type.
pub(crate) fn retry_policy(retry: &RetryOverride) -> v1::RetryPolicy {
    let millis = |millis| duration(Duration::from_millis(millis));
    v1::RetryPolicy {
        initial_delay: retry.initial_delay_ms.map(millis),
        multiplier: retry.multiplier,
        max_delay: retry.max_delay_ms.map(millis),
        jitter: retry.jitter,
        kind: retry.kind.map_or(0, WireEnum::number),
        delays: retry.delays_ms.iter().copied().map(millis).collect(),
    }
}

#[cfg(test)]
mod tests {
    use howdah_core::job::RetryKind;

    use super::*;

    #[test]
    fn settings_come_back_as_they_were_set() {
        assert_eq!(settings(&TypeSettings::default()), v1::TaskTypeSettings::default());
        let retry = RetryOverride { initial_delay_ms: Some(1500), jitter: Some(0.0), ..RetryOverride::default() };
        let set = TypeSettings {
            max_attempts: Some(3),
            retry,
            history: Some(HistoryMode::Failures),
            priority_step_us: Some(1_500),
            paused: true,
            max_backlog: Some(7),
            ..TypeSettings::default()
        };
        let wire = settings(&set);
        assert_eq!((wire.paused, wire.max_backlog, wire.max_payload_bytes), (true, 7, 0));
        assert_eq!(wire.priority_step, Some(prost_types::Duration { seconds: 0, nanos: 1_500_000 }));
        assert_eq!(wire.history(), v1::HistoryMode::Failures);
        let policy = wire.retry_policy.unwrap();
        assert_eq!((wire.max_attempts, policy.jitter, policy.multiplier), (3, Some(0.0), None));
        assert_eq!(policy.initial_delay, Some(prost_types::Duration { seconds: 1, nanos: 500_000_000 }));
    }

    #[test]
    fn a_kind_and_its_delays_come_back_as_they_were_set() {
        let retry = RetryOverride { kind: Some(RetryKind::List), delays_ms: vec![0, 1500], ..Default::default() };
        let policy = retry_policy(&retry);
        assert_eq!(policy.kind(), v1::RetryPolicyKind::List);
        assert_eq!(policy.delays[1], prost_types::Duration { seconds: 1, nanos: 500_000_000 });
    }

    #[test]
    fn each_count_is_of_its_state() {
        let view = TypeView {
            name: "a".into(),
            settings: TypeSettings::default(),
            counts: [1, 2, 3, 4, 5],
            oldest_ready: None,
            last_pull: None,
            braked: None,
            next_due: None,
        };
        let counts = v1::TaskTypeCounts { ready: 1, leased: 2, scheduled: 3, waiting: 4, dead: 5 };
        assert_eq!(task_type(view).counts, Some(counts));
    }
}

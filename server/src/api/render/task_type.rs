//! Task types and their settings.

use std::time::Duration;

use howdah_proto::v1;

use super::time::duration;
use crate::job::{HistoryMode, RetryKind, RetryOverride, TypeSettings, TypeView};

/// A task type with its counts.
pub(crate) fn task_type(view: TypeView) -> v1::TaskType {
    let [ready, leased, scheduled, waiting, dead] = view.counts;
    v1::TaskType {
        name: view.name,
        counts: Some(v1::TaskTypeCounts { ready, leased, scheduled, waiting, dead }),
        oldest_ready_age: view.oldest_ready.map(duration),
        settings: Some(settings(&view.settings)),
    }
}

/// What was set; 0 and unset is what was not.
pub(crate) fn settings(settings: &TypeSettings) -> v1::TaskTypeSettings {
    v1::TaskTypeSettings {
        max_attempts: settings.max_attempts.map_or(0, |attempts| u32::try_from(attempts).unwrap_or_default()),
        retry_policy: Some(&settings.retry).filter(|retry| !retry.is_empty()).map(retry_policy),
        history: settings.history.map_or(v1::HistoryMode::Unspecified, history) as i32,
        fallback: settings.fallback.as_ref().map(ToString::to_string).unwrap_or_default(),
    }
}

fn history(mode: HistoryMode) -> v1::HistoryMode {
    match mode {
        HistoryMode::Full => v1::HistoryMode::Full,
        HistoryMode::Failures => v1::HistoryMode::Failures,
        HistoryMode::None => v1::HistoryMode::None,
    }
}

fn retry_policy(retry: &RetryOverride) -> v1::RetryPolicy {
    let millis = |millis| duration(Duration::from_millis(millis));
    v1::RetryPolicy {
        initial_delay: retry.initial_ms.map(millis),
        multiplier: retry.multiplier,
        max_delay: retry.max_ms.map(millis),
        jitter: retry.jitter,
        kind: retry.kind.map_or(v1::RetryPolicyKind::Unspecified, kind) as i32,
        delays: retry.delays_ms.iter().copied().map(millis).collect(),
    }
}

fn kind(kind: RetryKind) -> v1::RetryPolicyKind {
    match kind {
        RetryKind::Exponential => v1::RetryPolicyKind::Exponential,
        RetryKind::Linear => v1::RetryPolicyKind::Linear,
        RetryKind::Fixed => v1::RetryPolicyKind::Fixed,
        RetryKind::List => v1::RetryPolicyKind::List,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_come_back_as_they_were_set() {
        assert_eq!(settings(&TypeSettings::default()), v1::TaskTypeSettings::default());
        let retry = RetryOverride { initial_ms: Some(1500), jitter: Some(0.0), ..RetryOverride::default() };
        let history = Some(HistoryMode::Failures);
        let wire = settings(&TypeSettings { max_attempts: Some(3), retry, history, ..TypeSettings::default() });
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
        };
        let counts = v1::TaskTypeCounts { ready: 1, leased: 2, scheduled: 3, waiting: 4, dead: 5 };
        assert_eq!(task_type(view).counts, Some(counts));
    }
}

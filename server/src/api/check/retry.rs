//! Checks of the retry policies of jobs and task types.

use std::{ops::RangeInclusive, time::Duration};

use howdah_core::{
    error::Error,
    job::{Limits, RetryKind, RetryOverride},
};
use howdah_proto::v1;

use super::{numbers, time};
use crate::api::enums::WireEnum as _;

const DELAY: RangeInclusive<Duration> = Duration::ZERO..=time::MONTH;

/// Checks the fields of a policy that are set. Errors name fields inside `retry_policy`.
pub(in crate::api) fn retry_policy(policy: Option<&v1::RetryPolicy>) -> Result<RetryOverride, Error> {
    let Some(policy) = policy else {
        return Ok(RetryOverride::default());
    };
    let millis = |delay: Duration| delay.as_millis() as u64;
    let kind = RetryKind::from_number("retry_policy.kind", policy.kind)?;
    let list = matches!(kind, Some(RetryKind::List));
    numbers::entries("retry_policy.delays", policy.delays.len(), 0..=RetryOverride::MAX_DELAYS)?;
    if list == policy.delays.is_empty() {
        let problem = if list { "has no entries; kind LIST needs 1 to 100" } else { "is for kind LIST only" };
        return Err(Error::invalid("retry_policy.delays", problem));
    }
    let grows = matches!(kind, None | Some(RetryKind::Exponential));
    let capped = grows || matches!(kind, Some(RetryKind::Linear));
    for (field, set, allowed, by) in [
        ("retry_policy.initial_delay", policy.initial_delay.is_some(), !list, "is not for kind LIST"),
        ("retry_policy.multiplier", policy.multiplier.is_some(), grows, "is for kind EXPONENTIAL only"),
        ("retry_policy.max_delay", policy.max_delay.is_some(), capped, "is for kinds EXPONENTIAL and LINEAR only"),
    ] {
        if set && !allowed {
            return Err(Error::invalid(field, by));
        }
    }
    let one =
        |(i, delay): (usize, &_)| time::duration(&format!("retry_policy.delays[{i}]"), *delay, &DELAY).map(millis);
    Ok(RetryOverride {
        kind,
        initial_delay_ms: time::optional("retry_policy.initial_delay", policy.initial_delay, &DELAY)?.map(millis),
        multiplier: number("retry_policy.multiplier", policy.multiplier, 1.0..=100.0)?,
        max_delay_ms: time::optional("retry_policy.max_delay", policy.max_delay, &DELAY)?.map(millis),
        jitter: number("retry_policy.jitter", policy.jitter, 0.0..=1.0)?,
        delays_ms: policy.delays.iter().enumerate().map(one).collect::<Result<_, _>>()?,
    })
}

/// Checks the maximum number of attempts; 0 becomes `None`, which means the setting of the task type or of the broker.
pub(in crate::api) fn max_attempts(value: u32) -> Result<Option<i16>, Error> {
    match i16::try_from(value) {
        Ok(0) => Ok(None),
        Ok(attempts) if value <= Limits::MAX_ATTEMPTS => Ok(Some(attempts)),
        _ => {
            let problem = format!("is {value}; 0 to {} is allowed", Limits::MAX_ATTEMPTS);
            Err(Error::invalid("max_attempts", problem))
        }
    }
}

/// Checks that a number is inside `range`. Rejects NaN and the infinities.
fn number(field: &str, value: Option<f64>, range: RangeInclusive<f64>) -> Result<Option<f64>, Error> {
    match value {
        Some(value) if !range.contains(&value) => {
            let problem = format!("is {value:?}; {} to {} is allowed", range.start(), range.end());
            Err(Error::invalid(field, problem))
        }
        fine => Ok(fine),
    }
}

#[cfg(test)]
mod tests {
    use prost_types::Duration as WireDuration;

    use super::*;

    #[test]
    fn unset_fields_stay_unset() {
        assert_eq!(retry_policy(None).unwrap(), RetryOverride::default());
        assert_eq!(retry_policy(Some(&v1::RetryPolicy::default())).unwrap(), RetryOverride::default());
    }

    #[test]
    fn the_ends_of_every_range_are_allowed() {
        let ends = |delay: i64, multiplier, jitter| v1::RetryPolicy {
            initial_delay: Some(WireDuration { seconds: delay, nanos: 0 }),
            multiplier: Some(multiplier),
            max_delay: Some(WireDuration { seconds: delay, nanos: 0 }),
            jitter: Some(jitter),
            ..Default::default()
        };
        assert_eq!(retry_policy(Some(&ends(0, 1.0, 0.0))).unwrap().initial_delay_ms, Some(0));
        let highest = retry_policy(Some(&ends(30 * 24 * 3600, 100.0, 1.0))).unwrap();
        assert_eq!(highest.max_delay_ms, Some(2_592_000_000));
    }

    #[test]
    fn a_multiplier_or_jitter_that_is_nan_or_out_of_range_is_refused() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.1, 0.999, 100.1, f64::MAX] {
            let policy = v1::RetryPolicy { multiplier: Some(bad), ..Default::default() };
            assert_eq!(retry_policy(Some(&policy)).unwrap_err().field(), Some("retry_policy.multiplier"), "{bad}");
        }
        for bad in [f64::NAN, f64::INFINITY, -f64::MIN_POSITIVE, 1.01] {
            let policy = v1::RetryPolicy { jitter: Some(bad), ..Default::default() };
            let error = retry_policy(Some(&policy)).unwrap_err();
            assert_eq!(error.field(), Some("retry_policy.jitter"), "{bad}");
            assert!(error.to_string().len() < 100, "{error}");
        }
    }

    #[test]
    fn delays_out_of_range_are_refused() {
        for (seconds, nanos) in [(-1, 0), (0, -1), (30 * 24 * 3600 + 1, 0), (i64::MAX, 0)] {
            let delay = Some(WireDuration { seconds, nanos });
            let initial = v1::RetryPolicy { initial_delay: delay, ..Default::default() };
            assert_eq!(retry_policy(Some(&initial)).unwrap_err().field(), Some("retry_policy.initial_delay"));
            let max = v1::RetryPolicy { max_delay: delay, ..Default::default() };
            assert_eq!(retry_policy(Some(&max)).unwrap_err().field(), Some("retry_policy.max_delay"));
        }
    }

    #[test]
    fn a_kind_takes_the_fields_that_mean_something_to_it() {
        let delay = Some(WireDuration { seconds: 1, nanos: 0 });
        let of = |kind: i32| v1::RetryPolicy { kind, ..Default::default() };
        let list = |count| v1::RetryPolicy { delays: vec![WireDuration { seconds: 1, nanos: 0 }; count], ..of(4) };
        let bad = [
            ("retry_policy.kind", of(5)),
            ("retry_policy.kind", of(-1)),
            ("retry_policy.delays", of(4)),
            ("retry_policy.delays", list(101)),
            ("retry_policy.delays", v1::RetryPolicy { kind: 0, ..list(1) }),
            ("retry_policy.delays", v1::RetryPolicy { kind: 2, ..list(1) }),
            (
                "retry_policy.delays[0]",
                v1::RetryPolicy { delays: vec![WireDuration { seconds: -1, nanos: 0 }], ..of(4) },
            ),
            ("retry_policy.initial_delay", v1::RetryPolicy { initial_delay: delay, ..list(1) }),
            ("retry_policy.multiplier", v1::RetryPolicy { multiplier: Some(2.0), ..of(2) }),
            ("retry_policy.multiplier", v1::RetryPolicy { multiplier: Some(2.0), ..of(3) }),
            ("retry_policy.max_delay", v1::RetryPolicy { max_delay: delay, ..of(3) }),
            ("retry_policy.max_delay", v1::RetryPolicy { max_delay: delay, ..list(1) }),
        ];
        for (field, policy) in bad {
            assert_eq!(retry_policy(Some(&policy)).expect_err(field).field(), Some(field));
        }
        assert_eq!(retry_policy(Some(&list(100))).unwrap().delays_ms, vec![1000; 100]);
        let linear = v1::RetryPolicy { initial_delay: delay, max_delay: delay, jitter: Some(0.0), ..of(2) };
        assert_eq!(retry_policy(Some(&linear)).unwrap().kind, Some(RetryKind::Linear));
    }

    #[test]
    fn attempts_are_0_to_1000() {
        assert_eq!(max_attempts(0).unwrap(), None);
        assert_eq!(max_attempts(1).unwrap(), Some(1));
        assert_eq!(max_attempts(1000).unwrap(), Some(1000));
        for bad in [1001, 65_536, 65_537, (1 << 31) - 1, u32::MAX] {
            assert_eq!(
                max_attempts(bad).unwrap_err().to_string(),
                format!("max_attempts is {bad}; 0 to 1000 is allowed")
            );
        }
    }
}

//! Checks of outcomes of attempts. An invalid outcome gets a separate error; only an invalid list of outcomes fails the whole
//! message.

use std::{ops::RangeInclusive, time::Duration};

use bytes::Bytes;
use howdah_core::{
    error::Error,
    job::{AttemptError, ClusterSettings, Lease, Limits, Outcome, SettleStatus, Settlement, truncated},
};
use howdah_proto::v1::{self, outcome::Outcome as Wire};

use super::{
    items::{Items, refuse_repeats},
    numbers, task_type, text, time,
};
use crate::api::render;

/// Maximum size of the place of an error, in bytes.
const PLACE_BYTES: usize = 200;
pub(crate) const LATER: RangeInclusive<Duration> = Duration::ZERO..=time::YEAR;

/// Checks the outcomes of one message.
pub(crate) fn settle(
    outcomes: Vec<v1::Outcome>,
    cluster: &ClusterSettings,
    limits: &Limits,
) -> Result<Items<Settlement>, Error> {
    numbers::entries("outcomes", outcomes.len(), 1..=cluster.batch)?;
    let checked = outcomes.into_iter().enumerate().map(|(i, outcome)| {
        let lease = Lease { id: outcome.id, token: outcome.token };
        self::outcome(outcome.outcome, cluster, limits)
            .map(|outcome| Settlement { lease, outcome, started: None })
            .map_err(|error| render::invalid_item(lease, &error.within(&format!("outcomes[{i}]"))))
    });
    let lost = |_, again: Settlement| render::settle_result(again.lease, SettleStatus::LeaseLost);
    Ok(Items::part(refuse_repeats(checked, |settlement| settlement.lease.id, lost)))
}

fn outcome(outcome: Option<Wire>, cluster: &ClusterSettings, limits: &Limits) -> Result<Outcome, Error> {
    match outcome {
        Some(Wire::Ack(ack)) => {
            text::short("ack.result", &ack.result, cluster.payload_bytes)?;
            // The result is copied, because a slice would keep the whole message in memory.
            let next_stage = match ack.next_stage.as_str() {
                "" => None,
                name => Some(Box::new(task_type("ack.next_stage", name)?)),
            };
            Ok(Outcome::Ack { result: Bytes::copy_from_slice(&ack.result), next_stage })
        }
        Some(Wire::Nack(nack)) => {
            let after = time::optional("nack.retry_after", nack.retry_after, &LATER)?;
            let error = AttemptError {
                text: truncated(&nack.error, limits.error_bytes),
                details: truncated(&nack.details, limits.error_bytes),
                place: truncated(&one_line(&nack.place), PLACE_BYTES),
            };
            Ok(if nack.no_retry { Outcome::Dead { error } } else { Outcome::Retry { error, after } })
        }
        Some(Wire::Snooze(snooze)) => {
            Ok(Outcome::Snooze { delay: time::required("snooze.delay", snooze.delay, &LATER)? })
        }
        Some(Wire::Release(v1::Release {})) => Ok(Outcome::Release),
        None => Err(Error::invalid("outcome", "is not set; set ack, nack, snooze or release")),
    }
}

/// Returns the text with each run of white space and control characters as one space, because a place is part of the name of an
/// error group.
fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use prost_types::Duration as WireDuration;
    use v1::SettleStatus as Status;

    use super::*;

    fn item(id: i64, outcome: Option<Wire>) -> v1::Outcome {
        v1::Outcome { id, token: id + 1000, outcome }
    }

    fn ack(bytes: usize) -> Option<Wire> {
        Some(Wire::Ack(v1::Ack { result: vec![0; bytes].into(), ..Default::default() }))
    }

    fn nack(error: &str, no_retry: bool, after: Option<(i64, i32)>) -> Option<Wire> {
        let retry_after = after.map(|(seconds, nanos)| WireDuration { seconds, nanos });
        Some(Wire::Nack(v1::Nack { error: error.into(), no_retry, retry_after, ..Default::default() }))
    }

    fn snooze(seconds: i64) -> Option<Wire> {
        Some(Wire::Snooze(v1::Snooze { delay: Some(WireDuration { seconds, nanos: 0 }) }))
    }

    fn check(outcomes: Vec<v1::Outcome>) -> Items<Settlement> {
        settle(outcomes, &ClusterSettings::DEFAULT, &Limits::default()).unwrap()
    }

    #[test]
    fn every_way_to_end_an_attempt_is_understood() {
        let release = Some(Wire::Release(v1::Release {}));
        let outcomes = [
            ack(1 << 20),
            nack("e", false, None),
            nack("e", true, Some((5, 0))),
            nack("e", false, Some((0, 1))),
            snooze(0),
            release,
        ];
        let items = check(outcomes.into_iter().zip(0..).map(|(outcome, id)| item(id, outcome)).collect());
        assert!(items.refused.is_empty());
        assert!(matches!(items.accepted[0].outcome, Outcome::Ack { .. }));
        assert_eq!(items.accepted[1].outcome, Outcome::Retry { error: "e".into(), after: None });
        assert_eq!(items.accepted[2].outcome, Outcome::Dead { error: "e".into() });
        assert_eq!(
            items.accepted[3].outcome,
            Outcome::Retry { error: "e".into(), after: Some(Duration::from_millis(1)) }
        );
        assert_eq!(items.accepted[4].outcome, Outcome::Snooze { delay: Duration::ZERO });
        assert_eq!(items.accepted[5].outcome, Outcome::Release);
        assert_eq!(items.accepted[5].lease, Lease { id: 5, token: 1005 });
    }

    #[test]
    fn an_invalid_outcome_is_refused_without_failing_the_message() {
        let unset = Some(Wire::Snooze(v1::Snooze { delay: None }));
        let bad = [
            ("outcome", None),
            ("ack.result", ack((1 << 20) + 1)),
            ("nack.retry_after", nack("", false, Some((-1, 0)))),
            ("nack.retry_after", nack("", true, Some((i64::MAX, i32::MAX)))),
            ("snooze.delay", unset),
            ("snooze.delay", snooze(-1)),
            ("snooze.delay", snooze(365 * 24 * 3600 + 1)),
        ];
        for (field, outcome) in bad {
            let items = check(vec![item(1, ack(0)), item(2, outcome), item(3, ack(0))]);
            assert_eq!(items.accepted.len(), 2, "{field}");
            let [(1, answer)] = &items.refused[..] else { panic!("{field}: {items:?}") };
            assert_eq!((answer.id, answer.token, answer.status()), (2, 1002, Status::Invalid));
            assert!(answer.message.starts_with(&format!("outcomes[1].{field} ")), "{}", answer.message);
        }
    }

    #[test]
    fn the_second_outcome_of_a_job_in_one_message_is_refused_as_lease_lost() {
        let items = check(vec![item(1, ack(0)), item(1, nack("", false, None)), item(2, ack(0))]);
        assert_eq!(items.accepted.iter().map(|s| s.lease.id).collect::<Vec<_>>(), [1, 2]);
        assert!(matches!(items.accepted[0].outcome, Outcome::Ack { .. }));
        let [(1, answer)] = &items.refused[..] else { panic!("{items:?}") };
        assert_eq!((answer.id, answer.token, answer.status()), (1, 1001, Status::LeaseLost));
    }

    #[test]
    fn an_invalid_outcome_leaves_the_lease_to_the_next_one() {
        let items = check(vec![item(1, None), item(1, nack("e", false, None))]);
        assert_eq!(items.accepted.len(), 1);
        assert_eq!(items.refused[0].1.status(), Status::Invalid);
    }

    #[test]
    fn a_megabyte_of_error_text_is_truncated_and_marked() {
        let items = check(vec![item(1, nack(&"é\0".repeat(1 << 19), false, None))]);
        let Outcome::Retry { error, .. } = &items.accepted[0].outcome else { panic!("{items:?}") };
        assert!(error.text.len() <= 16 << 10);
        assert!(error.text.ends_with("[truncated]") && !error.text.contains('\0'));
    }

    #[test]
    fn no_outcomes_and_too_many_fail_the_message() {
        for count in [0, 10_001] {
            let error =
                settle(vec![item(1, ack(0)); count], &ClusterSettings::DEFAULT, &Limits::default()).unwrap_err();
            assert_eq!(error.field(), Some("outcomes"));
        }
    }
}

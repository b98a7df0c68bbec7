//! Outcomes, extensions and progress reports: items of a message that get separate answers. An invalid item never fails the others; only
//! an invalid list of items fails the whole message.

use std::{collections::HashSet, ops::RangeInclusive, time::Duration};

use bytes::Bytes;
use howdah_core::{
    error::Error,
    job::{AttemptError, ClusterSettings, Lease, Limits, Outcome, ProgressReport, SettleStatus, Settlement, truncated},
};
use howdah_proto::v1::{self, outcome::Outcome as Wire};

use super::{numbers, task_type, text, time};

/// Valid items of a message, and answers to the invalid ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Items<T> {
    /// Valid items, in the order of the message.
    pub(crate) accepted: Vec<T>,
    /// Answers to invalid items with their indexes in the message, ascending.
    pub(crate) refused: Vec<(usize, v1::SettleResult)>,
}

impl<T> Items<T> {
    /// Separates valid and invalid items.
    fn part(items: impl Iterator<Item = Result<T, v1::SettleResult>>) -> Self {
        let mut parted = Self { accepted: Vec::with_capacity(items.size_hint().0), refused: Vec::new() };
        for (index, item) in items.enumerate() {
            match item {
                Ok(item) => parted.accepted.push(item),
                Err(answer) => parted.refused.push((index, answer)),
            }
        }
        parted
    }

    /// Merges the answers to accepted and rejected items, in the order of the message.
    pub(crate) fn answers(
        refused: Vec<(usize, v1::SettleResult)>,
        accepted: impl ExactSizeIterator<Item = v1::SettleResult>,
    ) -> Vec<v1::SettleResult> {
        let mut answers = Vec::with_capacity(refused.len() + accepted.len());
        let mut refused = refused.into_iter().peekable();
        for answer in accepted {
            while let Some((_, early)) = refused.next_if(|&(index, _)| index == answers.len()) {
                answers.push(early);
            }
            answers.push(answer);
        }
        answers.extend(refused.map(|(_, answer)| answer));
        answers
    }
}

/// Keeps the first valid item of each job and replaces later items of the same job by an `answer`. An invalid item does not
/// count as the first, because it has not used the lease.
fn refuse_repeats<T>(
    items: impl ExactSizeIterator<Item = Result<T, v1::SettleResult>>,
    id: impl Fn(&T) -> i64,
    answer: impl Fn(usize, T) -> v1::SettleResult,
) -> impl Iterator<Item = Result<T, v1::SettleResult>> {
    let mut seen = HashSet::with_capacity(items.len());
    items.enumerate().map(move |(index, item)| {
        let item = item?;
        if seen.insert(id(&item)) { Ok(item) } else { Err(answer(index, item)) }
    })
}

/// Maximum length of `Nack.place`, in bytes. A longer text is truncated.
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
            .map_err(|error| invalid_item(lease, &error.within(&format!("outcomes[{i}]"))))
    });
    let lost = |_, again: Settlement| settle_result(again.lease, SettleStatus::LeaseLost);
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

/// Replaces each run of white space and control characters by one space. For places of errors, which become part of the names
/// of error groups.
fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

/// Checks the extensions of one message. Each names a lease, and its new deadline as a duration from now.
pub(crate) fn extend(
    extensions: Vec<v1::Extension>,
    limits: &ClusterSettings,
) -> Result<Items<(Lease, Duration)>, Error> {
    numbers::entries("extensions", extensions.len(), 1..=limits.batch)?;
    let range = time::MILLISECOND..=limits.max_timeout;
    let checked = extensions.into_iter().enumerate().map(|(i, extension)| {
        let lease = Lease { id: extension.id, token: extension.token };
        time::required("duration", extension.duration, &range)
            .map(|duration| (lease, duration))
            .map_err(|error| invalid_item(lease, &error.within(&format!("extensions[{i}]"))))
    });
    // A second extension of a job is INVALID. It is not LEASE_LOST, as for a second outcome, because the first extension does
    // not end the lease.
    let twice = |i, (lease, _): (Lease, _)| {
        let problem = "is a second extension of one job in a message; the first one counts";
        invalid_item(lease, &Error::invalid(format!("extensions[{i}]"), problem))
    };
    Ok(Items::part(refuse_repeats(checked, |(lease, _)| lease.id, twice)))
}

/// Checks the reports of one message. A job may have several reports; the last value of each field counts.
pub(crate) fn progress(
    reports: Vec<v1::ProgressReport>,
    limits: &ClusterSettings,
) -> Result<Items<ProgressReport>, Error> {
    numbers::entries("reports", reports.len(), 1..=limits.batch)?;
    Ok(Items::part(reports.into_iter().enumerate().map(|(i, wire)| {
        let lease = Lease { id: wire.id, token: wire.token };
        report(lease, wire).map_err(|error| invalid_item(lease, &error.within(&format!("reports[{i}]"))))
    })))
}

fn report(lease: Lease, wire: v1::ProgressReport) -> Result<ProgressReport, Error> {
    if let Some(fraction) = wire.fraction
        && !(0.0..=1.0).contains(&fraction)
    {
        return Err(Error::invalid("fraction", format!("is {fraction}; 0 to 1 is allowed")));
    }
    if let Some(words) = &wire.text {
        text::plain("text", words, Limits::PROGRESS_TEXT_BYTES)?;
    }
    if let Some(checkpoint) = &wire.checkpoint {
        text::short("checkpoint", checkpoint, Limits::CHECKPOINT_BYTES)?;
    }
    if wire.fraction.is_none() && wire.text.is_none() && wire.checkpoint.is_none() {
        return Err(Error::invalid(
            "fraction",
            "is not set, and neither are text and checkpoint; set at least one of them",
        ));
    }
    // The checkpoint is copied, because a slice would keep the whole message in memory.
    let checkpoint = wire.checkpoint.map(|bytes| bytes::Bytes::copy_from_slice(&bytes));
    Ok(ProgressReport { lease, fraction: wire.fraction, text: wire.text, checkpoint })
}

/// Converts the result of one outcome, extension or progress report.
pub(crate) fn settle_result(lease: Lease, status: SettleStatus) -> v1::SettleResult {
    match status {
        SettleStatus::Ok => result(lease, v1::SettleStatus::Ok, String::new()),
        SettleStatus::LeaseLost => result(
            lease,
            v1::SettleStatus::LeaseLost,
            "the lease has ended or belongs to another attempt; nothing was changed".into(),
        ),
        SettleStatus::Unavailable => {
            result(lease, v1::SettleStatus::Unavailable, "it is unknown whether this took effect; send it again".into())
        }
    }
}

/// Returns the result `INVALID` for an outcome, extension or report with an invalid field.
pub(crate) fn invalid_item(lease: Lease, error: &Error) -> v1::SettleResult {
    invalid_item_text(lease, error.to_string())
}

/// Returns the result `INVALID` with this error text.
pub(crate) fn invalid_item_text(lease: Lease, text: String) -> v1::SettleResult {
    result(lease, v1::SettleStatus::Invalid, text)
}

/// Returns the results of all items of a message, in their order. Merges the results of rejected items with the broker's
/// results for the accepted leases.
pub(crate) fn settle_results(
    refused: Vec<(usize, v1::SettleResult)>,
    leases: Vec<Lease>,
    mut statuses: Vec<SettleStatus>,
) -> Vec<v1::SettleResult> {
    debug_assert_eq!(leases.len(), statuses.len(), "the broker answers each item");
    // Each accepted item gets a result. Without one from the broker, it is unknown whether the item took effect.
    statuses.resize(leases.len(), SettleStatus::Unavailable);
    let accepted = leases.into_iter().zip(statuses).map(|(lease, status)| settle_result(lease, status));
    Items::<()>::answers(refused, accepted)
}

fn result(lease: Lease, status: v1::SettleStatus, message: String) -> v1::SettleResult {
    v1::SettleResult { id: lease.id, token: lease.token, status: status as i32, message }
}

#[cfg(test)]
mod tests {
    use prost_types::Duration as WireDuration;
    use v1::SettleStatus as Status;

    use super::*;

    fn answer(id: i64) -> v1::SettleResult {
        v1::SettleResult { id, ..Default::default() }
    }

    #[test]
    fn only_the_first_item_of_a_job_counts() {
        let items = [Ok(7), Ok(8), Ok(7), Err(answer(9)), Ok(9), Ok(7)];
        let kept: Vec<_> =
            refuse_repeats(items.into_iter(), |&id| id, |place, id| answer(id * 100 + place as i64)).collect();
        assert_eq!(kept, [Ok(7), Ok(8), Err(answer(702)), Err(answer(9)), Ok(9), Err(answer(705))]);
    }

    #[test]
    fn answers_come_back_in_the_order_of_the_message() {
        let shapes: [&[bool]; 6] =
            [&[], &[true], &[false], &[false, true, false], &[true, false, false, true], &[false, false]];
        for shape in shapes {
            let items =
                shape.iter().enumerate().map(|(i, &fine)| if fine { Ok(i as i64) } else { Err(answer(i as i64)) });
            let items = Items::part(items);
            let answers = Items::<i64>::answers(items.refused, items.accepted.into_iter().map(answer));
            let ids: Vec<_> = answers.iter().map(|answer| answer.id as usize).collect();
            assert_eq!(ids, (0..shape.len()).collect::<Vec<_>>(), "{shape:?}");
        }
    }

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

    fn extension(id: i64, duration: Option<(i64, i32)>) -> v1::Extension {
        let duration = duration.map(|(seconds, nanos)| WireDuration { seconds, nanos });
        v1::Extension { id, token: id + 1000, duration }
    }

    #[test]
    fn an_extension_with_an_invalid_duration_is_refused_without_failing_the_message() {
        for bad in [
            None,
            Some((0, 0)),
            Some((0, 999_999)),
            Some((-1, 0)),
            Some((30 * 24 * 3600 + 1, 0)),
            Some((i64::MAX, i32::MAX)),
        ] {
            let items =
                extend(vec![extension(1, Some((60, 0))), extension(2, bad)], &ClusterSettings::DEFAULT).unwrap();
            assert_eq!(items.accepted, [(Lease { id: 1, token: 1001 }, Duration::from_secs(60))]);
            let [(1, answer)] = &items.refused[..] else { panic!("{bad:?}") };
            assert_eq!((answer.id, answer.token, answer.status()), (2, 1002, v1::SettleStatus::Invalid));
            assert!(answer.message.starts_with("extensions[1].duration is "), "{}", answer.message);
        }
    }

    #[test]
    fn a_job_extended_twice_keeps_its_lease_and_the_first_extension() {
        let items =
            extend(vec![extension(1, Some((60, 0))), extension(1, Some((90, 0)))], &ClusterSettings::DEFAULT).unwrap();
        assert_eq!(items.accepted[0].1, Duration::from_secs(60));
        assert_eq!(items.refused[0].1.status(), v1::SettleStatus::Invalid);
    }

    #[test]
    fn no_extensions_and_too_many_fail_the_message() {
        for count in [0, 10_001] {
            let error = extend(vec![extension(1, None); count], &ClusterSettings::DEFAULT).unwrap_err();
            assert_eq!(error.field(), Some("extensions"));
        }
    }

    fn report(id: i64) -> v1::ProgressReport {
        v1::ProgressReport { id, token: id + 1000, fraction: Some(0.5), ..Default::default() }
    }

    #[test]
    fn an_invalid_report_is_refused_without_failing_the_message_and_its_field_is_named() {
        let bad = [
            ("fraction", v1::ProgressReport { fraction: Some(1.01), ..report(2) }),
            ("fraction", v1::ProgressReport { fraction: Some(-0.1), ..report(2) }),
            ("fraction", v1::ProgressReport { fraction: Some(f64::NAN), ..report(2) }),
            ("fraction", v1::ProgressReport { fraction: None, ..report(2) }),
            ("text", v1::ProgressReport { text: Some("x".repeat(1025)), ..report(2) }),
            ("text", v1::ProgressReport { text: Some("a\0".into()), ..report(2) }),
            ("checkpoint", v1::ProgressReport { checkpoint: Some(vec![0; (64 << 10) + 1].into()), ..report(2) }),
        ];
        for (field, refused) in bad {
            let items = progress(vec![report(1), refused], &ClusterSettings::DEFAULT).unwrap();
            assert_eq!(items.accepted.len(), 1, "{field}");
            let [(1, answer)] = &items.refused[..] else { panic!("{items:?}") };
            assert_eq!((answer.id, answer.token, answer.status()), (2, 1002, v1::SettleStatus::Invalid));
            assert!(answer.message.starts_with(&format!("reports[1].{field} ")), "{}", answer.message);
        }
    }

    #[test]
    fn the_largest_report_is_accepted_and_a_job_may_be_named_twice() {
        let largest = v1::ProgressReport {
            fraction: Some(1.0),
            text: Some("x".repeat(1024)),
            checkpoint: Some(vec![0; 64 << 10].into()),
            ..report(1)
        };
        let items = progress(vec![largest, report(1)], &ClusterSettings::DEFAULT).unwrap();
        assert_eq!((items.accepted.len(), items.refused.len()), (2, 0));
    }

    #[test]
    fn no_reports_and_too_many_fail_the_message() {
        for count in [0, 10_001] {
            let error = progress(vec![report(1); count], &ClusterSettings::DEFAULT).unwrap_err();
            assert_eq!(error.field(), Some("reports"));
        }
    }

    #[test]
    fn only_ok_needs_no_words() {
        let lease = Lease { id: 7, token: -1 };
        let answer = settle_result(lease, SettleStatus::Ok);
        assert_eq!(
            (answer.id, answer.token, answer.status(), answer.message.as_str()),
            (7, -1, v1::SettleStatus::Ok, "")
        );
        for status in [SettleStatus::LeaseLost, SettleStatus::Unavailable] {
            assert!(!settle_result(lease, status).message.is_empty());
        }
    }

    #[test]
    fn answers_of_check_and_broker_are_one_list_in_order() {
        let lease = |id| Lease { id, token: 0 };
        let refused = vec![(1, invalid_item(lease(2), &Error::invalid("outcome", "is not set")))];
        let answers =
            settle_results(refused, vec![lease(1), lease(3)], vec![SettleStatus::Ok, SettleStatus::LeaseLost]);
        let seen: Vec<_> = answers.iter().map(|answer| (answer.id, answer.status())).collect();
        assert_eq!(seen, [(1, v1::SettleStatus::Ok), (2, v1::SettleStatus::Invalid), (3, v1::SettleStatus::LeaseLost)]);
    }
}

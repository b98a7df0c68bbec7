//! Checks of progress reports. An invalid report gets a separate error; only an invalid list of reports fails the whole
//! message.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Lease, Limits, ProgressReport},
};
use howdah_proto::v1;

use super::{items::Items, numbers, text};
use crate::api::render;

/// Checks the reports of one message. A job may have several reports; the last value of each field counts.
pub(crate) fn progress(
    reports: Vec<v1::ProgressReport>,
    limits: &ClusterSettings,
) -> Result<Items<ProgressReport>, Error> {
    numbers::entries("reports", reports.len(), 1..=limits.batch)?;
    Ok(Items::part(reports.into_iter().enumerate().map(|(i, wire)| {
        let lease = Lease { id: wire.id, token: wire.token };
        report(lease, wire).map_err(|error| render::invalid_item(lease, &error.within(&format!("reports[{i}]"))))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn item(id: i64) -> v1::ProgressReport {
        v1::ProgressReport { id, token: id + 1000, fraction: Some(0.5), ..Default::default() }
    }

    #[test]
    fn an_invalid_report_is_refused_without_failing_the_message_and_its_field_is_named() {
        let bad = [
            ("fraction", v1::ProgressReport { fraction: Some(1.01), ..item(2) }),
            ("fraction", v1::ProgressReport { fraction: Some(-0.1), ..item(2) }),
            ("fraction", v1::ProgressReport { fraction: Some(f64::NAN), ..item(2) }),
            ("fraction", v1::ProgressReport { fraction: None, ..item(2) }),
            ("text", v1::ProgressReport { text: Some("x".repeat(1025)), ..item(2) }),
            ("text", v1::ProgressReport { text: Some("a\0".into()), ..item(2) }),
            ("checkpoint", v1::ProgressReport { checkpoint: Some(vec![0; (64 << 10) + 1].into()), ..item(2) }),
        ];
        for (field, report) in bad {
            let items = progress(vec![item(1), report], &ClusterSettings::DEFAULT).unwrap();
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
            ..item(1)
        };
        let items = progress(vec![largest, item(1)], &ClusterSettings::DEFAULT).unwrap();
        assert_eq!((items.accepted.len(), items.refused.len()), (2, 0));
    }

    #[test]
    fn no_reports_and_too_many_fail_the_message() {
        for count in [0, 10_001] {
            let error = progress(vec![item(1); count], &ClusterSettings::DEFAULT).unwrap_err();
            assert_eq!(error.field(), Some("reports"));
        }
    }
}

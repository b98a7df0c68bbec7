//! Checks of lease extensions. An invalid extension gets a separate error; only an invalid list of extensions fails the whole
//! message.

use std::time::Duration;

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Lease},
};
use howdah_proto::v1;

use super::{
    items::{Items, refuse_repeats},
    numbers, time,
};
use crate::api::render;

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
            .map_err(|error| render::invalid_item(lease, &error.within(&format!("extensions[{i}]"))))
    });
    // A second extension of a job is INVALID. It is not LEASE_LOST, as for a second outcome, because the first extension does
    // not end the lease.
    let twice = |i, (lease, _): (Lease, _)| {
        let problem = "is a second extension of one job in a message; the first one counts";
        render::invalid_item(lease, &Error::invalid(format!("extensions[{i}]"), problem))
    };
    Ok(Items::part(refuse_repeats(checked, |(lease, _)| lease.id, twice)))
}

#[cfg(test)]
mod tests {
    use prost_types::Duration as WireDuration;

    use super::*;

    fn item(id: i64, duration: Option<(i64, i32)>) -> v1::Extension {
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
            let items = extend(vec![item(1, Some((60, 0))), item(2, bad)], &ClusterSettings::DEFAULT).unwrap();
            assert_eq!(items.accepted, [(Lease { id: 1, token: 1001 }, Duration::from_secs(60))]);
            let [(1, answer)] = &items.refused[..] else { panic!("{bad:?}") };
            assert_eq!((answer.id, answer.token, answer.status()), (2, 1002, v1::SettleStatus::Invalid));
            assert!(answer.message.starts_with("extensions[1].duration is "), "{}", answer.message);
        }
    }

    #[test]
    fn a_job_extended_twice_keeps_its_lease_and_the_first_extension() {
        let items = extend(vec![item(1, Some((60, 0))), item(1, Some((90, 0)))], &ClusterSettings::DEFAULT).unwrap();
        assert_eq!(items.accepted[0].1, Duration::from_secs(60));
        assert_eq!(items.refused[0].1.status(), v1::SettleStatus::Invalid);
    }

    #[test]
    fn no_extensions_and_too_many_fail_the_message() {
        for count in [0, 10_001] {
            let error = extend(vec![item(1, None); count], &ClusterSettings::DEFAULT).unwrap_err();
            assert_eq!(error.field(), Some("extensions"));
        }
    }
}

//! Checks of the job fields that a bulk operation sets. The bounds are the same as in an enqueue.

use std::time::{Duration, SystemTime};

use howdah_core::{
    error::Error,
    job::{BulkFields, ClusterSettings, Limits},
};
use howdah_proto::v1::{self, bulk_fields::Start};

use super::{new_job::tags, numbers, time};

/// Checks the job fields that a bulk operation sets. At least one must be set. `now` is the broker's clock.
pub(super) fn bulk_fields(
    fields: Option<v1::BulkFields>,
    limits: &ClusterSettings,
    now: SystemTime,
) -> Result<BulkFields, Error> {
    let set = each(fields.unwrap_or_default(), limits, now).map_err(|error| error.within("fields"))?;
    if set == BulkFields::default() {
        return Err(Error::invalid("fields", "is not set, or has no field; set at least one"));
    }
    Ok(set)
}

fn each(fields: v1::BulkFields, limits: &ClusterSettings, now: SystemTime) -> Result<BulkFields, Error> {
    let attempts = |given: i32| numbers::within("max_attempts", given.into(), 1..=Limits::MAX_ATTEMPTS.into());
    let timeout = time::optional("timeout", fields.timeout, &(time::MILLISECOND..=limits.max_timeout))?;
    let (mut start_us, mut delay_ms) = (None, None);
    match fields.start {
        None => {}
        Some(Start::RunAt(at)) => start_us = Some(time::run_at("run_at", at, now, limits.max_delay)?),
        Some(Start::Delay(delay)) => {
            let delay = time::duration("delay", delay, &(Duration::ZERO..=limits.max_delay))?;
            delay_ms = Some(delay.as_millis() as i64);
        }
    }
    let (add_tags, remove_tags) = (tags("add_tags", fields.add_tags)?, tags("remove_tags", fields.remove_tags)?);
    if let Some(i) = remove_tags.iter().position(|tag| add_tags.contains(tag)) {
        return Err(Error::invalid(format!("remove_tags[{i}]"), "is in add_tags, too; leave it out of one of them"));
    }
    Ok(BulkFields {
        max_attempts: fields.max_attempts.map(attempts).transpose()?.map(|attempts| attempts as i16),
        timeout_ms: timeout.map(|timeout| timeout.as_millis() as i64),
        start_us,
        delay_ms,
        add_tags,
        remove_tags,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(fields: v1::BulkFields) -> Result<BulkFields, Error> {
        bulk_fields(Some(fields), &ClusterSettings::DEFAULT, SystemTime::now())
    }

    fn after(seconds: i64) -> Option<Start> {
        Some(Start::Delay(prost_types::Duration { seconds, nanos: 0 }))
    }

    #[test]
    fn the_error_names_the_invalid_bulk_field() {
        let none = v1::BulkFields::default;
        let timeout = |seconds| v1::BulkFields { timeout: Some(prost_types::Duration { seconds, nanos: 0 }), ..none() };
        let tags = |tags: &[&str]| tags.iter().map(|tag| (*tag).to_owned()).collect::<Vec<_>>();
        let cases = [
            ("fields", none()),
            ("fields.max_attempts", v1::BulkFields { max_attempts: Some(0), ..none() }),
            ("fields.max_attempts", v1::BulkFields { max_attempts: Some(1_001), ..none() }),
            ("fields.timeout", timeout(0)),
            ("fields.timeout", timeout(-1)),
            ("fields.timeout", timeout(30 * 24 * 3600 + 1)),
            ("fields.delay", v1::BulkFields { start: after(-1), ..none() }),
            ("fields.delay", v1::BulkFields { start: after(i64::MAX), ..none() }),
            (
                "fields.run_at",
                v1::BulkFields {
                    start: Some(Start::RunAt(prost_types::Timestamp { seconds: i64::MAX, nanos: 0 })),
                    ..none()
                },
            ),
            ("fields.add_tags[0]", v1::BulkFields { add_tags: tags(&[""]), ..none() }),
            ("fields.add_tags", v1::BulkFields { add_tags: (0..17).map(|i| i.to_string()).collect(), ..none() }),
            ("fields.remove_tags[1]", v1::BulkFields { remove_tags: tags(&["a", "b\0"]), ..none() }),
            (
                "fields.remove_tags[1]",
                v1::BulkFields { add_tags: tags(&["a"]), remove_tags: tags(&["b", "a"]), ..none() },
            ),
        ];
        for (field, fields) in cases {
            assert_eq!(check(fields).expect_err(field).field(), Some(field));
        }
        assert_eq!(
            bulk_fields(None, &ClusterSettings::DEFAULT, SystemTime::now()).unwrap_err().field(),
            Some("fields")
        );
    }

    #[test]
    fn a_zero_delay_and_a_past_run_at_are_valid_starts() {
        assert!(check(v1::BulkFields { start: after(0), ..Default::default() }).unwrap().has_start());
        let past = Some(Start::RunAt(prost_types::Timestamp { seconds: 1, nanos: 0 }));
        let fields = check(v1::BulkFields { start: past, ..Default::default() }).unwrap();
        assert_eq!((fields.start_us, fields.delay_ms), (Some(1_000_000), None));
    }
}

//! Checks of conditions on jobs.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, JobConditions, Limits},
};
use howdah_proto::v1;

use super::{numbers, text, time};

/// Maximum of a number of attempts: no job has more.
const ATTEMPTS: i64 = 1_000;
/// Length of the public id of a worker, in hexadecimal digits.
const WORKER_ID: usize = 16;

/// Checks the conditions in the field `field` of a message; none if they are not set.
pub(in crate::api) fn job_conditions(
    field: &str,
    given: Option<v1::JobConditions>,
    limits: &ClusterSettings,
) -> Result<JobConditions, Error> {
    given.map_or(Ok(JobConditions::default()), |given| conditions(given, limits).map_err(|error| error.within(field)))
}

fn conditions(given: v1::JobConditions, limits: &ClusterSettings) -> Result<JobConditions, Error> {
    let created_before_us = given.created_before.map(|at| time::at("created_before", at)).transpose()?;
    let created_since_us = given.created_since.map(|at| time::at("created_since", at)).transpose()?;
    if created_since_us.is_some() && created_before_us.is_some_and(|before| Some(before) <= created_since_us) {
        return Err(Error::invalid("created_before", "is not later than created_since"));
    }
    let attempts_at_least = attempts("attempts_at_least", given.attempts_at_least)?;
    let attempts_at_most = attempts("attempts_at_most", given.attempts_at_most)?;
    if let (Some(least), Some(most)) = (attempts_at_least, attempts_at_most)
        && least > most
    {
        return Err(Error::invalid(
            "attempts_at_most",
            format!("is {most}, less than attempts_at_least, which is {least}"),
        ));
    }
    Ok(JobConditions {
        created_before_us,
        created_since_us,
        tag: text::optional("tag", given.tag, Limits::TAG_BYTES)?,
        fair_key: text::optional("fair_key", given.fair_key, limits.key_bytes)?,
        limit_key: text::optional("limit_key", given.limit_key, limits.key_bytes)?,
        attempts_at_least,
        attempts_at_most,
        worker_id: worker_id(given.worker_id)?,
    })
}

fn attempts(field: &str, number: Option<i32>) -> Result<Option<i16>, Error> {
    let number = number.map(|number| numbers::within(field, number.into(), 0..=ATTEMPTS)).transpose()?;
    Ok(number.and_then(|number| i16::try_from(number).ok()))
}

fn worker_id(id: String) -> Result<Option<String>, Error> {
    let is_digit = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    if id.is_empty() || (id.len() == WORKER_ID && id.bytes().all(is_digit)) {
        return Ok(Some(id).filter(|id| !id.is_empty()));
    }
    let problem = format!("is {}; give 16 hexadecimal digits, as ListWorkers returns them", text::shown(&id));
    Err(Error::invalid("worker_id", problem))
}

#[cfg(test)]
mod tests {
    use prost_types::Timestamp;

    use super::*;

    #[test]
    fn the_error_names_the_invalid_condition() {
        let at = |seconds| Some(Timestamp { seconds, nanos: 0 });
        let none = v1::JobConditions::default;
        let cases = [
            ("c.created_before", v1::JobConditions { created_before: at(-1), ..none() }),
            ("c.created_since", v1::JobConditions { created_since: at(-1), ..none() }),
            ("c.created_before", v1::JobConditions { created_before: at(5), created_since: at(5), ..none() }),
            ("c.tag", v1::JobConditions { tag: "t".repeat(65), ..none() }),
            ("c.tag", v1::JobConditions { tag: "\0".into(), ..none() }),
            ("c.fair_key", v1::JobConditions { fair_key: "k".repeat(201), ..none() }),
            ("c.limit_key", v1::JobConditions { limit_key: "a\nb".into(), ..none() }),
            ("c.worker_id", v1::JobConditions { worker_id: "17".into(), ..none() }),
            ("c.worker_id", v1::JobConditions { worker_id: "0123456789ABCDEF".into(), ..none() }),
            ("c.attempts_at_least", v1::JobConditions { attempts_at_least: Some(-1), ..none() }),
            ("c.attempts_at_most", v1::JobConditions { attempts_at_most: Some(1_001), ..none() }),
            (
                "c.attempts_at_most",
                v1::JobConditions { attempts_at_least: Some(3), attempts_at_most: Some(2), ..none() },
            ),
        ];
        for (field, given) in cases {
            let error = job_conditions("c", Some(given), &ClusterSettings::DEFAULT).expect_err(field);
            assert_eq!(error.field(), Some(field), "{error}");
        }
    }

    #[test]
    fn empty_conditions_select_every_job_and_zero_attempts_are_a_condition() {
        let check = |given| job_conditions("c", given, &ClusterSettings::DEFAULT).unwrap();
        assert!(check(None).is_empty() && check(Some(v1::JobConditions::default())).is_empty());
        let fresh = v1::JobConditions { attempts_at_most: Some(0), ..Default::default() };
        assert_eq!(check(Some(fresh)), JobConditions { attempts_at_most: Some(0), ..JobConditions::default() });
    }
}

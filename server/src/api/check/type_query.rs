//! Checks of queries for task types and of changes of their settings.

use std::time::Duration;

use howdah_proto::v1;

use super::{fallback, limits as type_limits, numbers, retry, task_type, time};
use crate::{
    api::page_token,
    error::Error,
    job::{ClusterSettings, HistoryMode, PRIORITY_STEP, TaskTypeName, TypeSettings},
};

pub(crate) const MAX_PAGE: usize = 1000;

/// A query for task types.
#[derive(Clone, Debug)]
pub(crate) struct TypesQuery {
    /// Last name of the previous page.
    pub(crate) after: String,
    /// Page size.
    pub(crate) page_size: usize,
    /// Only the type with this name.
    pub(crate) only: Option<TaskTypeName>,
    /// Use the last job counts instead of counting now.
    pub(crate) last_count: bool,
}

/// Checks a query for task types.
pub(crate) fn list_task_types(request: &v1::ListTaskTypesRequest) -> Result<TypesQuery, Error> {
    let name = Some(&request.task_type).filter(|name| !name.is_empty());
    Ok(TypesQuery {
        after: page_token::name(&request.page_token)?,
        page_size: numbers::page_size(request.page_size, MAX_PAGE, MAX_PAGE)?,
        only: name.map(|name| task_type("task_type", name)).transpose()?,
        last_count: request.last_count,
    })
}

/// Checks a change of a task type. Returns the type and all of its settings.
pub(crate) fn update_task_type(
    request: &v1::UpdateTaskTypeRequest,
    limits: &ClusterSettings,
) -> Result<(TaskTypeName, TypeSettings), Error> {
    let name = task_type("task_type", &request.task_type)?;
    // Required, because otherwise a request without the field would reset all settings.
    let Some(settings) = &request.settings else {
        let problem = "is not set; set an empty message to return to the broker's defaults";
        return Err(Error::invalid("settings", problem));
    };
    let settings = self::settings(settings, &name, limits).map_err(|error| error.within("settings"))?;
    Ok((name, settings))
}

fn settings(
    settings: &v1::TaskTypeSettings,
    of: &TaskTypeName,
    limits: &ClusterSettings,
) -> Result<TypeSettings, Error> {
    let most_bytes = i64::try_from(limits.payload_bytes.min(i32::MAX as usize)).unwrap_or_default();
    Ok(TypeSettings {
        max_attempts: retry::max_attempts(settings.max_attempts)?,
        retry: retry::retry_policy(settings.retry_policy.as_ref())?,
        history: history(settings.history)?,
        priority_step_us: priority_step(settings.priority_step)?,
        timeout: time::optional("timeout", settings.timeout, &(time::MILLISECOND..=limits.max_timeout))?,
        paused: settings.paused,
        max_payload_bytes: unless_0("max_payload_bytes", settings.max_payload_bytes, most_bytes)?.map(|n| n as i32),
        max_backlog: unless_0("max_backlog", settings.max_backlog, TypeSettings::MAX_BACKLOG)?,
        history_days: unless_0("history_days", settings.history_days.into(), TypeSettings::MAX_HISTORY_DAYS)?
            .map(|n| n as i16),
        limits: type_limits::type_limits(settings)?,
        fallback: fallback("fallback", &settings.fallback, of)?,
    })
}

/// Checks a number from 1 to `most`. Returns `None` if it is 0.
fn unless_0(field: &str, value: i64, most: i64) -> Result<Option<i64>, Error> {
    Ok(Some(numbers::within(field, value, 0..=most)?).filter(|&number| number != 0))
}

/// Checks a priority step. The largest step is 2^45 µs; a value that was rounded up to milliseconds is reduced to it.
fn priority_step(value: Option<prost_types::Duration>) -> Result<Option<i64>, Error> {
    let range = time::MILLISECOND..=Duration::from_micros(PRIORITY_STEP as u64);
    let step = time::optional("priority_step", value, &range)?;
    Ok(step.map(|step| (step.as_micros() as i64).min(PRIORITY_STEP)))
}

fn history(number: i32) -> Result<Option<HistoryMode>, Error> {
    match v1::HistoryMode::try_from(number) {
        Ok(v1::HistoryMode::Unspecified) => Ok(None),
        Ok(v1::HistoryMode::Full) => Ok(Some(HistoryMode::Full)),
        Ok(v1::HistoryMode::Failures) => Ok(Some(HistoryMode::Failures)),
        Ok(v1::HistoryMode::None) => Ok(Some(HistoryMode::None)),
        Ok(v1::HistoryMode::WithoutEmpty) => Ok(Some(HistoryMode::WithoutEmpty)),
        Err(_) => Err(Error::invalid("history", format!("is the unknown value {number}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_said_is_a_thousand_types_from_the_first() {
        let query = list_task_types(&v1::ListTaskTypesRequest::default()).unwrap();
        assert_eq!((query.after.as_str(), query.page_size, query.only), ("", 1000, None));
    }

    #[test]
    fn whatever_is_out_of_bounds_of_a_list_is_named() {
        let cases = [
            ("page_size", v1::ListTaskTypesRequest { page_size: -5, ..Default::default() }),
            ("page_token", v1::ListTaskTypesRequest { page_token: "zz".into(), ..Default::default() }),
            ("task_type", v1::ListTaskTypesRequest { task_type: "a b".into(), ..Default::default() }),
        ];
        for (field, request) in cases {
            assert_eq!(list_task_types(&request).expect_err(field).field(), Some(field));
        }
    }

    #[test]
    fn settings_are_checked_like_those_of_a_job() {
        let update = |settings| {
            let request = v1::UpdateTaskTypeRequest { task_type: "a".into(), settings };
            update_task_type(&request, &ClusterSettings::DEFAULT)
        };
        assert_eq!(update(Some(v1::TaskTypeSettings::default())).unwrap().1, TypeSettings::default());
        assert_eq!(update(None).unwrap_err().field(), Some("settings"));
        let attempts = v1::TaskTypeSettings { max_attempts: 1001, ..Default::default() };
        assert_eq!(update(Some(attempts)).unwrap_err().field(), Some("settings.max_attempts"));
        let itself = v1::TaskTypeSettings { fallback: "a".into(), ..Default::default() };
        assert_eq!(update(Some(itself)).unwrap_err().field(), Some("settings.fallback"));
        let jitter = v1::RetryPolicy { jitter: Some(f64::NAN), ..Default::default() };
        let retry = v1::TaskTypeSettings { retry_policy: Some(jitter), ..Default::default() };
        assert_eq!(update(Some(retry)).unwrap_err().field(), Some("settings.retry_policy.jitter"));
    }

    const fn wire(seconds: i64, nanos: i32) -> Option<prost_types::Duration> {
        Some(prost_types::Duration { seconds, nanos })
    }

    #[test]
    fn each_setting_has_its_bounds() {
        let check = |change: fn(&mut v1::TaskTypeSettings)| {
            let mut changed = v1::TaskTypeSettings::default();
            change(&mut changed);
            let of = TaskTypeName::parse("a").unwrap();
            settings(&changed, &of, &ClusterSettings::DEFAULT)
                .map_err(|error| error.field().unwrap_or_default().to_owned())
        };
        assert_eq!(check(|s| s.priority_step = wire(0, 1_000_000)).unwrap().priority_step_us, Some(1000));
        let strict = check(|s| s.priority_step = wire(35_184_372, 88_832_000)).unwrap();
        assert_eq!(strict.priority_step_us, Some(PRIORITY_STEP));
        for bad in [
            check(|s| s.priority_step = wire(0, 999_999)),
            check(|s| s.priority_step = wire(35_184_372, 88_832_001)),
            check(|s| s.priority_step = wire(-1, 0)),
        ] {
            assert_eq!(bad.unwrap_err(), "priority_step");
        }
        assert_eq!(check(|s| s.timeout = wire(0, 0)).unwrap_err(), "timeout");
        assert_eq!(check(|s| s.timeout = wire(30 * 24 * 3600 + 1, 0)).unwrap_err(), "timeout");
        assert_eq!(check(|s| s.max_payload_bytes = 1 << 20).unwrap().max_payload_bytes, Some(1 << 20));
        assert_eq!(check(|s| s.max_payload_bytes = (1 << 20) + 1).unwrap_err(), "max_payload_bytes");
        assert_eq!(check(|s| s.max_payload_bytes = -1).unwrap_err(), "max_payload_bytes");
        assert_eq!(check(|s| s.max_backlog = 10_000_000).unwrap().max_backlog, Some(10_000_000));
        assert_eq!(check(|s| s.max_backlog = 10_000_001).unwrap_err(), "max_backlog");
        assert_eq!(check(|s| s.max_backlog = i64::MIN).unwrap_err(), "max_backlog");
        assert_eq!(check(|s| s.history_days = 3650).unwrap().history_days, Some(3650));
        assert_eq!(check(|s| s.history_days = u32::MAX).unwrap_err(), "history_days");
    }
}

//! Checks of limits of task types and of limit keys.

use std::time::Duration;

use howdah_proto::v1;

use super::{numbers, task_type, text, time};
use crate::{
    api::page_token,
    error::Error,
    job::{ClusterSettings, TaskTypeName, TypeLimits},
};

/// Largest number in a limit.
const MOST: u32 = 1_000_000;
pub(crate) const MAX_PAGE: usize = 1000;
pub(crate) const DEFAULT_PAGE: usize = 100;

/// Checks the limits in a type's settings.
pub(super) fn type_limits(settings: &v1::TaskTypeSettings) -> Result<TypeLimits, Error> {
    let (rate_per_s, rate_burst) = rate("rate", settings.rate.as_ref())?;
    let (key_rate_per_s, key_rate_burst) = rate("key_rate", settings.key_rate.as_ref())?;
    let key_max_running = most("key_max_running", settings.key_max_running)?;
    if settings.key_strict_order && key_max_running.is_none() {
        return Err(Error::invalid("key_strict_order", "is set without key_max_running; set that too"));
    }
    let gap = time::optional("key_min_gap", settings.key_min_gap, &(time::MILLISECOND..=time::MONTH))?;
    Ok(TypeLimits {
        max_running: most("max_running", settings.max_running)?,
        rate_per_s,
        rate_burst,
        key_max_running,
        key_strict: settings.key_strict_order.then_some(true),
        key_min_gap_ms: gap.map(|gap| gap.as_millis() as i64),
        key_rate_per_s,
        key_rate_burst,
    })
}

fn most(field: &str, value: u32) -> Result<Option<i32>, Error> {
    match value {
        0 => Ok(None),
        1..=MOST => Ok(Some(value as i32)),
        _ => Err(Error::invalid(field, format!("is {value}; 1 to {MOST} is allowed, or 0 for no limit"))),
    }
}

fn rate(field: &str, rate: Option<&v1::Rate>) -> Result<(Option<f64>, Option<i32>), Error> {
    let Some(rate) = rate else { return Ok((None, None)) };
    if !(rate.per_second > 0.0 && rate.per_second <= f64::from(MOST)) {
        let problem = format!("is {}; more than 0 and at most {MOST} is allowed", rate.per_second);
        return Err(Error::invalid(format!("{field}.per_second"), problem));
    }
    let burst_field = format!("{field}.burst");
    if rate.burst == 0 {
        let problem = format!("is 0; 1 to {MOST} is allowed; for no limit leave {field} out");
        return Err(Error::invalid(burst_field, problem));
    }
    Ok((Some(rate.per_second), most(&burst_field, rate.burst)?))
}

/// A limit key to pause, and the length of the pause.
#[derive(Clone, Debug)]
pub(crate) struct PauseKey {
    /// The task type.
    pub(crate) task_type: TaskTypeName,
    /// The key.
    pub(crate) key: String,
    /// Length of the pause; `None` to pause the key until an operator resumes it.
    pub(crate) duration: Option<Duration>,
}

/// Checks a request to pause a limit key.
pub(crate) fn pause_limit_key(request: v1::PauseLimitKeyRequest, limits: &ClusterSettings) -> Result<PauseKey, Error> {
    Ok(PauseKey {
        task_type: task_type("task_type", &request.task_type)?,
        key: key(request.limit_key, limits)?,
        duration: time::optional("duration", request.duration, &(time::MILLISECOND..=limits.max_delay))?,
    })
}

/// Checks a request to resume a limit key.
pub(crate) fn resume_limit_key(
    request: v1::ResumeLimitKeyRequest,
    limits: &ClusterSettings,
) -> Result<(TaskTypeName, String), Error> {
    Ok((task_type("task_type", &request.task_type)?, key(request.limit_key, limits)?))
}

fn key(key: String, limits: &ClusterSettings) -> Result<String, Error> {
    text::optional("limit_key", key, limits.key_bytes)?
        .ok_or_else(|| Error::invalid("limit_key", format!("is empty; 1 to {} bytes are allowed", limits.key_bytes)))
}

/// Checks a query for a type's limit keys. Returns the type, the last key of the previous page, and the page size.
pub(crate) fn list_limit_keys(request: &v1::ListLimitKeysRequest) -> Result<(TaskTypeName, String, usize), Error> {
    Ok((
        task_type("task_type", &request.task_type)?,
        page_token::limit_key(&request.page_token)?,
        numbers::page_size(request.page_size, DEFAULT_PAGE, MAX_PAGE)?,
    ))
}

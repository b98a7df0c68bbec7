//! `UpdateTaskType`: replaces all settings of a task type, or changes some of them.

use std::time::Duration;

use howdah_core::job::{PRIORITY_STEP, TaskTypeName, TypeLimits, TypeSettings};
use howdah_proto::json::masked;

use crate::api::{
    check::{fallback, history, retry},
    verbs::prelude::*,
};

/// Maximum value of a limit in the settings of a task type.
const MOST: u32 = 1_000_000;
/// Minimum rate in jobs per second, one job in 11 days. With a rate near 0 the time of the next start would overflow.
const LEAST_RATE: f64 = 0.000_001;
/// Type of the settings in the protocol.
const MESSAGE: &str = "TaskTypeSettings";
/// Defaults of the first and the longest pause of a brake.
const BRAKE_INITIAL: Duration = Duration::from_secs(1);
const BRAKE_MAX: Duration = Duration::from_mins(1);

impl Verb for UpdateTaskType {
    const RULE: Rule = Rule::Types(Operation::Operate);

    /// Checked request: the task type, and its new settings.
    type Args = (TaskTypeName, Change);

    fn check(request: v1::UpdateTaskTypeRequest, cluster: &ClusterSettings, _: &Limits) -> Result<Self::Args, Error> {
        let name = task_type("task_type", &request.task_type)?;
        let paths = request.update_mask.map(|mask| mask.paths).unwrap_or_default();
        for (i, path) in paths.iter().enumerate() {
            let empty = v1::TaskTypeSettings::default();
            masked(MESSAGE, &empty, &empty, std::slice::from_ref(path))
                .map_err(|error| Error::invalid(format!("update_mask.paths[{i}]"), error.to_string()))?;
        }
        if !paths.is_empty() {
            return Ok((name, Change::Some(request.settings.unwrap_or_default(), paths)));
        }
        // The field is required, because otherwise a request without it would reset all settings.
        let Some(settings) = &request.settings else {
            let problem = "is not set; set an empty message to return to the broker's defaults";
            return Err(Error::invalid("settings", problem));
        };
        let settings = self::settings(settings, &name, cluster).map_err(|error| error.within("settings"))?;
        Ok((name, Change::All(settings)))
    }

    async fn run(call: &mut Call, (name, change): Self::Args) -> Result<v1::UpdateTaskTypeResponse, Error> {
        let by = call.by()?;
        call.caller.check(Operation::Operate, &name)?;
        let (operator, cluster) = (&call.broker.operator, call.broker.cluster());
        loop {
            let before = operator.type_settings(&name).await?.unwrap_or_default();
            let (settings, expected) = match &change {
                Change::All(settings) => (settings.clone(), None),
                Change::Some(new, paths) => (changed(&before, new, paths, &name, &cluster)?, Some(&before)),
            };
            if let Some(to) = &settings.fallback
                && let Err(denied) = call.caller.check_reroute(&name, to)
                // A fallback that the caller may not set is accepted if it is the current one.
                && before.fallback.as_ref() != Some(to)
            {
                return Err(denied);
            }
            // Another call may have changed the settings since they were read.
            if operator.update_task_type(&name, &settings, expected, &by).await? {
                return Ok(v1::UpdateTaskTypeResponse { settings: Some(render::settings(&settings)) });
            }
        }
    }

    async fn route(call: &Call, request: v1::UpdateTaskTypeRequest) -> Answer<Self> {
        let stores = call.concerned_or_home(&request.task_type).await?;
        call.change::<Self>(stores, request).await
    }
}

impl Merge for UpdateTaskType {
    fn merge(all: &mut v1::UpdateTaskTypeResponse, part: v1::UpdateTaskTypeResponse, _: &str) {
        all.settings = all.settings.take().or(part.settings);
    }
}

/// New settings of a task type.
pub(crate) enum Change {
    /// All settings.
    All(TypeSettings),
    /// Settings at the paths of an update mask. They are checked together with the stored settings, on which they may depend.
    Some(v1::TaskTypeSettings, Vec<String>),
}

/// Applies an update mask to stored settings, and checks the result.
fn changed(
    before: &TypeSettings,
    new: &v1::TaskTypeSettings,
    paths: &[String],
    of: &TaskTypeName,
    cluster: &ClusterSettings,
) -> Result<TypeSettings, Error> {
    let all = masked(MESSAGE, &render::settings(before), new, paths)
        .map_err(|error| Error::Internal(format!("bug: an update mask was not checked: {error}")))?;
    settings(&all, of, cluster).map_err(|error| error.within("settings"))
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
        history_days: days("history_days", settings.history_days)?,
        dead_days: days("dead_days", settings.dead_days)?,
        limits: type_limits(settings)?,
        fallback: fallback("fallback", &settings.fallback, of)?,
    })
}

fn days(field: &str, days: u32) -> Result<Option<i16>, Error> {
    Ok(unless_0(field, days.into(), TypeSettings::MAX_HISTORY_DAYS)?.map(|days| days as i16))
}

/// Checks a number from 1 to `most`. Returns `None` if it is 0.
fn unless_0(field: &str, value: i64, most: i64) -> Result<Option<i64>, Error> {
    Ok(Some(numbers::within(field, value, 0..=most)?).filter(|&number| number != 0))
}

/// Checks a priority step. Rounding up to milliseconds may exceed the maximum of 2^45 µs, so the step is capped.
fn priority_step(value: Option<prost_types::Duration>) -> Result<Option<i64>, Error> {
    let range = time::MILLISECOND..=Duration::from_micros(PRIORITY_STEP as u64);
    let step = time::optional("priority_step", value, &range)?;
    Ok(step.map(|step| (step.as_micros() as i64).min(PRIORITY_STEP)))
}

/// Checks the limits in the settings of a task type.
pub(super) fn type_limits(settings: &v1::TaskTypeSettings) -> Result<TypeLimits, Error> {
    let (rate_per_s, rate_burst) = rate("rate", settings.rate.as_ref())?;
    let (key_rate_per_s, key_rate_burst) = rate("key_rate", settings.key_rate.as_ref())?;
    let key_max_running = most("key_max_running", settings.key_max_running)?;
    if settings.key_strict_order && key_max_running.is_none() {
        return Err(Error::invalid("key_strict_order", "is set without key_max_running; set that too"));
    }
    let brake = settings.brake.as_ref().map(brake).transpose().map_err(|error| error.within("brake"))?;
    let gap = time::optional("key_min_gap", settings.key_min_gap, &(time::MILLISECOND..=time::MONTH))?;
    if settings.key_gap_from_end && gap.is_none() {
        return Err(Error::invalid("key_gap_from_end", "is set without key_min_gap; set that too"));
    }
    Ok(TypeLimits {
        max_running: most("max_running", settings.max_running)?,
        rate_per_s,
        rate_burst,
        key_max_running,
        key_strict: settings.key_strict_order.then_some(true),
        key_min_gap_ms: gap.map(|gap| gap.as_millis() as i64),
        key_gap_from_end: settings.key_gap_from_end.then_some(true),
        key_rate_per_s,
        key_rate_burst,
        brake_failures: brake.map(|(failures, ..)| failures),
        brake_initial_ms: brake.map(|(_, initial, _)| initial.as_millis() as i64),
        brake_max_ms: brake.map(|(.., max)| max.as_millis() as i64),
    })
}

/// Checks a brake. Returns its number of failed attempts, and its first and its longest pause.
fn brake(brake: &v1::Brake) -> Result<(i32, Duration, Duration), Error> {
    let Some(failures) = most("failures", brake.failures)? else {
        return Err(Error::invalid("failures", format!("is 0; 1 to {MOST} is allowed; for no brake, leave it out")));
    };
    let initial = time::optional("initial_delay", brake.initial_delay, &(time::MILLISECOND..=time::MONTH))?;
    let initial = initial.unwrap_or(BRAKE_INITIAL);
    let max = time::optional("max_delay", brake.max_delay, &(initial..=time::MONTH))?;
    Ok((failures, initial, max.unwrap_or(BRAKE_MAX.max(initial))))
}

/// Checks a limit. Returns `None` if it is 0.
pub(super) fn most(field: &str, value: u32) -> Result<Option<i32>, Error> {
    match value {
        0 => Ok(None),
        1..=MOST => Ok(Some(value as i32)),
        _ => Err(Error::invalid(field, format!("is {value}; 1 to {MOST} is allowed, or 0 for no limit"))),
    }
}

fn rate(field: &str, rate: Option<&v1::Rate>) -> Result<(Option<f64>, Option<i32>), Error> {
    let Some(rate) = rate else { return Ok((None, None)) };
    if !(LEAST_RATE..=f64::from(MOST)).contains(&rate.per_second) {
        let problem = format!("is {:?}; {LEAST_RATE} to {MOST} is allowed", rate.per_second);
        return Err(Error::invalid(format!("{field}.per_second"), problem));
    }
    let burst_field = format!("{field}.burst");
    if rate.burst == 0 {
        let problem = format!("is 0; 1 to {MOST} is allowed; for no limit leave {field} out");
        return Err(Error::invalid(burst_field, problem));
    }
    Ok((Some(rate.per_second), most(&burst_field, rate.burst)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update_task_type(request: &v1::UpdateTaskTypeRequest, cluster: &ClusterSettings) -> Result<TypeSettings, Error> {
        let (name, change) = UpdateTaskType::check(request.clone(), cluster, &Limits::default())?;
        match change {
            Change::All(settings) => Ok(settings),
            Change::Some(new, paths) => changed(&TypeSettings::default(), &new, &paths, &name, cluster),
        }
    }

    #[test]
    fn settings_named_by_an_update_mask_are_checked_with_the_stored_ones() {
        let update = |settings, paths: &[&str]| {
            let mask = prost_types::FieldMask { paths: paths.iter().copied().map(str::to_owned).collect() };
            let request = v1::UpdateTaskTypeRequest { task_type: "a".into(), settings, update_mask: Some(mask) };
            update_task_type(&request, &ClusterSettings::DEFAULT)
        };
        let new = v1::TaskTypeSettings { max_attempts: 3, key_strict_order: true, ..Default::default() };
        assert_eq!(update(Some(new.clone()), &["max_attempts"]).unwrap().max_attempts, Some(3));
        assert_eq!(update(None, &["max_attempts"]).unwrap(), TypeSettings::default());
        let refused = |paths: &[&str]| update(Some(new.clone()), paths).unwrap_err();
        assert_eq!(refused(&["key_strict_order"]).field(), Some("settings.key_strict_order"));
        let unknown = refused(&["paused", "prio"]);
        assert_eq!(unknown.field(), Some("update_mask.paths[1]"));
        assert!(
            unknown.to_string().contains("\"prio\" is no field of TaskTypeSettings; its fields are max_attempts,"),
            "{unknown}"
        );
    }

    #[test]
    fn settings_are_checked_like_those_of_a_job() {
        let update = |settings| {
            let request = v1::UpdateTaskTypeRequest { task_type: "a".into(), settings, update_mask: None };
            update_task_type(&request, &ClusterSettings::DEFAULT)
        };
        assert_eq!(update(Some(v1::TaskTypeSettings::default())).unwrap(), TypeSettings::default());
        assert_eq!(update(None).unwrap_err().field(), Some("settings"));
        let attempts = v1::TaskTypeSettings { max_attempts: 1001, ..Default::default() };
        assert_eq!(update(Some(attempts)).unwrap_err().field(), Some("settings.max_attempts"));
        let itself = v1::TaskTypeSettings { fallback: "a".into(), ..Default::default() };
        assert_eq!(update(Some(itself)).unwrap_err().field(), Some("settings.fallback"));
        let jitter = v1::RetryPolicy { jitter: Some(f64::NAN), ..Default::default() };
        let retry = v1::TaskTypeSettings { retry_policy: Some(jitter), ..Default::default() };
        assert_eq!(update(Some(retry)).unwrap_err().field(), Some("settings.retry_policy.jitter"));
    }

    const fn rate(per_second: f64) -> Option<v1::Rate> {
        Some(v1::Rate { per_second, burst: 1 })
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
        assert_eq!(check(|s| s.rate = rate(LEAST_RATE)).unwrap().limits.rate_per_s, Some(LEAST_RATE));
        assert_eq!(check(|s| s.key_rate = rate(f64::MIN_POSITIVE)).unwrap_err(), "key_rate.per_second");
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

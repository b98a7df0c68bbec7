//! JSON output of a schedule. The stable names follow the protocol and the flags.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use howdah_client::proto::{Schedule, schedule::Plan};
use serde::Serialize;

use super::define::{DRIFTS, MISSED, OVERLAPS};
use crate::commands::text;

/// JSON object of a schedule.
#[derive(Debug, Serialize)]
pub(super) struct ScheduleJson {
    name: String,
    task_type: String,
    /// Base64; `payload_text` is set too if the payload is text.
    payload: String,
    payload_text: Option<String>,
    headers: BTreeMap<String, String>,
    priority: i32,
    /// Seconds; null for a cron schedule.
    period: Option<f64>,
    cron: Option<String>,
    time_zone: Option<String>,
    drift: Option<&'static str>,
    overlap: Option<&'static str>,
    missed: Option<&'static str>,
    missed_limit: u32,
    start_time: Option<String>,
    end_time: Option<String>,
    /// Seconds.
    jitter: f64,
    paused: bool,
    next_times: Vec<String>,
    waiting_time: Option<String>,
    last_planned_time: Option<String>,
    last_fire_time: Option<String>,
    last_job_id: Option<i64>,
    fired: i64,
    skipped: i64,
    last_error: Option<String>,
    create_time: Option<String>,
    update_time: Option<String>,
}

impl ScheduleJson {
    pub(super) fn new(schedule: &Schedule) -> Self {
        let time = |time: Option<&prost_types::Timestamp>| text::timestamp(time).map(|time| time.to_string());
        let seconds = |time: Option<&prost_types::Duration>| text::duration(time).map(|time| time.as_secs_f64());
        let job = schedule.template.clone().unwrap_or_default();
        let (period, cron) = match &schedule.plan {
            Some(Plan::Period(period)) => (seconds(Some(period)), None),
            Some(Plan::Cron(cron)) => (None, Some(cron)),
            None => (None, None),
        };
        Self {
            name: schedule.name.clone(),
            task_type: job.task_type,
            payload: STANDARD.encode(&job.payload),
            payload_text: text::as_text(&job.payload).map(str::to_owned),
            headers: job.headers.into_iter().collect(),
            priority: job.priority,
            period,
            cron: cron.map(|cron| cron.expression.clone()),
            time_zone: cron.map(|cron| cron.time_zone.clone()),
            drift: word(&DRIFTS, schedule.drift()),
            overlap: word(&OVERLAPS, schedule.overlap()),
            missed: word(&MISSED, schedule.missed()),
            missed_limit: schedule.missed_limit,
            start_time: time(schedule.start_time.as_ref()),
            end_time: time(schedule.end_time.as_ref()),
            jitter: seconds(schedule.jitter.as_ref()).unwrap_or_default(),
            paused: schedule.paused,
            next_times: schedule.next_times.iter().filter_map(|at| time(Some(at))).collect(),
            waiting_time: time(schedule.waiting_time.as_ref()),
            last_planned_time: time(schedule.last_planned_time.as_ref()),
            last_fire_time: time(schedule.last_fire_time.as_ref()),
            last_job_id: Some(schedule.last_job_id).filter(|id| *id != 0),
            fired: schedule.fired,
            skipped: schedule.skipped,
            last_error: Some(schedule.last_error.clone()).filter(|error| !error.is_empty()),
            create_time: time(schedule.create_time.as_ref()),
            update_time: time(schedule.update_time.as_ref()),
        }
    }
}

/// Flag value of a protocol value; `None` for a newer value that this program does not know.
pub(super) fn word<T: Copy + PartialEq>(words: &[(&'static str, T)], value: T) -> Option<&'static str> {
    words.iter().find(|(_, known)| *known == value).map(|(word, _)| *word)
}

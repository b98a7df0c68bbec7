//! The form that creates or changes a schedule, with a preview of its next times.

use std::collections::HashMap;

use askama::Template;
use axum::{
    body::Body,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse as _, Redirect, Response},
};
use howdah_core::{error::Error, job::Limits};
use howdah_engine::access::Operation;
use howdah_proto::{
    json::{WordError, from_words},
    v1::{self, Drift, MissedPolicy, schedule::Plan},
};
use jiff::Timestamp;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::{
    api::verbs::{CreateSchedule, GetSchedule, UpdateSchedule, Verb as _, schedules::NEXT_TIMES},
    page::{
        PageError, PageRequest, SharedPage,
        layout::{Layout, answer},
        params::{Params, query},
        words::{When, word},
    },
};

/// Maximum size of a payload that the form shows, in bytes. The schedule keeps a larger one.
const PAYLOAD: usize = 16 << 10;
/// Fields of the protocol, and the fields of the form that show their errors.
const FIELDS: [(&str, &str); 8] = [
    ("name", "name"),
    ("template.task_type", "type"),
    ("template.payload", "payload"),
    ("period", "every"),
    ("plan", "every"),
    ("cron.expression", "cron"),
    ("cron.time_zone", "time_zone"),
    ("start_time", "start"),
];

#[derive(Template)]
#[template(path = "schedule_form.html")]
struct View {
    layout: Layout,
    form: Form,
    /// Problems by field of the form. The empty name stands for the whole form.
    problems: HashMap<&'static str, String>,
    /// The next times, if the form was previewed.
    times: Option<Vec<When>>,
}

impl View {
    fn problem(&self, field: &str) -> &str {
        self.problems.get(field).map_or("", String::as_str)
    }
}

/// Contents of the form.
#[derive(Default)]
struct Form {
    /// Name of the schedule to change; empty to create one.
    of: String,
    name: String,
    task_type: String,
    payload: String,
    /// Whether the form shows the payload. Otherwise the schedule keeps it.
    has_payload: bool,
    every: String,
    cron: String,
    time_zone: String,
    overlap: String,
    missed: String,
    start: String,
    paused: bool,
}

/// A problem of the form: the field, and the text.
type Problem = (&'static str, String);

/// The form, empty or with the definition of a schedule.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    if !req.by.may_somewhere(Operation::Enqueue) {
        return Err(Error::Denied("the page is read-only, or you have no scope enqueue".into()).into());
    }
    let form = match req.params.get("name") {
        "" => Form { time_zone: "UTC".into(), has_payload: true, ..Form::default() },
        name => Form::of_schedule(&load(&req, name).await?),
    };
    Ok(shown(&req, form, HashMap::new(), None))
}

/// Previews or saves the form.
pub(in crate::page) async fn save(State(page): State<SharedPage>, request: Request<Body>) -> Response {
    let req = match PageRequest::of_change(page, request).await {
        Ok(req) => req,
        Err(trouble) => return trouble.into_response(),
    };
    save_form(&req).await.unwrap_or_else(|trouble| trouble.within(req.layout("schedules")))
}

async fn save_form(req: &PageRequest) -> Result<Response, PageError> {
    let form = Form::from_params(&req.params);
    let base = if form.of.is_empty() { v1::Schedule::default() } else { load(req, &form.of).await? };
    let schedule = match form.schedule(base) {
        Ok(schedule) => schedule,
        Err((field, problem)) => return Ok(shown(req, form, HashMap::from([(field, problem)]), None)),
    };
    if req.params.get("do") == "preview" {
        return Ok(match next_times(req, schedule) {
            Ok(times) => shown(req, form, HashMap::new(), Some(times)),
            Err(error) => shown(req, form, problems(&error.into()), None),
        });
    }
    let name = schedule.name.clone();
    let schedule = Some(schedule);
    let saved = if form.of.is_empty() {
        let request = v1::CreateScheduleRequest { schedule };
        req.calls().call::<CreateSchedule>(&req.by, request).await.map(drop)
    } else {
        let request = v1::UpdateScheduleRequest { schedule, allow_missing: false };
        req.calls().call::<UpdateSchedule>(&req.by, request).await.map(drop)
    };
    match saved {
        Ok(()) => Ok(Redirect::to(&req.link("/schedule", &query([("name", &*name)]))).into_response()),
        Err(status) if matches!(status.code(), Code::InvalidArgument | Code::AlreadyExists) => {
            Ok(shown(req, form, problems(&status), None))
        }
        Err(status) => Err(status.into()),
    }
}

/// Loads the schedule to change. Fails if the caller may not see the payload, because the form would then erase it.
async fn load(req: &PageRequest, name: &str) -> Result<v1::Schedule, PageError> {
    let request = v1::GetScheduleRequest { name: name.to_owned() };
    let schedule = req.calls().call::<GetSchedule>(&req.by, request).await?.into_inner().schedule.unwrap_or_default();
    let task_type = schedule.template.as_ref().map_or("", |job| &job.task_type);
    if !req.by.may(Operation::Payload, task_type) {
        let problem = format!("to change this schedule on the page, the scope payload:{task_type} is needed");
        return Err(Error::Denied(problem).into());
    }
    Ok(schedule)
}

/// Returns the next times of a schedule that is created now, without creating it.
fn next_times(req: &PageRequest, schedule: v1::Schedule) -> Result<Vec<When>, Error> {
    let request = v1::CreateScheduleRequest { schedule: Some(schedule) };
    let (spec, _) = CreateSchedule::check(request, &req.cluster(), &Limits::default())?;
    let times = spec.first_times(Timestamp::now().as_microsecond(), NEXT_TIMES);
    let times = times.map_err(|(field, problem)| Error::invalid(format!("schedule.{field}"), problem))?;
    let time = |us: &i64| prost_types::Timestamp {
        seconds: us.div_euclid(1_000_000),
        nanos: us.rem_euclid(1_000_000) as i32 * 1_000,
    };
    Ok(times.iter().filter_map(|us| When::new(Some(time(us)))).collect())
}

/// Returns the problem that a call reports, with the field of the form that it is about.
fn problems(status: &Status) -> HashMap<&'static str, String> {
    let violations = status.get_error_details().bad_request().map(|request| request.field_violations.clone());
    let field = violations.and_then(|violations| violations.into_iter().next()).map(|first| first.field);
    let field = field.unwrap_or_default();
    let known = FIELDS.iter().find(|(known, _)| field.strip_prefix("schedule.") == Some(known));
    let (form, text) = match known {
        Some((_, form)) => (*form, status.message().strip_prefix(&field).unwrap_or(status.message())),
        None => ("", status.message()),
    };
    HashMap::from([(form, text.trim().to_owned())])
}

fn shown(req: &PageRequest, form: Form, problems: HashMap<&'static str, String>, times: Option<Vec<When>>) -> Response {
    let status = if problems.is_empty() { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    answer(status, &View { layout: req.layout("schedules"), form, problems, times })
}

impl Form {
    fn of_schedule(schedule: &v1::Schedule) -> Self {
        let job = schedule.template.clone().unwrap_or_default();
        let (every, cron) = match schedule.plan.clone() {
            Some(Plan::Period(period)) => (duration(period), v1::Cron::default()),
            Some(Plan::Cron(cron)) => (String::new(), cron),
            None => <(String, v1::Cron)>::default(),
        };
        let payload =
            std::str::from_utf8(&job.payload).ok().filter(|text| text.len() <= PAYLOAD && !text.contains('\0'));
        let overlap = word(schedule.overlap().as_str_name(), "OVERLAP_POLICY_");
        let missed = word(schedule.missed().as_str_name(), "MISSED_POLICY_");
        let start = schedule.start_time.and_then(|at| Timestamp::new(at.seconds, at.nanos).ok());
        Self {
            of: schedule.name.clone(),
            name: schedule.name.clone(),
            task_type: job.task_type.clone(),
            has_payload: payload.is_some(),
            payload: payload.unwrap_or_default().to_owned(),
            every,
            cron: cron.expression,
            time_zone: cron.time_zone,
            overlap,
            missed,
            start: start.map(|at| at.to_string()).unwrap_or_default(),
            paused: schedule.paused,
        }
    }

    fn from_params(params: &Params) -> Self {
        let [of, name, task_type, every, cron, time_zone, overlap, missed, start] =
            ["of", "name", "type", "every", "cron", "time_zone", "overlap", "missed", "start"]
                .map(|field| params.get(field).to_owned());
        let payload = params.untrimmed("payload");
        Self {
            name: if of.is_empty() { name } else { of.clone() },
            of,
            task_type,
            has_payload: payload.is_some(),
            payload: payload.unwrap_or_default().replace("\r\n", "\n"),
            every,
            cron,
            time_zone,
            overlap,
            missed,
            start,
            paused: !params.get("paused").is_empty(),
        }
    }

    /// Returns the schedule that the form describes. Fields that the form does not show stay as in `base`.
    fn schedule(&self, base: v1::Schedule) -> Result<v1::Schedule, Problem> {
        if !self.every.is_empty() && !self.cron.is_empty() {
            return Err(("every", "is set together with cron; fill in one of them".into()));
        }
        let time_zone = if self.cron.is_empty() { "" } else { &self.time_zone };
        let words = [
            ("period", &*self.every),
            ("cron.expression", &self.cron),
            ("cron.time_zone", time_zone),
            ("overlap", &self.overlap),
            ("missed", &self.missed),
            ("start_time", &self.start),
        ];
        let words = words.iter().filter(|(_, value)| !value.is_empty());
        let words: Vec<_> = words.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let given: v1::Schedule = from_words("Schedule", &words).map_err(|error| match error {
            WordError::Wrong { name, problem } => match FIELDS.iter().find(|(known, _)| *known == name) {
                Some((_, form)) => (*form, problem),
                None => ("", format!("{name} {problem}")),
            },
            other => ("", other.to_string()),
        })?;
        let mut job = base.template.clone().unwrap_or_default();
        job.task_type.clone_from(&self.task_type);
        // A browser sends each line break as CR LF. This does not count as a change of the payload.
        if self.has_payload && String::from_utf8_lossy(&job.payload).replace("\r\n", "\n") != self.payload {
            job.payload = self.payload.clone().into();
        }
        let is_cron = matches!(given.plan, Some(Plan::Cron(_)));
        let missed = given.missed();
        Ok(v1::Schedule {
            name: self.name.clone(),
            template: Some(job),
            plan: given.plan,
            drift: if is_cron { Drift::Unspecified as i32 } else { base.drift },
            overlap: given.overlap,
            missed: given.missed,
            missed_limit: if missed == MissedPolicy::All { base.missed_limit } else { 0 },
            start_time: given.start_time,
            paused: self.paused,
            ..base
        })
    }
}

/// Formats a duration without rounding, as the form accepts it.
fn duration(duration: prost_types::Duration) -> String {
    let duration = std::time::Duration::try_from(duration).unwrap_or_default();
    humantime::format_duration(duration).to_string()
}

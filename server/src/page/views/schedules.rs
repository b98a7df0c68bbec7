//! Lists schedules: plan, next times, last firing and counts.

use askama::Template;
use axum::response::Response;
use howdah_core::job::schedule::cron_in_words;
use howdah_engine::access::Operation;
use howdah_proto::v1::{self, Drift, MissedPolicy, OverlapPolicy, schedule::Plan};

use crate::{
    api::verbs::{GetSchedule, ListSchedules},
    page::{
        PageError, PageRequest,
        layout::{Layout, render},
        params::next_page,
        words::{self, When, counted, full_time, wire_span},
    },
};

/// Schedules per page.
const PAGE: i32 = 100;

#[derive(Template)]
#[template(path = "schedules.html")]
struct ListView {
    layout: Layout,
    rows: Vec<Row>,
    next: String,
    /// Whether the caller may enqueue jobs of any type.
    enqueues: bool,
}

#[derive(Template)]
#[template(path = "schedule.html")]
struct OneView {
    layout: Layout,
    row: Row,
    times: Vec<When>,
    facts: Vec<(&'static str, String)>,
    /// Summary of the schedule's firings.
    so_far: String,
    enqueues: bool,
}

/// A schedule.
struct Row {
    schedule: v1::Schedule,
    task_type: String,
    /// Plan in words.
    plan: String,
    expression: String,
}

/// List of schedules.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    let request = v1::ListSchedulesRequest { page_size: PAGE, page_token: req.params.get("page").to_owned() };
    let answer = req.calls().call::<ListSchedules>(&req.by, request).await?.into_inner();
    let view = ListView {
        layout: req.layout("schedules"),
        rows: answer.schedules.into_iter().map(Row::new).collect(),
        next: next_page([], &answer.next_page_token),
        enqueues: req.by.may_somewhere(Operation::Enqueue),
    };
    render(&view)
}

/// One schedule.
pub(in crate::page) async fn one(req: PageRequest) -> Result<Response, PageError> {
    let request = v1::GetScheduleRequest { name: req.params.get("name").to_owned() };
    let schedule = req.calls().call::<GetSchedule>(&req.by, request).await?.into_inner().schedule.unwrap_or_default();
    let times = schedule.next_times.iter().filter_map(|time| When::new(Some(*time))).collect();
    let facts = facts(&schedule);
    let [fired, skipped] = [counted(schedule.fired, "job"), counted(schedule.skipped, "time")];
    let row = Row::new(schedule);
    let view = OneView {
        layout: req.layout("schedules"),
        enqueues: req.by.may(Operation::Enqueue, &row.task_type),
        row,
        times,
        facts,
        so_far: format!("{fired} enqueued, {skipped} skipped."),
    };
    render(&view)
}

impl Row {
    fn new(schedule: v1::Schedule) -> Self {
        let (plan, expression) = plan(schedule.plan.as_ref());
        let task_type = schedule.template.as_ref().map(|job| job.task_type.clone()).unwrap_or_default();
        Self { schedule, task_type, plan, expression }
    }
}

fn plan(plan: Option<&Plan>) -> (String, String) {
    match plan {
        Some(Plan::Period(period)) => (format!("Every {}", wire_span(*period)), String::new()),
        Some(Plan::Cron(cron)) => {
            let written = format!("{} ({})", cron.expression, cron.time_zone);
            match cron_in_words(&cron.expression) {
                Some(words) => {
                    (format!("{}, {}", words.trim_end_matches('.'), cron.time_zone), cron.expression.clone())
                }
                None => (written, String::new()),
            }
        }
        None => <(String, String)>::default(),
    }
}

fn facts(schedule: &v1::Schedule) -> Vec<(&'static str, String)> {
    let overlap = match schedule.overlap() {
        OverlapPolicy::Unspecified | OverlapPolicy::Allow => "enqueue a job anyway",
        OverlapPolicy::Skip => "skip the planned time",
        OverlapPolicy::OneWaiting => "enqueue one job, which waits until they have finished",
    };
    let missed = match schedule.missed() {
        MissedPolicy::Skip => "nothing",
        MissedPolicy::Unspecified | MissedPolicy::One => "one job",
        MissedPolicy::All => "one job for each",
    };
    let all = [
        ("Counts from", if schedule.drift() == Drift::End { "the end of the last job".into() } else { String::new() }),
        ("While an earlier job runs", overlap.to_owned()),
        ("After missed times", missed.to_owned()),
        ("Delayed at random up to", schedule.jitter.map(wire_span).unwrap_or_default()),
        ("Not before", full_time(&schedule.start_time)),
        ("Ends", full_time(&schedule.end_time)),
        ("Waits for a job to finish, since", full_time(&schedule.waiting_time)),
        ("Created", full_time(&schedule.create_time)),
        ("Updated", full_time(&schedule.update_time)),
    ];
    all.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_told_in_words() {
        let cron = |expression: &str| {
            let time_zone = "Europe/Berlin".into();
            plan(Some(&Plan::Cron(v1::Cron { expression: expression.into(), time_zone }))).0
        };
        assert_eq!(
            cron("30 2 * * MON-FRI"),
            "At 02:30, on Monday, Tuesday, Wednesday, Thursday, and Friday, Europe/Berlin"
        );
        assert_eq!(cron("junk"), "junk (Europe/Berlin)");
        let period = prost_types::Duration { seconds: 90, nanos: 0 };
        assert_eq!(plan(Some(&Plan::Period(period))).0, "Every 1m 30s");
    }
}

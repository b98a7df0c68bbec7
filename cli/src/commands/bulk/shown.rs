//! Formats bulk operations as text.

use std::fmt::Write as _;

use howdah_client::proto::{
    Bulk, BulkFields, BulkOperation, BulkSpec, BulkState, Job, PreviewBulkResponse, bulk_fields::Start,
};
use howdah_core::logging::escaped;

use crate::commands::{conditions, text};

/// Name of the operation: `retry`, `cancel`, …
fn operation(spec: &BulkSpec) -> String {
    text::enum_word(spec.operation().as_str_name(), "BULK_OPERATION_")
}

/// Name of the state: `running`, `paused`, …
pub(super) fn state(bulk: &Bulk) -> String {
    match bulk.state() {
        // A broker of a later release may send a state that this program does not know.
        BulkState::Unspecified => "?".into(),
        state => text::enum_word(state.as_str_name(), "BULK_STATE_"),
    }
}

fn job_state(spec: &BulkSpec) -> Option<String> {
    (spec.state != 0).then(|| text::enum_word(spec.state().as_str_name(), "JOB_STATE_"))
}

/// Describes the operation and the selected jobs, such as `retry email.send, dead, error "no such host"`.
pub(super) fn what(spec: &BulkSpec) -> String {
    let mut words = match spec.undo_bulk_id {
        0 => format!("{} {}", operation(spec), escaped(&spec.task_type)),
        // The spec of an undo names no task type. The broker adds the type of the undone operation at the start.
        id if spec.task_type.is_empty() => format!("undo bulk operation {id}"),
        id => format!("undo bulk operation {id}, {}", escaped(&spec.task_type)),
    };
    if !spec.to_task_type.is_empty() {
        let _ = write!(words, " to {}", escaped(&spec.to_task_type));
    }
    if let Some(state) = job_state(spec) {
        let _ = write!(words, ", {state}");
    }
    if !spec.error_group.is_empty() {
        let _ = write!(words, ", error \"{}\"", text::summary(&spec.error_group));
    }
    if let Some(given) = &spec.conditions {
        words.push_str(&conditions::shown(given));
    }
    if let Some(priority) = spec.priority {
        let _ = write!(words, ", priority {priority}");
    }
    if let Some(set) = &spec.fields {
        words.push_str(&fields(set));
    }
    if spec.max_jobs_per_second > 0 {
        let _ = write!(words, ", at most {} a second", text::jobs(spec.max_jobs_per_second.into()));
    }
    words
}

/// Formats the fields as `, max attempts 5, start 2027-01-01T03:00:00Z`.
fn fields(fields: &BulkFields) -> String {
    // The empty first element makes the joined text begin with a comma.
    let mut words = vec![String::new()];
    words.extend(fields.max_attempts.map(|attempts| format!("max attempts {attempts}")));
    words.extend(text::duration(fields.timeout.as_ref()).map(|span| format!("timeout {}", text::short(span))));
    words.extend(match &fields.start {
        None => None,
        Some(Start::RunAt(at)) => text::timestamp(Some(at)).map(|at| format!("start {}", text::time(at))),
        Some(Start::Delay(delay)) => match text::duration(Some(delay)) {
            Some(delay) if delay.is_zero() => Some("start now".to_owned()),
            delay => delay.map(|delay| format!("start in {}", text::short(delay))),
        },
    });
    words.extend(fields.add_tags.iter().map(|tag| format!("with tag {}", escaped(tag))));
    words.extend(fields.remove_tags.iter().map(|tag| format!("without tag {}", escaped(tag))));
    words.join(", ")
}

/// Formats a number of jobs, such as `12 jobs` or `more than 10000 jobs`.
fn count(jobs: i64, has_more: bool) -> String {
    let more = if has_more { "more than " } else { "" };
    let s = if jobs == 1 && !has_more { "" } else { "s" };
    format!("{more}{jobs} job{s}")
}

/// Returns the lines of text that describe the expected effect of a bulk operation.
pub(super) fn preview(spec: &BulkSpec, preview: &PreviewBulkResponse) -> String {
    let mut selected = count(preview.selected_count, preview.has_more);
    if let Some(jobs) = preview.states_count.filter(|_| preview.has_more) {
        let _ = write!(selected, "; the task type has about {jobs} in these states");
    }
    let mut lines = vec![format!("{}: {selected}", what(spec))];
    lines.extend(preview.examples.iter().map(|job| format!("  {}", example(job))));
    if preview.selected_count == 0 && !preview.has_more {
        let nothing = if spec.undo_bulk_id > 0 { "Nothing is left to undo." } else { "Nothing would be changed." };
        lines.push(nothing.into());
        return lines.join("\n");
    }
    if spec.operation() == BulkOperation::Cancel && preview.running_count > 0 {
        let about = if preview.has_more { "about " } else { "" };
        let (run, them) =
            if preview.running_count == 1 { ("runs", "its worker is") } else { ("run", "their workers are") };
        lines.push(format!("Of these, {about}{} {run} now: {them} told to stop.", preview.running_count));
    }
    if preview.creates_task_type {
        lines.push(format!("The task type {} does not exist yet, and is created.", escaped(&spec.to_task_type)));
    }
    if spec.operation() == BulkOperation::Undo {
        lines.push(
            "Skipped: jobs whose key another job holds, whose expiry time has passed, or with a dependency that".into(),
        );
        lines.push("has not succeeded. Other jobs that changed because these jobs ended are not undone.".into());
    }
    if spec.operation() == BulkOperation::Move {
        lines.push(
            "Skipped: jobs whose key a job of the new type holds, and jobs that share a key in the old type. No undo."
                .into(),
        );
    }
    lines.extend(text::duration(preview.expected_duration.as_ref()).map(|time| match time.as_secs() {
        0 => "Expected duration: less than a second.".into(),
        _ => format!("Expected duration: about {}.", text::short(time)),
    }));
    lines.join("\n")
}

fn example(job: &Job) -> String {
    let mut line = format!("{} {}", job.id, text::enum_word(job.state().as_str_name(), "JOB_STATE_"));
    if job.max_attempts > 0 {
        let _ = write!(line, ", attempt {} of {}, priority {}", job.attempt, job.max_attempts, job.priority);
    }
    if let Some(failure) = job.failures.last() {
        let _ = write!(line, ": {}", text::summary(&failure.error));
    }
    line
}

/// Formats the state and progress of a bulk operation as one line, such as `bulk operation 7 is running: 3 of 5 jobs done`.
pub(super) fn progress(bulk: &Bulk) -> String {
    let mut line = format!(
        "bulk operation {} is {}: {} of {} done",
        bulk.id,
        state(bulk),
        bulk.done_count,
        count(bulk.selected_count, bulk.has_more)
    );
    for (jobs, word) in [(bulk.skipped_count, "skipped"), (bulk.failed_count, "failed")] {
        if jobs > 0 {
            let _ = write!(line, ", {jobs} {word}");
        }
    }
    line
}

/// Describes a bulk operation in several lines.
pub(super) fn describe(bulk: &Bulk) -> String {
    let time = |time: Option<&_>| text::timestamp(time).map(text::time).unwrap_or_default();
    let by = match escaped(&bulk.principal) {
        principal if principal.is_empty() => String::new(),
        principal => format!(" by {principal}"),
    };
    let mut lines = vec![
        progress(bulk),
        format!("what: {}", what(&bulk.spec.clone().unwrap_or_default())),
        format!("started: {}{by}", time(bulk.create_time.as_ref())),
    ];
    let rest = [
        ("ended", time(bulk.end_time.as_ref())),
        ("reason", escaped(&bulk.reason).into_owned()),
        ("broker", escaped(&bulk.broker).into_owned()),
        ("problem", text::summary(&bulk.problem)),
    ];
    lines.extend(rest.into_iter().filter(|(_, text)| !text.is_empty()).map(|(name, text)| format!("{name}: {text}")));
    lines.join("\n")
}

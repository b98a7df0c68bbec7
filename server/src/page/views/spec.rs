//! Converts an action to the request that starts a bulk operation, and describes bulk operations in words.

use howdah_proto::v1::{self, bulk_fields::Start};

use crate::page::{
    action::{Action, Target},
    conditions,
    words::{State, number, wire_span, word},
};

/// Returns the specification of the bulk operation that an action previews or starts.
pub(super) fn from_action(action: &Action) -> Option<v1::BulkSpec> {
    let operation = action.kind.starts()? as i32;
    let (priority, max_jobs_per_second) = (action.priority, action.rate.unwrap_or_default());
    let same = v1::BulkSpec { operation, priority, max_jobs_per_second, ..v1::BulkSpec::default() };
    match &action.target {
        Target::OfType { task_type, state, group } => Some(v1::BulkSpec {
            task_type: task_type.clone(),
            state: state.unwrap_or_default() as i32,
            error_group: group.clone(),
            to_task_type: action.wanted.to.clone(),
            fields: action.wanted.fields.clone(),
            conditions: action.wanted.conditions.clone(),
            ..same
        }),
        Target::Bulk(id) => Some(v1::BulkSpec { undo_bulk_id: *id, ..same }),
        _ => None,
    }
}

/// Returns a short description of a bulk operation, such as `retry dead jobs`.
pub(super) fn describe(spec: &v1::BulkSpec) -> String {
    let operation = word(spec.operation().as_str_name(), "BULK_OPERATION_");
    let of = if spec.undo_bulk_id == 0 { String::new() } else { format!(" of bulk operation {}", spec.undo_bulk_id) };
    let jobs = if spec.state == 0 { "jobs".into() } else { format!("{} jobs", State::new(spec.state()).word) };
    let priority = spec.priority.map(|priority| format!(", priority {priority}")).unwrap_or_default();
    let rate = match spec.max_jobs_per_second {
        0 => String::new(),
        rate => format!(", at most {} a second", number(rate.into())),
    };
    let to = if spec.to_task_type.is_empty() { String::new() } else { format!(" to {}", spec.to_task_type) };
    let conditions: Vec<String> =
        conditions(spec).into_iter().map(|(name, value)| format!(", {} {value}", name.to_lowercase())).collect();
    let conditions = conditions.concat();
    let fields = spec.fields.as_ref().map(set).unwrap_or_default();
    format!("{operation} {jobs}{conditions}{to}{of}{priority}{fields}{rate}")
}

fn conditions(spec: &v1::BulkSpec) -> Vec<(&'static str, String)> {
    spec.conditions.as_ref().map(conditions::facts).unwrap_or_default()
}

/// Describes the job fields that a bulk operation sets, such as `, max attempts 5, start 2027-01-01 03:00:00 UTC`.
fn set(fields: &v1::BulkFields) -> String {
    // The empty first element makes the joined text start with a comma.
    let mut words = vec![String::new()];
    words.extend(fields.max_attempts.map(|attempts| format!("max attempts {}", number(attempts.into()))));
    words.extend(fields.timeout.map(|timeout| format!("timeout {}", wire_span(timeout))));
    words.extend(start(fields).map(|start| format!("start {start}")));
    words.extend(fields.add_tags.iter().map(|tag| format!("with tag {tag}")));
    words.extend(fields.remove_tags.iter().map(|tag| format!("without tag {tag}")));
    words.join(", ")
}

fn start(fields: &v1::BulkFields) -> Option<String> {
    match fields.start? {
        Start::RunAt(at) => jiff::Timestamp::new(at.seconds, at.nanos).ok().map(|at| format!("{at:.0}")),
        Start::Delay(delay) => Some(format!("in {}", wire_span(delay))),
    }
}

/// Returns all parameters of a bulk operation, so that the user can spot a typing error before the operation starts.
pub(super) fn facts(spec: &v1::BulkSpec) -> Vec<(&'static str, String)> {
    let state = match spec.state {
        // An undo has no state: it changes the jobs that the undone bulk operation has recorded.
        0 if spec.undo_bulk_id != 0 => "",
        0 => "any state that the operation changes",
        _ => State::new(spec.state()).word,
    };
    let rate = match spec.max_jobs_per_second {
        0 => "no limit, but other work goes first".into(),
        rate => format!("at most {}", number(rate.into())),
    };
    let fields = spec.fields.clone().unwrap_or_default();
    let all = [
        ("Task type", spec.task_type.clone()),
        ("State", state.into()),
        ("Last error", spec.error_group.clone()),
        ("New task type", spec.to_task_type.clone()),
        ("New priority", spec.priority.map(|priority| priority.to_string()).unwrap_or_default()),
        ("Attempts at most", fields.max_attempts.map(|attempts| number(attempts.into())).unwrap_or_default()),
        ("Timeout of an attempt", fields.timeout.map(wire_span).unwrap_or_default()),
        ("Start", start(&fields).unwrap_or_default()),
        ("Tags that are added", fields.add_tags.join(", ")),
        ("Tags that are removed", fields.remove_tags.join(", ")),
        ("Jobs in a second", rate),
    ];
    let mut all: Vec<_> = all.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    all.extend(conditions(spec));
    all
}

//! Checks of bulk operations.

use std::time::SystemTime;

use howdah_core::{
    error::Error,
    job::{BulkChange, BulkSpec, ClusterSettings},
};
use howdah_proto::v1;

use super::{
    bulk_fields::bulk_fields,
    job_conditions::job_conditions,
    job_filter::{error_group, state},
    new_job, numbers, task_type,
};

/// Maximum rate of a bulk operation, in jobs per second.
pub(crate) const JOBS_PER_S: i64 = 1_000_000;

/// Checks the specification of a bulk operation.
pub(crate) fn bulk_spec(spec: Option<v1::BulkSpec>, limits: &ClusterSettings) -> Result<BulkSpec, Error> {
    whole(&spec.unwrap_or_default(), limits).map_err(|error| error.within("spec"))
}

fn whole(spec: &v1::BulkSpec, limits: &ClusterSettings) -> Result<BulkSpec, Error> {
    let change = change(spec, limits)?;
    undone(spec, &change)?;
    only_its_own(spec, &change)?;
    let task_type = task_type("task_type", &spec.task_type)?;
    let error_group = error_group("error_group", &spec.error_group)?;
    let state = state(spec.state)?;
    let conditions = job_conditions("conditions", spec.conditions.clone(), limits)?;
    if conditions.worker_id.is_some() {
        let problem = "is not for bulk operations, which can run at any broker; use CancelJobs or EndLeases";
        return Err(Error::invalid("conditions.worker_id", problem));
    }
    let rate = numbers::within("max_jobs_per_second", spec.max_jobs_per_second.into(), 0..=JOBS_PER_S)?;
    if let Some(state) = state.filter(|state| !change.states().contains(state)) {
        let names: Vec<_> = change.states().iter().map(|state| state.name()).collect();
        let problem = format!("is {}; allowed are {}", state.name(), names.join(", "));
        return Err(Error::invalid("state", problem));
    }
    let jobs_per_s = i32::try_from(rate).ok().filter(|rate| *rate > 0);
    let spec = BulkSpec { change, task_type, state, error_group, conditions, jobs_per_s };
    if spec.states().is_empty() {
        return Err(Error::invalid("error_group", "is for dead and scheduled jobs only; set state to one of them"));
    }
    Ok(spec)
}

/// Checks `undo_bulk_id`, which is required for an undo and forbidden otherwise. An undo must not have filters, because it
/// restores all jobs of a bulk operation.
fn undone(spec: &v1::BulkSpec, change: &BulkChange) -> Result<(), Error> {
    if change.undoes().is_none() {
        let problem = "is for BULK_OPERATION_UNDO only; leave it out";
        return if spec.undo_bulk_id == 0 { Ok(()) } else { Err(Error::invalid("undo_bulk_id", problem)) };
    }
    let problem = "is not for BULK_OPERATION_UNDO, which puts all jobs of a bulk operation back; leave it out";
    if spec.state != 0 {
        return Err(Error::invalid("state", problem));
    }
    if !spec.error_group.is_empty() {
        return Err(Error::invalid("error_group", problem));
    }
    if spec.conditions.is_some() {
        return Err(Error::invalid("conditions", problem));
    }
    Ok(())
}

/// Rejects fields of the specification that are not for this kind of bulk operation.
fn only_its_own(spec: &v1::BulkSpec, change: &BulkChange) -> Result<(), Error> {
    let given = [
        ("priority", spec.priority.is_some() && change.priority().is_none(), "BULK_OPERATION_REPRIORITIZE"),
        ("to_task_type", !spec.to_task_type.is_empty() && change.to_type().is_none(), "BULK_OPERATION_MOVE"),
        ("fields", spec.fields.is_some() && change.fields().is_none(), "BULK_OPERATION_SET"),
    ];
    match given.into_iter().find(|(_, is_foreign, _)| *is_foreign) {
        Some((field, _, operation)) => Err(Error::invalid(field, format!("is for {operation} only; leave it out"))),
        None => Ok(()),
    }
}

fn change(spec: &v1::BulkSpec, limits: &ClusterSettings) -> Result<BulkChange, Error> {
    Ok(match v1::BulkOperation::try_from(spec.operation) {
        Ok(v1::BulkOperation::Retry) => BulkChange::Retry,
        Ok(v1::BulkOperation::Cancel) => BulkChange::Cancel,
        Ok(v1::BulkOperation::Discard) => BulkChange::Discard,
        Ok(v1::BulkOperation::Reprioritize) => match spec.priority {
            Some(priority) => BulkChange::Reprioritize(new_job::priority(priority)?),
            None => return Err(Error::invalid("priority", "is not set; -1000 to 1000 are allowed")),
        },
        Ok(v1::BulkOperation::Undo) if spec.undo_bulk_id > 0 => BulkChange::Undo(spec.undo_bulk_id),
        Ok(v1::BulkOperation::Undo) => {
            let problem = format!("is {}; give the id of a bulk operation", spec.undo_bulk_id);
            return Err(Error::invalid("undo_bulk_id", problem));
        }
        Ok(v1::BulkOperation::Move) if spec.to_task_type == spec.task_type && !spec.task_type.is_empty() => {
            let problem = format!("is {:?}, the task type that the jobs have; name another one", spec.to_task_type);
            return Err(Error::invalid("to_task_type", problem));
        }
        Ok(v1::BulkOperation::Move) => BulkChange::Move(task_type("to_task_type", &spec.to_task_type)?),
        Ok(v1::BulkOperation::Set) => BulkChange::Set(bulk_fields(spec.fields.clone(), limits, SystemTime::now())?),
        Ok(v1::BulkOperation::Unspecified) => return Err(Error::invalid("operation", "is not set")),
        Err(_) => return Err(Error::invalid("operation", format!("is the unknown value {}", spec.operation))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> v1::BulkSpec {
        v1::BulkSpec { operation: 2, task_type: "a".into(), ..v1::BulkSpec::default() }
    }

    #[test]
    fn the_error_names_the_invalid_field_of_a_bulk_operation() {
        let leased = v1::JobState::Leased as i32;
        let attempts = v1::BulkFields { max_attempts: Some(3), ..Default::default() };
        let now = v1::bulk_fields::Start::Delay(prost_types::Duration::default());
        let start = v1::BulkFields { start: Some(now), ..Default::default() };
        let tagged = |tag: &str| v1::JobConditions { tag: tag.into(), ..Default::default() };
        let of_worker = v1::JobConditions { worker_id: "0123456789abcdef".into(), ..Default::default() };
        let cases = [
            ("spec.operation", v1::BulkSpec::default()),
            ("spec.operation", v1::BulkSpec { operation: 99, ..spec() }),
            ("spec.task_type", v1::BulkSpec { task_type: "a b".into(), ..spec() }),
            ("spec.task_type", v1::BulkSpec { task_type: String::new(), ..spec() }),
            ("spec.state", v1::BulkSpec { state: 99, ..spec() }),
            ("spec.state", v1::BulkSpec { state: v1::JobState::Succeeded as i32, ..spec() }),
            ("spec.state", v1::BulkSpec { operation: 3, state: v1::JobState::Ready as i32, ..spec() }),
            ("spec.error_group", v1::BulkSpec { error_group: "e".repeat(2_001), ..spec() }),
            ("spec.error_group", v1::BulkSpec { error_group: "\0".into(), ..spec() }),
            ("spec.error_group", v1::BulkSpec { error_group: "e".into(), state: v1::JobState::Ready as i32, ..spec() }),
            ("spec.priority", v1::BulkSpec { priority: Some(1), ..spec() }),
            ("spec.priority", v1::BulkSpec { operation: 4, ..spec() }),
            ("spec.priority", v1::BulkSpec { operation: 4, priority: Some(1_001), ..spec() }),
            ("spec.undo_bulk_id", v1::BulkSpec { undo_bulk_id: 1, ..spec() }),
            ("spec.undo_bulk_id", v1::BulkSpec { operation: 5, ..spec() }),
            ("spec.undo_bulk_id", v1::BulkSpec { operation: 5, undo_bulk_id: -1, ..spec() }),
            ("spec.state", v1::BulkSpec { operation: 5, undo_bulk_id: 1, state: 1, ..spec() }),
            ("spec.error_group", v1::BulkSpec { operation: 5, undo_bulk_id: 1, error_group: "e".into(), ..spec() }),
            ("spec.priority", v1::BulkSpec { operation: 5, undo_bulk_id: 1, priority: Some(1), ..spec() }),
            ("spec.to_task_type", v1::BulkSpec { to_task_type: "b".into(), ..spec() }),
            ("spec.to_task_type", v1::BulkSpec { operation: 6, ..spec() }),
            ("spec.to_task_type", v1::BulkSpec { operation: 6, to_task_type: "a".into(), ..spec() }),
            ("spec.to_task_type", v1::BulkSpec { operation: 6, to_task_type: "b c".into(), ..spec() }),
            ("spec.state", v1::BulkSpec { operation: 6, to_task_type: "b".into(), state: leased, ..spec() }),
            ("spec.fields", v1::BulkSpec { fields: Some(attempts.clone()), ..spec() }),
            ("spec.fields", v1::BulkSpec { operation: 7, ..spec() }),
            ("spec.state", v1::BulkSpec { operation: 7, fields: Some(start), state: leased, ..spec() }),
            ("spec.priority", v1::BulkSpec { operation: 7, fields: Some(attempts), priority: Some(1), ..spec() }),
            ("spec.conditions.tag", v1::BulkSpec { conditions: Some(tagged("\0")), ..spec() }),
            (
                "spec.conditions",
                v1::BulkSpec { operation: 5, undo_bulk_id: 1, conditions: Some(tagged("a")), ..spec() },
            ),
            ("spec.conditions.worker_id", v1::BulkSpec { conditions: Some(of_worker), ..spec() }),
            ("spec.max_jobs_per_second", v1::BulkSpec { max_jobs_per_second: -1, ..spec() }),
            ("spec.max_jobs_per_second", v1::BulkSpec { max_jobs_per_second: 1_000_001, ..spec() }),
        ];
        for (field, spec) in cases {
            assert_eq!(bulk_spec(Some(spec), &ClusterSettings::DEFAULT).expect_err(field).field(), Some(field));
        }
        assert!(bulk_spec(Some(spec()), &ClusterSettings::DEFAULT).is_ok());
    }
}

//! Specifications of bulk operations: checks, and the conversion of bulk operations to messages. Job fields have the same
//! bounds as in an enqueue.

use std::time::{Duration, SystemTime};

use howdah_core::{
    error::Error,
    job::{Bulk, BulkChange, BulkFields, BulkSpec, ClusterSettings, JobConditions, Limits},
};
use howdah_proto::v1::{self, bulk_fields::Start};

use crate::api::{
    check::{
        job_filter::{error_group, job_conditions, state},
        new_job::{self, tags},
        numbers, task_type, time,
    },
    enums::WireEnum as _,
    render::{self, duration, micros},
};

/// Maximum rate of a bulk operation, in jobs per second.
pub(crate) const JOBS_PER_S: i64 = 1_000_000;

/// Checks the specification of a bulk operation.
pub(crate) fn check(spec: Option<v1::BulkSpec>, limits: &ClusterSettings) -> Result<BulkSpec, Error> {
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
        let problem = "is not for bulk operations, because only one broker knows all jobs of a worker; use CancelJobs or EndLeases";
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

/// Checks the job fields that a bulk operation sets. At least one must be set. `now` is the broker's clock.
fn bulk_fields(fields: Option<v1::BulkFields>, limits: &ClusterSettings, now: SystemTime) -> Result<BulkFields, Error> {
    let set = each(fields.unwrap_or_default(), limits, now).map_err(|error| error.within("fields"))?;
    if set == BulkFields::default() {
        return Err(Error::invalid("fields", "is not set, or has no field; set at least one"));
    }
    Ok(set)
}

fn each(fields: v1::BulkFields, limits: &ClusterSettings, now: SystemTime) -> Result<BulkFields, Error> {
    let attempts = |given: i32| numbers::within("max_attempts", given.into(), 1..=Limits::MAX_ATTEMPTS.into());
    let timeout = time::optional("timeout", fields.timeout, &(time::MILLISECOND..=limits.max_timeout))?;
    let (mut start_us, mut delay_ms) = (None, None);
    match fields.start {
        None => {}
        Some(Start::RunAt(at)) => start_us = Some(time::run_at("run_at", at, now, limits.max_delay)?),
        Some(Start::Delay(delay)) => {
            let delay = time::duration("delay", delay, &(Duration::ZERO..=limits.max_delay))?;
            delay_ms = Some(delay.as_millis() as i64);
        }
    }
    let (add_tags, remove_tags) = (tags("add_tags", fields.add_tags)?, tags("remove_tags", fields.remove_tags)?);
    if let Some(i) = remove_tags.iter().position(|tag| add_tags.contains(tag)) {
        return Err(Error::invalid(format!("remove_tags[{i}]"), "is in add_tags, too; leave it out of one of them"));
    }
    Ok(BulkFields {
        max_attempts: fields.max_attempts.map(attempts).transpose()?.map(|attempts| attempts as i16),
        timeout_ms: timeout.map(|timeout| timeout.as_millis() as i64),
        start_us,
        delay_ms,
        add_tags,
        remove_tags,
    })
}

/// Converts a bulk operation to its protocol message.
pub(crate) fn render(bulk: Bulk) -> v1::Bulk {
    v1::Bulk {
        id: bulk.id,
        spec: Some(render_spec(bulk.spec)),
        state: bulk.state.number(),
        done_count: bulk.done,
        skipped_count: bulk.skipped,
        failed_count: bulk.failed,
        selected_count: bulk.selected,
        has_more: bulk.has_more,
        problem: bulk.problem,
        principal: bulk.principal,
        reason: bulk.reason,
        broker: bulk.broker.unwrap_or_default(),
        create_time: Some(render::time(bulk.created)),
        update_time: Some(render::time(bulk.updated)),
        end_time: bulk.ended.map(render::time),
        store: String::new(),
    }
}

fn render_spec(spec: BulkSpec) -> v1::BulkSpec {
    let operation = match &spec.change {
        BulkChange::Retry => v1::BulkOperation::Retry,
        BulkChange::Cancel => v1::BulkOperation::Cancel,
        BulkChange::Discard => v1::BulkOperation::Discard,
        BulkChange::Reprioritize(_) => v1::BulkOperation::Reprioritize,
        BulkChange::Undo(_) => v1::BulkOperation::Undo,
        BulkChange::Move(_) => v1::BulkOperation::Move,
        BulkChange::Set(_) => v1::BulkOperation::Set,
    };
    v1::BulkSpec {
        operation: operation as i32,
        priority: spec.change.priority().map(i32::from),
        task_type: spec.task_type.to_string(),
        state: spec.state.map(|state| state.to_proto() as i32).unwrap_or_default(),
        error_group: spec.error_group.unwrap_or_default(),
        max_jobs_per_second: spec.jobs_per_s.unwrap_or_default(),
        undo_bulk_id: spec.change.undoes().unwrap_or_default(),
        to_task_type: spec.change.to_type().map(ToString::to_string).unwrap_or_default(),
        fields: spec.change.fields().cloned().map(render_fields),
        conditions: render_conditions(spec.conditions),
    }
}

fn render_conditions(conditions: JobConditions) -> Option<v1::JobConditions> {
    (!conditions.is_empty()).then(|| v1::JobConditions {
        created_before: conditions.created_before_us.map(micros),
        created_since: conditions.created_since_us.map(micros),
        tag: conditions.tag.unwrap_or_default(),
        fair_key: conditions.fair_key.unwrap_or_default(),
        limit_key: conditions.limit_key.unwrap_or_default(),
        worker_id: conditions.worker_id.unwrap_or_default(),
        attempts_at_least: conditions.attempts_at_least.map(i32::from),
        attempts_at_most: conditions.attempts_at_most.map(i32::from),
    })
}

fn render_fields(fields: BulkFields) -> v1::BulkFields {
    let span = |ms: i64| duration(Duration::from_millis(u64::try_from(ms).unwrap_or_default()));
    let start = match (fields.start_us, fields.delay_ms) {
        (Some(us), _) => Some(v1::bulk_fields::Start::RunAt(micros(us))),
        (None, delay) => delay.map(span).map(v1::bulk_fields::Start::Delay),
    };
    v1::BulkFields {
        max_attempts: fields.max_attempts.map(i32::from),
        timeout: fields.timeout_ms.map(span),
        start,
        add_tags: fields.add_tags,
        remove_tags: fields.remove_tags,
    }
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
            assert_eq!(check(Some(spec), &ClusterSettings::DEFAULT).expect_err(field).field(), Some(field));
        }
        assert!(check(Some(spec()), &ClusterSettings::DEFAULT).is_ok());
    }

    fn check_fields(fields: v1::BulkFields) -> Result<BulkFields, Error> {
        bulk_fields(Some(fields), &ClusterSettings::DEFAULT, SystemTime::now())
    }

    fn after(seconds: i64) -> Option<Start> {
        Some(Start::Delay(prost_types::Duration { seconds, nanos: 0 }))
    }

    #[test]
    fn the_error_names_the_invalid_bulk_field() {
        let none = v1::BulkFields::default;
        let timeout = |seconds| v1::BulkFields { timeout: Some(prost_types::Duration { seconds, nanos: 0 }), ..none() };
        let tags = |tags: &[&str]| tags.iter().map(|tag| (*tag).to_owned()).collect::<Vec<_>>();
        let cases = [
            ("fields", none()),
            ("fields.max_attempts", v1::BulkFields { max_attempts: Some(0), ..none() }),
            ("fields.max_attempts", v1::BulkFields { max_attempts: Some(1_001), ..none() }),
            ("fields.timeout", timeout(0)),
            ("fields.timeout", timeout(-1)),
            ("fields.timeout", timeout(30 * 24 * 3600 + 1)),
            ("fields.delay", v1::BulkFields { start: after(-1), ..none() }),
            ("fields.delay", v1::BulkFields { start: after(i64::MAX), ..none() }),
            (
                "fields.run_at",
                v1::BulkFields {
                    start: Some(Start::RunAt(prost_types::Timestamp { seconds: i64::MAX, nanos: 0 })),
                    ..none()
                },
            ),
            ("fields.add_tags[0]", v1::BulkFields { add_tags: tags(&[""]), ..none() }),
            ("fields.add_tags", v1::BulkFields { add_tags: (0..17).map(|i| i.to_string()).collect(), ..none() }),
            ("fields.remove_tags[1]", v1::BulkFields { remove_tags: tags(&["a", "b\0"]), ..none() }),
            (
                "fields.remove_tags[1]",
                v1::BulkFields { add_tags: tags(&["a"]), remove_tags: tags(&["b", "a"]), ..none() },
            ),
        ];
        for (field, fields) in cases {
            assert_eq!(check_fields(fields).expect_err(field).field(), Some(field));
        }
        assert_eq!(
            bulk_fields(None, &ClusterSettings::DEFAULT, SystemTime::now()).unwrap_err().field(),
            Some("fields")
        );
    }

    #[test]
    fn a_zero_delay_and_a_past_run_at_are_valid_starts() {
        assert!(check_fields(v1::BulkFields { start: after(0), ..Default::default() }).unwrap().has_start());
        let past = Some(Start::RunAt(prost_types::Timestamp { seconds: 1, nanos: 0 }));
        let fields = check_fields(v1::BulkFields { start: past, ..Default::default() }).unwrap();
        assert_eq!((fields.start_us, fields.delay_ms), (Some(1_000_000), None));
    }
}

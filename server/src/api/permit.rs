//! Permissions for requests that name jobs instead of a task type. A job that a caller may not access is treated like a job that
//! does not exist, so that callers cannot discover jobs by trying ids.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use howdah_core::{
    error::Error,
    job::{
        Chosen, JobView, Lease, ListedWorker, NewJob, TaskTypeName, TypeId,
        schedule::{Schedule, Template},
    },
};
use howdah_engine::{
    access::{Caller, Operation, Rule},
    broker::Broker,
    operate::Selection,
};

/// Error for a job that does not exist or is not visible to the caller.
pub(super) fn no_job(id: i64) -> Error {
    Error::NotFound(format!("job {id} does not exist, or its history has been dropped"))
}

/// Whether the caller may perform the operation on jobs of this type. `task_type` is a name stored in Postgres.
pub(super) fn may(caller: &Caller, operation: Operation, task_type: &str) -> bool {
    caller.may_everywhere(operation)
        || TaskTypeName::parse(task_type).is_ok_and(|task_type| caller.may(operation, &task_type))
}

/// Whether the caller may see the results of the dependencies of a job of this type: as its worker, or with its payload.
pub(super) fn may_see_results(caller: &Caller, task_type: &str) -> bool {
    may(caller, Operation::Work, task_type)
        || may(caller, Operation::Read, task_type) && may(caller, Operation::Payload, task_type)
}

/// Returns the job without the fields that the caller may not see. `None` if the caller may not see the job.
pub(super) fn seen(caller: &Caller, mut job: JobView) -> Option<JobView> {
    // If the task type keeps no history, only the id and the state of a finished job are known. The permission was checked
    // before the job ended.
    let forgotten = job.task_type.is_empty();
    if !forgotten && !may(caller, Operation::Read, &job.task_type) {
        return None;
    }
    if !forgotten && !may(caller, Operation::Payload, &job.task_type) {
        (job.payload, job.result) = (None, None);
    }
    Some(job)
}

/// Returns the worker with only those windows whose task types the caller may read; `None` if no window is left. A caller who
/// may read every type also sees workers without windows.
pub(super) fn seen_worker(caller: &Caller, mut worker: ListedWorker) -> Option<ListedWorker> {
    if caller.may_everywhere(Operation::Read) {
        return Some(worker);
    }
    worker.view.windows.retain(|window| may(caller, Operation::Read, &window.task_type));
    (!worker.view.windows.is_empty()).then_some(worker)
}

/// Returns the jobs that the caller may not access. Includes a job that does not exist, because another caller may enqueue it
/// during the call.
pub(super) async fn foreign(
    broker: &Broker,
    caller: &Caller,
    operation: Operation,
    ids: &[i64],
) -> Result<HashSet<i64>, Error> {
    if caller.may_everywhere(operation) || ids.is_empty() {
        return Ok(HashSet::new());
    }
    let own: HashSet<i64> = own(broker, caller, operation, ids).await?.into_iter().map(|(id, _)| id).collect();
    Ok(ids.iter().copied().filter(|id| !own.contains(id)).collect())
}

/// Returns the jobs that the caller may access, and their task types.
async fn own(broker: &Broker, caller: &Caller, operation: Operation, ids: &[i64]) -> Result<Vec<(i64, TypeId)>, Error> {
    let types = broker.operator.types_of(ids).await?;
    let own = types.into_iter().filter(|(_, _, task_type)| may(caller, operation, task_type));
    Ok(own.map(|(id, type_id, _)| (id, type_id)).collect())
}

/// Checks the permission for one task type, or for all types if none is given.
pub(super) fn one_or_all(caller: &Caller, operation: Operation, one: Option<&TaskTypeName>) -> Result<(), Error> {
    match one {
        Some(task_type) => caller.check(operation, task_type),
        None => caller.check_rule(Rule::Everything(operation)),
    }
}

/// Removes from a selection the jobs that the caller may not operate. Fails if the selection is a task type that the caller may
/// not operate.
pub(super) async fn own_selection(broker: &Broker, caller: &Caller, selection: Selection) -> Result<Selection, Error> {
    match selection {
        Selection::Ids(jobs) => Ok(Selection::Ids(own_jobs(broker, caller, jobs).await?)),
        Selection::OfType(selection) => {
            caller.check(Operation::Operate, &selection.task_type)?;
            Ok(Selection::OfType(selection))
        }
    }
}

/// Returns the jobs that the caller may operate. A job that moves to another task type meanwhile is not changed.
pub(super) async fn own_jobs(broker: &Broker, caller: &Caller, jobs: Chosen) -> Result<Chosen, Error> {
    if caller.may_everywhere(Operation::Operate) || jobs.ids.is_empty() {
        return Ok(jobs);
    }
    let own: HashMap<i64, TypeId> = own(broker, caller, Operation::Operate, &jobs.ids).await?.into_iter().collect();
    let types: BTreeSet<TypeId> = own.values().copied().collect();
    let ids = jobs.ids.into_iter().filter(|id| own.contains_key(id)).collect();
    Ok(Chosen { ids, types: Some(types.into_iter().collect()) })
}

/// Checks the permission to enqueue these jobs: their task types, fallbacks, next stages and dependencies.
pub(super) async fn enqueue(broker: &Broker, caller: &Caller, jobs: &[NewJob]) -> Result<(), Error> {
    if [Operation::Enqueue, Operation::Read, Operation::Payload].into_iter().all(|needed| caller.may_everywhere(needed))
    {
        return Ok(());
    }
    let mut last = None;
    for job in jobs {
        // Most jobs of a request have the same task type as the previous job, which was checked.
        if last != Some(&job.task_type) {
            caller.check(Operation::Enqueue, &job.task_type)?;
            last = Some(&job.task_type);
        }
        job.fallback.iter().chain(&job.next_stages).try_for_each(|to| caller.check_target(to))?;
    }
    let after: BTreeMap<i64, usize> = jobs
        .iter()
        .enumerate()
        .flat_map(|(i, job)| job.options.iter().flat_map(move |options| options.after.iter().map(move |id| (*id, i))))
        .collect();
    dependencies(broker, caller, &after).await
}

/// Checks the permission to give these jobs another payload, which takes the same scope as enqueuing a job with that payload.
pub(super) async fn new_payload(broker: &Broker, caller: &Caller, ids: &[i64]) -> Result<(), Error> {
    if caller.may_everywhere(Operation::Enqueue) {
        return Ok(());
    }
    for (_, _, task_type) in broker.operator.types_of(ids).await? {
        let task_type = TaskTypeName::parse(&task_type).map_err(|problem| Error::invalid("filter.ids", problem))?;
        caller.check(Operation::Enqueue, &task_type)?;
    }
    Ok(())
}

/// Checks the permission for dependencies, each with the index of a job that names it. The worker of the job gets their
/// results, so the caller must be allowed to see these.
async fn dependencies(broker: &Broker, caller: &Caller, after: &BTreeMap<i64, usize>) -> Result<(), Error> {
    if after.is_empty() {
        return Ok(());
    }
    let ids: Vec<i64> = after.keys().copied().collect();
    let types = broker.operator.types_of(&ids).await?;
    let types: HashMap<i64, String> = types.into_iter().map(|(id, _, task_type)| (id, task_type)).collect();
    for (id, i) in after {
        let seen = types.get(id).filter(|task_type| may(caller, Operation::Read, task_type));
        let Some(task_type) = seen.and_then(|task_type| TaskTypeName::parse(task_type).ok()) else {
            let problem = format!("names job {id}, which does not exist, or whose history has been dropped");
            return Err(Error::invalid(format!("jobs[{i}].after"), problem));
        };
        caller.check(Operation::Payload, &task_type)?;
    }
    Ok(())
}

/// Checks the permission to manage a schedule with this template. Returns the task types that the template names.
pub(super) fn schedule(caller: &Caller, template: &Template) -> Result<Vec<TaskTypeName>, Error> {
    let job = template.job().map_err(|error| Error::Internal(error.to_string()))?;
    let fallback = Some(&job.fallback).filter(|name| !name.is_empty());
    let names = std::iter::once(&template.task_type).chain(&job.next_stages).chain(fallback);
    let names = names.map(|name| TaskTypeName::parse(name).map_err(|problem| Error::invalid("task_type", problem)));
    let names: Vec<TaskTypeName> = names.collect::<Result<_, _>>()?;
    names.iter().try_for_each(|name| caller.check_target(name))?;
    if !job.after.is_empty() {
        // The right to read every type is required. Otherwise a caller who may not read the dependencies could get their
        // results by a later change of the schedule.
        caller.check_rule(Rule::Everything(Operation::Read))?;
        caller.check_rule(Rule::Everything(Operation::Payload))?;
    }
    Ok(names)
}

/// Returns the schedule with the parts that the caller may see. Without the right to read, only the plan and the task type are
/// left.
pub(super) fn seen_schedule(caller: &Caller, mut schedule: Schedule) -> Schedule {
    let template = &mut schedule.spec.template;
    if !may(caller, Operation::Payload, &template.task_type) {
        template.payload.clear();
    }
    if !may(caller, Operation::Read, &template.task_type) {
        template.message = serde_json::json!({ "task_type": template.task_type }).to_string();
    }
    schedule
}

/// Whether the caller may work on the job of each lease. Callers get `LeaseLost` for the other leases, as for unknown ones.
pub(super) async fn own_leases(broker: &Broker, caller: &Caller, leases: &[Lease]) -> Result<Vec<bool>, Error> {
    let ids: Vec<i64> = leases.iter().map(|lease| lease.id).collect();
    let foreign = foreign(broker, caller, Operation::Work, &ids).await?;
    Ok(leases.iter().map(|lease| !foreign.contains(&lease.id)).collect())
}

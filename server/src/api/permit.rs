//! What a caller may see and change, where the request names jobs instead of a task type. A job that a caller may not touch is
//! for that caller like one that does not exist, so nobody learns of foreign jobs by trying ids.

use std::collections::{BTreeSet, HashMap, HashSet};

use howdah_proto::v1;
use prost::Message as _;

use crate::{
    access::{Caller, Operation, Rule},
    broker::Broker,
    error::Error,
    job::{
        Chosen, Having, JobView, Lease, ListedWorker, NewJob, SearchQuery, TaskTypeName, TypeId,
        schedule::{Schedule, Template},
    },
    operate::Selection,
};

/// A job that does not exist, or not for this caller.
pub(super) fn no_job(id: i64) -> Error {
    Error::NotFound(format!("job {id} does not exist, or its history has been dropped"))
}

/// Whether the caller may do this with jobs of this type. The name is one that Postgres returned.
pub(super) fn may(caller: &Caller, operation: Operation, task_type: &str) -> bool {
    caller.may_everywhere(operation)
        || TaskTypeName::parse(task_type).is_ok_and(|task_type| caller.may(operation, &task_type))
}

/// The job as the caller may see it; `None`: not at all.
pub(super) fn seen(caller: &Caller, mut job: JobView) -> Option<JobView> {
    // Of a job without history only the id and the state are known; whether it may be seen was decided before it ended.
    let forgotten = job.task_type.is_empty();
    if !forgotten && !may(caller, Operation::Read, &job.task_type) {
        return None;
    }
    if !forgotten && !may(caller, Operation::Payload, &job.task_type) {
        (job.payload, job.result) = (None, None);
    }
    Some(job)
}

/// The worker as the caller may see it: with those of its types that the caller may read. `None`: not at all. Who may read
/// every type sees also a worker that wants nothing.
pub(super) fn seen_worker(caller: &Caller, mut worker: ListedWorker) -> Option<ListedWorker> {
    if caller.may_everywhere(Operation::Read) {
        return Some(worker);
    }
    worker.view.windows.retain(|window| may(caller, Operation::Read, &window.task_type));
    (!worker.view.windows.is_empty()).then_some(worker)
}

/// Of these jobs, those with which the caller may not do this. Jobs that do not exist are among them: they may be made a moment
/// later, by somebody else, while the call is still at work.
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

/// Of these jobs, those with which the caller may do this, and their types.
async fn own(broker: &Broker, caller: &Caller, operation: Operation, ids: &[i64]) -> Result<Vec<(i64, TypeId)>, Error> {
    let types = broker.operator.types_of(ids).await?;
    let own = types.into_iter().filter(|(_, _, task_type)| may(caller, operation, task_type));
    Ok(own.map(|(id, type_id, _)| (id, type_id)).collect())
}

/// Whether the caller may do this with one task type; without one, with every type.
pub(super) fn one_or_all(caller: &Caller, operation: Operation, one: Option<&TaskTypeName>) -> Result<(), Error> {
    match one {
        Some(task_type) => caller.check(operation, task_type),
        None => caller.check_rule(Rule::Everything(operation)),
    }
}

/// Whether the caller may search so. Returns the most jobs of an answer.
pub(super) fn search(caller: &Caller, query: &SearchQuery) -> Result<usize, Error> {
    match query {
        // Whether the job may be seen is known when it is found.
        SearchQuery::Id(_) => Ok(1),
        SearchQuery::Key { task_type, page, .. } | SearchQuery::Tag { task_type, page, .. } => {
            caller.check(Operation::Read, task_type)?;
            Ok(page.size)
        }
        SearchQuery::Look { having, range, page } => {
            caller.check(Operation::Read, &range.task_type)?;
            if !matches!(having, Having::Header { .. }) {
                caller.check(Operation::Payload, &range.task_type)?;
            }
            Ok(page.size)
        }
    }
}

/// A selection without the jobs that the caller may not touch; a type that it may not touch is an error.
pub(super) async fn own_selection(broker: &Broker, caller: &Caller, selection: Selection) -> Result<Selection, Error> {
    match selection {
        Selection::Ids(jobs) => Ok(Selection::Ids(own_jobs(broker, caller, jobs).await?)),
        Selection::OfType(selection) => {
            caller.check(Operation::Operate, &selection.task_type)?;
            Ok(Selection::OfType(selection))
        }
    }
}

/// Those of these jobs that the caller may change, while they have the types that they have now.
pub(super) async fn own_jobs(broker: &Broker, caller: &Caller, jobs: Chosen) -> Result<Chosen, Error> {
    if caller.may_everywhere(Operation::Operate) || jobs.ids.is_empty() {
        return Ok(jobs);
    }
    let own: HashMap<i64, TypeId> = own(broker, caller, Operation::Operate, &jobs.ids).await?.into_iter().collect();
    let types: BTreeSet<TypeId> = own.values().copied().collect();
    let ids = jobs.ids.into_iter().filter(|id| own.contains_key(id)).collect();
    Ok(Chosen { ids, types: Some(types.into_iter().collect()) })
}

/// Whether the caller may enqueue these jobs: their types, their fallbacks, their stages, and the jobs that they run after.
pub(super) async fn enqueue(broker: &Broker, caller: &Caller, jobs: &[NewJob]) -> Result<(), Error> {
    if caller.may_everywhere(Operation::Enqueue) && caller.may_everywhere(Operation::Read) {
        return Ok(());
    }
    let mut last = None;
    for job in jobs {
        // Most jobs of a request have the type of the one before.
        if last != Some(&job.task_type) {
            caller.check(Operation::Enqueue, &job.task_type)?;
            last = Some(&job.task_type);
        }
        job.fallback.iter().chain(&job.next_stages).try_for_each(|to| caller.check_target(to))?;
    }
    let after: HashMap<i64, usize> = jobs
        .iter()
        .enumerate()
        .flat_map(|(i, job)| job.options.iter().flat_map(move |options| options.after.iter().map(move |id| (*id, i))))
        .collect();
    let ids: Vec<i64> = after.keys().copied().collect();
    match foreign(broker, caller, Operation::Read, &ids).await?.into_iter().min() {
        Some(id) => {
            let field = format!("jobs[{}].after", after.get(&id).copied().unwrap_or_default());
            Err(Error::invalid(
                field,
                format!("names job {id}, which does not exist, or whose history has been dropped"),
            ))
        }
        None => Ok(()),
    }
}

/// Whether the caller may keep a schedule that enqueues such jobs. Returns the task types that they name.
pub(super) fn schedule(caller: &Caller, template: &Template) -> Result<Vec<TaskTypeName>, Error> {
    let job = v1::NewJob::decode(&template.message[..]).map_err(|error| Error::Internal(error.to_string()))?;
    let fallback = Some(&job.fallback).filter(|name| !name.is_empty());
    let names = std::iter::once(&template.task_type).chain(&job.next_stages).chain(fallback);
    let names = names.map(|name| TaskTypeName::parse(name).map_err(|problem| Error::invalid("task_type", problem)));
    let names: Vec<TaskTypeName> = names.collect::<Result<_, _>>()?;
    names.iter().try_for_each(|name| caller.check_target(name))?;
    if !job.after.is_empty() {
        // Which jobs they are is not known to whoever changes the schedule later.
        caller.check_rule(Rule::Everything(Operation::Read))?;
    }
    Ok(names)
}

/// The schedule as the caller may see it: without `read`, only what says when it enqueues, and jobs of which type.
pub(super) fn seen_schedule(caller: &Caller, mut schedule: Schedule) -> Schedule {
    let template = &mut schedule.spec.template;
    if !may(caller, Operation::Payload, &template.task_type) {
        template.payload.clear();
    }
    if !may(caller, Operation::Read, &template.task_type) {
        let job = v1::NewJob { task_type: template.task_type.clone(), ..v1::NewJob::default() };
        template.message = job.encode_to_vec().into();
    }
    schedule
}

/// Whether the caller may work on the jobs of these leases: for each lease. A foreign one is lost for it, like an unknown one.
pub(super) async fn own_leases(broker: &Broker, caller: &Caller, leases: &[Lease]) -> Result<Vec<bool>, Error> {
    let ids: Vec<i64> = leases.iter().map(|lease| lease.id).collect();
    let foreign = foreign(broker, caller, Operation::Work, &ids).await?;
    Ok(leases.iter().map(|lease| !foreign.contains(&lease.id)).collect())
}

//! `ListWorkers`: the workers that have a session, and the jobs that they hold.

use std::time::Duration;

use howdah_core::job::{ListedWorker, TaskTypeName, WorkerPosition, WorkerWindow};

use crate::api::{render::duration, verbs::prelude::*};

const PAGE: usize = 100;
const MAX_PAGE: usize = 1_000;
/// Default of `stuck_after`: time without activity after which a worker counts as stuck.
const STUCK_AFTER: Duration = Duration::from_mins(5);
/// Maximum value of `stuck_after`.
const LONGEST: Duration = Duration::from_hours(30 * 24);
/// Maximum number of statements for a page of workers. A page that would need more statements has fewer workers.
const MOST_READS: usize = 20;

/// A query for workers.
#[derive(Debug)]
pub(crate) struct WorkersQuery {
    task_type: Option<TaskTypeName>,
    after: WorkerPosition,
    page_size: usize,
    stuck_after: Duration,
}

impl Verb for ListWorkers {
    const RULE: Rule = Rule::Types(Operation::Read);
    const ANSWER_BYTES: usize = answer::MEDIUM;

    type Args = WorkersQuery;

    paged!(workers, page_size);

    fn check(request: v1::ListWorkersRequest, _: &ClusterSettings, _: &Limits) -> Result<WorkersQuery, Error> {
        Ok(WorkersQuery {
            task_type: optional_task_type("task_type", &request.task_type)?,
            after: position(&request.page_token)?.unwrap_or(WorkerPosition::FIRST),
            page_size: numbers::page_size(request.page_size, PAGE, MAX_PAGE)?,
            stuck_after: time::optional("stuck_after", request.stuck_after, &(time::MILLISECOND..=LONGEST))?
                .unwrap_or(STUCK_AFTER),
        })
    }

    fn permit(caller: &Caller, query: &WorkersQuery) -> Result<(), Error> {
        query.task_type.as_ref().map_or(Ok(()), |only| caller.check(Operation::Read, only))
    }

    async fn run(call: &mut Call, query: WorkersQuery) -> Result<v1::ListWorkersResponse, Error> {
        let (mut seen, next) = visible(call, &query).await?;
        if query.task_type.is_none() && call.stores.only().is_none() {
            // A worker has a session in every store. The list contains a worker once for each store in which it has a window.
            seen.retain(|worker| !worker.view.windows.is_empty());
        }
        Ok(v1::ListWorkersResponse {
            workers: seen.into_iter().map(|seen| worker(seen, query.stuck_after)).collect(),
            next_page_token: next
                .map(|next| page_token::encode([next.broker_id.into(), next.number]))
                .unwrap_or_default(),
        })
    }

    async fn route(call: &Call, request: v1::ListWorkersRequest) -> Answer<Self> {
        let stores = call.concerned(&request.task_type).await?;
        call.pages::<Self>(stores, request).await
    }
}

merged!(ListWorkers: of_store workers);

/// Returns a page of the workers, with the windows that the caller may see, and the position of the next page.
async fn visible(call: &Call, query: &WorkersQuery) -> Result<(Vec<ListedWorker>, Option<WorkerPosition>), Error> {
    let (mut after, mut seen) = (query.after, Vec::new());
    let only = query.task_type.as_ref().map(TaskTypeName::as_str);
    for _ in 0..MOST_READS {
        let at_most = query.page_size - seen.len();
        let read = call.broker.operator.list_workers(after, only, at_most).await?;
        let last = read.last().map(|worker| worker.position).filter(|_| read.len() >= at_most);
        seen.extend(read.into_iter().filter_map(|worker| permit::seen_worker(&call.caller, worker)));
        match last {
            None => return Ok((seen, None)),
            Some(position) if seen.len() >= query.page_size => return Ok((seen, Some(position))),
            Some(position) => after = position,
        }
    }
    Ok((seen, Some(after)))
}

fn position(token: &str) -> Result<Option<WorkerPosition>, Error> {
    let Some([broker_id, number]) = page_token::numbers(token)? else { return Ok(None) };
    let broker_id = i32::try_from(broker_id).map_err(|_| page_token::bad())?;
    Ok(Some(WorkerPosition { broker_id, number }))
}

/// Converts a worker. A worker counts as stuck after `stuck_after` without activity.
fn worker(worker: ListedWorker, stuck_after: Duration) -> v1::Worker {
    let (connected_for, quiet_for) = (worker.connected(), worker.quiet());
    let view = worker.view;
    let held: u32 = view.windows.iter().map(|window| window.held).sum();
    let state = match held {
        _ if !view.is_connected => v1::WorkerState::Disconnected,
        1.. if quiet_for.is_some_and(|quiet| quiet >= stuck_after) => v1::WorkerState::Stuck,
        _ if view.is_draining => v1::WorkerState::Draining,
        0 => v1::WorkerState::Idle,
        1.. => v1::WorkerState::Working,
    };
    v1::Worker {
        worker_id: view.worker_id,
        broker: worker.broker,
        principal: view.principal,
        labels: view.labels.into_iter().collect(),
        user_agent: view.user_agent,
        peer: view.peer,
        state: state as i32,
        held_count: count(held),
        settled_count: count(view.windows.iter().map(|window| window.settled).sum()),
        windows: view.windows.into_iter().map(window).collect(),
        connected_for: Some(duration(connected_for)),
        quiet_for: quiet_for.filter(|_| held > 0).map(duration),
        max_message_bytes: view.max_message_bytes as i64,
        age: Some(duration(worker.age)),
        store: String::new(),
    }
}

fn window(window: WorkerWindow) -> v1::WorkerWindow {
    v1::WorkerWindow {
        task_type: window.task_type,
        window_jobs: count(window.jobs),
        window_bytes: window.bytes as i64,
        held_count: count(window.held),
        settled_count: count(window.settled),
        oldest_job_ids: window.oldest,
    }
}

fn count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

//! An open loop with one job per call, as most generated clients enqueue. Each job is sent when it is due, with the due time as a
//! stamp. Calls do not wait for earlier ones, so a slow broker does not slow down the requests. Otherwise the latencies would omit
//! exactly the jobs that waited longest (coordinated omission).

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use howdah_client::{Client, proto::EnqueueJobsRequest};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
};

use super::{closed::Maker, plan::Plan, schedule::Schedule, stamp, tally::Tally};
use crate::error::{Error, Result};

/// Maximum number of concurrent calls. Further jobs wait until a call ends; their latency includes this wait.
const CALLS: usize = 4_096;
/// Minimum sleep of the thread that sends due times.
const NAP: Duration = Duration::from_micros(100);

/// Enqueues jobs at the due times of the schedule, on the given connections in turn.
pub(super) async fn produce(tally: Arc<Tally>, clients: Vec<Client>, plan: Plan, schedule: Schedule) -> Result<()> {
    let (due, mut dues) = mpsc::unbounded_channel();
    let pace = {
        let (tally, begin) = (tally.clone(), tally.now());
        move || pace(&tally, schedule, begin, &due)
    };
    let sender = thread::Builder::new().name("open-loop".into()).spawn(pace);
    sender.map_err(|error| Error::Process(format!("cannot start a thread: {error}")))?;
    let (mut maker, calls, mut tasks) = (Maker::new(&plan, 0), Arc::new(Semaphore::new(CALLS)), JoinSet::new());
    let mut clients = clients.iter().cycle();
    while let (Some(due), Some(client)) = (dues.recv().await, clients.next()) {
        let Ok(call) = calls.clone().acquire_owned().await else { break };
        let job = maker.job(stamp::payload(due, plan.payload));
        let (tally, mut jobs) = (tally.clone(), client.jobs());
        tasks.spawn(async move {
            let request = EnqueueJobsRequest { jobs: vec![job], request_key: String::new() };
            tally.called(due);
            let answer = jobs.enqueue_jobs(request).await?;
            tally.answered(due);
            tally.enqueued(&answer.get_ref().jobs);
            drop(call);
            Ok::<_, Error>(())
        });
        while let Some(ended) = tasks.try_join_next() {
            joined(ended)?;
        }
    }
    while let Some(ended) = tasks.join_next().await {
        joined(ended)?;
    }
    Ok(())
}

fn joined(ended: std::result::Result<Result<()>, tokio::task::JoinError>) -> Result<()> {
    ended.map_err(|error| Error::Process(format!("bug: a task that enqueues a job panicked: {error}")))?
}

/// Sends each due time to `dues` at that time, on a dedicated thread, because the runtime's timers are too coarse.
fn pace(tally: &Tally, schedule: Schedule, begin: u64, dues: &mpsc::UnboundedSender<u64>) {
    let (mut next, mut slept) = (0, Instant::now());
    while next < schedule.jobs() {
        let now = tally.now() - begin;
        let due = schedule.due_by(now, next);
        if due.is_empty() {
            let wait = Duration::from_nanos(schedule.due(next) - now);
            thread::sleep(wait.max(NAP.saturating_sub(slept.elapsed())));
            slept = Instant::now();
            continue;
        }
        next = due.end;
        for number in due {
            if dues.send(begin + schedule.due(number)).is_err() {
                return;
            }
        }
    }
}

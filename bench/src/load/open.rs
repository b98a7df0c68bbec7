//! An open loop: each job is sent when it is due, with the due time as a stamp. The loop does not wait for answers, so a slow
//! broker does not slow down the requests. Otherwise the latencies would omit exactly the jobs that waited longest (coordinated
//! omission).

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use howdah_client::{Client, proto::StreamEnqueueRequest};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::{
    closed::{Maker, answers},
    plan::Plan,
    schedule::Schedule,
    stamp,
    tally::Tally,
};
use crate::error::{Error, Result};

/// Minimum sleep of the sender. At high rates, all jobs that become due during the sleep go into one request.
const NAP: Duration = Duration::from_millis(1);
/// Maximum number of jobs per request. Reached only after the sender was delayed.
const LARGEST: u64 = 1_000;

/// Sends jobs by the schedule, on a dedicated thread, because the runtime's timers have a resolution of one millisecond, which is
/// coarser than the measured latencies.
pub(super) async fn produce(tally: Arc<Tally>, client: Client, plan: Plan, schedule: Schedule) -> Result<()> {
    let (requests, outgoing) = mpsc::unbounded_channel();
    let pace = {
        let (tally, begin) = (tally.clone(), tally.now());
        move || pace(&tally, &plan, schedule, begin, &requests)
    };
    let sender = thread::Builder::new().name("open-loop".into()).spawn(pace);
    sender.map_err(|error| Error::Process(format!("cannot start a thread: {error}")))?;
    answers(&tally, client, UnboundedReceiverStream::new(outgoing)).await
}

fn pace(
    tally: &Tally,
    plan: &Plan,
    schedule: Schedule,
    begin: u64,
    requests: &mpsc::UnboundedSender<StreamEnqueueRequest>,
) {
    let mut maker = Maker::new(plan, 0);
    let (mut next, mut sequence, mut slept) = (0, 0, Instant::now());
    while next < schedule.jobs() {
        let now = tally.now() - begin;
        let due = schedule.due_by(now, next);
        let due = due.start..due.end.min(due.start + LARGEST);
        if due.is_empty() {
            let wait = Duration::from_nanos(schedule.due(next) - now);
            thread::sleep(wait.max(NAP.saturating_sub(slept.elapsed())));
            slept = Instant::now();
            continue;
        }
        next = due.end;
        let jobs = due.map(|n| maker.job(stamp::payload(begin + schedule.due(n), plan.payload))).collect();
        let request = StreamEnqueueRequest { sequence, jobs, request_key: String::new() };
        sequence += 1;
        if requests.send(request).is_err() {
            return;
        }
    }
}

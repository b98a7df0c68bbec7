//! An open loop: each job goes out when it is due, and is stamped with when that was. Neither answers nor
//! anything else is waited for, so what slows the broker down does not slow the questions down: that
//! would leave out of the latencies the very jobs that had to wait longest.

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

/// The sender sleeps at least so long: at high rates, what falls due meanwhile is one request.
const NAP: Duration = Duration::from_millis(1);
/// Jobs of a request at most, when the sender was held up.
const LARGEST: u64 = 1_000;

/// Sends what the schedule says, on a thread of its own: the runtime's timers are a millisecond coarse,
/// which is more than what is measured.
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

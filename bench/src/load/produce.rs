//! Producers: a closed loop, callers with one job at a time, and an open loop at a fixed rate.

use std::{
    ops::Range,
    pin::pin,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use howdah_client::{
    Client, Producer,
    proto::{EnqueueJobsRequest, NewJob, StreamEnqueueRequest},
};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::{plan::Plan, stamp, tally::Tally};
use crate::error::{Error, Result};

/// Maximum number of requests that wait to be sent on a producer's stream.
const QUEUED: usize = 8;

/// Creates the jobs of one producer, cycling through several task types.
#[derive(Debug)]
struct Maker {
    types: Arc<[String]>,
    next: usize,
    tenants: u32,
    payload: usize,
}

impl Maker {
    /// Creates a job maker for one producer. Each producer starts with a different task type.
    fn new(plan: &Plan, producer: usize) -> Self {
        Self { types: plan.types.clone(), next: producer * 37, tenants: plan.tenants, payload: plan.payload }
    }

    /// Creates jobs that are due at the same time and share a payload.
    fn jobs(&mut self, count: usize, due: u64) -> Vec<NewJob> {
        let payload = stamp::payload(due, self.payload);
        (0..count).map(|_| self.job(payload.clone())).collect()
    }

    fn job(&mut self, payload: bytes::Bytes) -> NewJob {
        let task_type = self.types[self.next % self.types.len()].clone();
        self.next += 1;
        NewJob { task_type, payload, fair_key: self.tenant(), ..NewJob::default() }
    }

    /// Fair key of a pseudo-random tenant; all tenants occur equally often.
    fn tenant(&self) -> String {
        if self.tenants == 0 {
            return String::new();
        }
        let scattered = (self.next as u32).wrapping_mul(2_654_435_761) >> 8;
        format!("tenant-{}", scattered % self.tenants)
    }
}

/// Enqueues in a closed loop, a pipeline of requests with a bounded number of unsettled jobs, until cancelled or until `jobs`
/// jobs are enqueued. Then waits for the broker's answers.
pub(super) async fn closed(
    tally: Arc<Tally>,
    client: Client,
    plan: Plan,
    producer: usize,
    mut jobs: u64,
    due: Option<u64>,
    stop: CancellationToken,
) -> Result<()> {
    let (requests, outgoing) = mpsc::channel(QUEUED);
    let sending = async {
        let mut maker = Maker::new(&plan, producer);
        for sequence in 0.. {
            let batch = jobs.min(plan.batch as u64);
            jobs -= batch;
            let room = tokio::select! {
                room = tally.room.acquire_many(batch as u32) => room,
                () = stop.cancelled() => break,
            };
            let Ok(room) = room else { break };
            room.forget();
            let jobs = maker.jobs(batch as usize, due.unwrap_or_else(|| tally.now()));
            let request = StreamEnqueueRequest { sequence, jobs, request_key: String::new() };
            if batch == 0 || requests.send(request).await.is_err() {
                break;
            }
        }
        // Half-close the stream: the broker answers the requests in flight, and then ends the stream.
        drop(requests);
    };
    let answered = answers(&tally, client, ReceiverStream::new(outgoing));
    let (mut sending, mut answered) = (pin!(sending), pin!(answered));
    tokio::select! {
        answered = &mut answered => answered,
        () = &mut sending => answered.await,
    }
}

/// Opens the enqueue stream and reads the broker's answers until the stream ends.
async fn answers(tally: &Tally, client: Client, requests: ReceiverStream<StreamEnqueueRequest>) -> Result<()> {
    let mut answers = client.jobs().stream_enqueue(requests).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        if let Some(error) = answer.error {
            return Err(Error::Process(format!("an enqueue was refused: {}", error.message)));
        }
        tally.enqueued(&answer.jobs);
    }
    Ok(())
}

pub(super) enum Caller {
    /// Sends one unary call per job.
    Alone(Client),
    /// Sends jobs over a stream shared by all callers.
    Sharing(Producer),
}

impl Caller {
    /// Enqueues a job and returns when it is stored.
    async fn enqueue(&self, job: NewJob, tally: &Tally) -> Result<()> {
        match self {
            Self::Alone(client) => {
                let request = EnqueueJobsRequest { jobs: vec![job], request_key: String::new() };
                let answer = client.jobs().enqueue_jobs(request).await?;
                tally.enqueued(&answer.get_ref().jobs);
            }
            Self::Sharing(producer) => {
                let stored = producer.enqueue(job.into()).await?;
                tally.enqueued_ids(std::iter::once(stored.id));
            }
        }
        Ok(())
    }
}

/// Enqueues one job after the other until cancelled, like requests of a web application.
pub(super) async fn singly(
    tally: Arc<Tally>,
    caller: Caller,
    plan: Plan,
    producer: usize,
    stop: CancellationToken,
) -> Result<()> {
    let mut maker = Maker::new(&plan, producer);
    while !stop.is_cancelled() {
        let job = maker.job(stamp::payload(tally.now(), plan.payload));
        caller.enqueue(job, &tally).await?;
    }
    Ok(())
}

/// Maximum number of concurrent calls. Further jobs wait until a call ends; their latency includes this wait.
const CALLS: usize = 4_096;
/// Minimum sleep of the thread that sends due times.
const NAP: Duration = Duration::from_micros(100);

/// Enqueues jobs at the due times of the schedule, on the given connections in turn: an open loop with one job per call, as most
/// generated clients enqueue. Calls do not wait for earlier ones, so a slow broker does not slow down the requests. Otherwise the
/// latencies would omit exactly the jobs that waited longest (coordinated omission).
pub(super) async fn scheduled(tally: Arc<Tally>, clients: Vec<Client>, plan: Plan, schedule: Schedule) -> Result<()> {
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

/// Due times of jobs at a fixed rate: the n-th job is due at n / rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    per_second: f64,
    jobs: u64,
}

impl Schedule {
    /// Creates a schedule of the jobs that are due within `seconds`.
    pub(crate) fn new(per_second: f64, seconds: f64) -> Self {
        Self { per_second, jobs: (per_second * seconds).floor() as u64 }
    }

    /// Total number of jobs.
    pub(crate) fn jobs(&self) -> u64 {
        self.jobs
    }

    /// Due time of the n-th job, in nanoseconds.
    pub(crate) fn due(&self, number: u64) -> u64 {
        (number as f64 * 1e9 / self.per_second) as u64
    }

    /// Returns the numbers of the jobs that are due at `now`, starting with job `next`.
    pub(crate) fn due_by(&self, now: u64, next: u64) -> Range<u64> {
        // The floating-point division may be off by one job, so correct it.
        let mut end = (now as f64 * self.per_second / 1e9) as u64;
        while self.due(end) <= now {
            end += 1;
        }
        while end > next && self.due(end - 1) > now {
            end -= 1;
        }
        next..end.min(self.jobs).max(next)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn keys(tenants: u32) -> HashMap<String, u32> {
        let mut maker = Maker { types: Arc::new(["t".to_owned()]), next: 37, tenants, payload: 8 };
        let mut keys = HashMap::new();
        for job in maker.jobs(10_000, 0) {
            *keys.entry(job.fair_key).or_default() += 1;
        }
        keys
    }

    #[test]
    fn jobs_of_tenants_have_their_fair_keys_each_about_as_often() {
        assert_eq!(keys(0), HashMap::from([(String::new(), 10_000)]));
        let keys = keys(100);
        assert_eq!(keys.len(), 100);
        assert!(keys.values().all(|count| (80..120).contains(count)), "{keys:?}");
    }

    const MS: u64 = 1_000_000;

    #[test]
    fn every_job_is_due_once_however_seldom_the_schedule_is_read() {
        for rate in [3.0, 100.0, 1_000.0, 99_999.5] {
            let schedule = Schedule::new(rate, 2.0);
            let (mut next, mut now) = (0, 0);
            while next < schedule.jobs() {
                let due = schedule.due_by(now, next);
                assert_eq!(due.start, next);
                assert!(due.clone().all(|n| schedule.due(n) <= now));
                assert!(due.end == schedule.jobs() || schedule.due(due.end) > now);
                next = due.end;
                now += 7 * MS + now / 3;
            }
        }
    }

    #[test]
    fn a_stall_is_charged_to_every_job_that_it_delayed() {
        let schedule = Schedule::new(1_000.0, 1.0);
        // Simulates a sender that checks for due jobs every millisecond, except for a stall of 100 milliseconds.
        let times = (0..200).chain(300..=1_000).map(|ms| ms * MS);
        let (mut next, mut delays) = (0, Vec::new());
        for now in times {
            for number in schedule.due_by(now, next) {
                delays.push(now - schedule.due(number));
                next = number + 1;
            }
        }
        assert_eq!(delays.len(), 1_000);
        let delayed: Vec<u64> = delays.into_iter().filter(|&delay| delay > 0).collect();
        // At 1,000 jobs/s, a stall of 100 ms delays not one job but a hundred: the first by 100 ms, the last by 1 ms.
        assert_eq!(delayed.len(), 100);
        assert_eq!((delayed[0], delayed[99]), (100 * MS, MS));
    }
}

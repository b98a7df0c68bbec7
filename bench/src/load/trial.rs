//! A trial: workers and producers in an environment, from the first connection to the final count.

use std::{
    collections::HashMap,
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_client::Client;
use tokio::{
    sync::oneshot,
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    plan::{Demand, Plan, WorkerKind},
    produce::{Caller, Schedule, closed, scheduled, singly},
    stamp::WAITING,
    tally::Tally,
    worker,
};
use crate::{
    environment::{Environment, Mark, Used},
    error::{Error, Result},
    report::Bar,
};

/// Connection numbers by purpose: enqueue streams, worker streams and callers. Callers use two connections, so that the capacity of
/// one does not limit the result.
const ENQUEUE: usize = 0;
const WORK: usize = 1;
const CALL: usize = 20_000;
const CALLS: usize = 2;
/// Approximate number of samples per measurement.
const SAMPLES: f64 = 100.0;
/// Maximum number of workers that connect concurrently.
const CONNECTING: usize = 100;
/// Maximum time for workers to settle the jobs they hold.
const DRAIN: Duration = Duration::from_secs(30);

/// Time and number of settled jobs at the start of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Began {
    at: Instant,
    settled: u64,
}

/// Workers and producers in an environment; aborted when dropped.
#[derive(Debug)]
pub(crate) struct Trial<'a> {
    pub(crate) environment: &'a Environment,
    pub(crate) plan: Plan,
    /// Counts and latencies of the trial.
    pub(crate) tally: Arc<Tally>,
    clients: HashMap<(usize, usize), Client>,
    tasks: JoinSet<()>,
    producers: JoinSet<()>,
    stop_producers: CancellationToken,
    stop_workers: CancellationToken,
}

impl<'a> Trial<'a> {
    /// Creates a trial without connections.
    pub(crate) fn new(environment: &'a Environment, plan: Plan) -> Result<Self> {
        Ok(Self {
            environment,
            tally: Arc::new(Tally::new(plan.payload)?),
            plan,
            clients: HashMap::new(),
            tasks: JoinSet::new(),
            producers: JoinSet::new(),
            stop_producers: CancellationToken::new(),
            stop_workers: CancellationToken::new(),
        })
    }

    /// Returns connection `number` to a broker, opened on first use.
    async fn client(&mut self, broker: usize, number: usize) -> Result<Client> {
        let key = (broker % self.environment.brokers.len(), number);
        if let Some(client) = self.clients.get(&key) {
            return Ok(client.clone());
        }
        let client = self.environment.client(broker).await?;
        self.clients.insert(key, client.clone());
        Ok(client)
    }

    pub(crate) async fn connect_workers(&mut self) -> Result<()> {
        let plan = self.plan.clone();
        let brokers = self.environment.brokers.len();
        let mut connecting = Vec::new();
        for number in 0..plan.workers {
            let connection = WORK + number / brokers / plan.streams_per_connection;
            let client = self.client(number % brokers, connection).await?;
            let (tally, stop, (connected, is_connected)) =
                (self.tally.clone(), self.stop_workers.clone(), oneshot::channel());
            let (tasks, of_worker) = (&mut self.tasks, plan.clone());
            match plan.kind {
                WorkerKind::Raw => {
                    spawn(tasks, tally.clone(), worker::raw(tally, client, of_worker, number, connected, stop));
                }
                WorkerKind::Rust => {
                    spawn(tasks, tally.clone(), worker::of_client(tally, client, of_worker, number, connected, stop));
                }
            }
            connecting.push(is_connected);
            if connecting.len() == CONNECTING || number + 1 == plan.workers {
                for is_connected in connecting.drain(..) {
                    let _ = self.unless_failed(is_connected).await?;
                }
            }
        }
        Ok(())
    }

    /// Enqueues this many jobs before any worker connects.
    pub(crate) async fn preload(&mut self, jobs: u64, bar: &Bar) -> Result<()> {
        self.tally.room.add_permits(jobs as usize);
        self.spawn_closed(2, jobs, Some(WAITING)).await?;
        while self.tally.enqueued_count() < jobs && !self.producers.is_empty() {
            bar.at(self.tally.enqueued_count() as f64);
            let a_while = sleep(Duration::from_millis(50));
            self.unless_failed(a_while).await?;
            while self.producers.try_join_next().is_some() {}
        }
        Ok(())
    }

    /// Starts producers. They run until [`finish`](Self::finish), or until they have enqueued `jobs` jobs.
    pub(crate) async fn produce(&mut self, demand: Demand, jobs: Option<u64>) -> Result<()> {
        if self.stop_producers.is_cancelled() {
            self.stop_producers = CancellationToken::new();
        }
        match demand {
            Demand::Closed { producers } => {
                // In a later round the permits of the first round are free again, because all jobs were settled.
                let room = self.plan.in_flight.max(self.plan.batch);
                self.tally.room.add_permits(room.saturating_sub(self.tally.room.available_permits()));
                self.spawn_closed(producers, jobs.unwrap_or(u64::MAX), None).await
            }
            Demand::Single { producers } => {
                for number in 0..producers {
                    let client = self.client(number, CALL + number % CALLS).await?;
                    self.spawn_caller(Caller::Alone(client), number);
                }
                Ok(())
            }
            Demand::Shared { producers } => {
                let shared = self.client(0, CALL).await?.producer();
                (0..producers).for_each(|number| self.spawn_caller(Caller::Sharing(shared.clone()), number));
                Ok(())
            }
        }
    }

    fn spawn_caller(&mut self, caller: Caller, number: usize) {
        let (tally, stop) = (self.tally.clone(), self.stop_producers.clone());
        let produce = singly(tally.clone(), caller, self.plan.clone(), number, stop);
        spawn(&mut self.producers, tally, produce);
    }

    /// Starts to enqueue jobs at a fixed rate for `seconds`, with one job per call. Returns their number.
    pub(crate) async fn call_at(&mut self, per_second: f64, seconds: f64) -> Result<u64> {
        let schedule = Schedule::new(per_second, seconds);
        let mut clients = Vec::new();
        for number in 0..CALLS {
            clients.push(self.client(0, CALL + number).await?);
        }
        let produce = scheduled(self.tally.clone(), clients, self.plan.clone(), schedule);
        spawn(&mut self.producers, self.tally.clone(), produce);
        Ok(schedule.jobs())
    }

    async fn spawn_closed(&mut self, producers: usize, jobs: u64, due: Option<u64>) -> Result<()> {
        for number in 0..producers {
            let client = self.client(number, ENQUEUE).await?;
            let (tally, stop) = (self.tally.clone(), self.stop_producers.clone());
            let count = producers as u64;
            let share = jobs / count + u64::from((number as u64) < jobs % count);
            let produce = closed(tally.clone(), client, self.plan.clone(), number, share, due, stop);
            spawn(&mut self.producers, tally, produce);
        }
        Ok(())
    }

    /// Waits while caches fill and statements are planned, without measuring.
    pub(crate) async fn warm_up(&self, time: Duration) -> Result<()> {
        self.unless_failed(sleep(time)).await
    }

    /// Measures for `time`.
    pub(crate) async fn measure(&self, time: Duration, bar: &Bar) -> Result<Span> {
        self.tally.count_from_now();
        // The sleep must start after the first counters are read, so it is created when first polled.
        let over = async { sleep(time).await };
        let span = self.observe(time.as_secs_f64(), over, bar, |sample| sample.seconds).await?;
        self.tally.count_until_now();
        Ok(span)
    }

    /// Starts a measurement that ends after a number of jobs; see [`measure_until`](Self::measure_until).
    pub(crate) fn begin(&self) -> Began {
        self.tally.count_from_now();
        Began { at: Instant::now(), settled: self.tally.settled_count() }
    }

    /// Measures until this many jobs have been settled since `began`.
    pub(crate) async fn measure_until(&self, began: Began, jobs: u64, bar: &Bar) -> Result<Span> {
        let done = self.tally.until_settled(began.settled + jobs);
        let mut span = self.observe(1.0, done, bar, |sample| sample.settled as f64).await?;
        span.jobs = self.tally.settled_count() - began.settled;
        span.seconds = self.tally.settled_at().saturating_duration_since(began.at).as_secs_f64();
        Ok(span)
    }

    /// Measures until `done` completes, with samples of progress and memory.
    async fn observe(
        &self,
        expected_seconds: f64,
        done: impl Future<Output = ()>,
        bar: &Bar,
        position: impl Fn(&Sample) -> f64,
    ) -> Result<Span> {
        let mut tick = interval(Duration::from_secs_f64((expected_seconds / SAMPLES).clamp(0.05, 10.0)));
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let begin = Mark::take(self.environment).await;
        let before = self.tally.settled_count();
        let mut samples = Vec::new();
        let mut done = std::pin::pin!(self.unless_failed(done));
        loop {
            tokio::select! {
                done = &mut done => { done?; break }
                _ = tick.tick() => {
                    let settled = self.tally.settled_count() - before;
                    let seconds = begin.at.elapsed().as_secs_f64();
                    let sample = Sample { seconds, settled, resident: self.environment.resident() };
                    bar.at(position(&sample));
                    samples.push(sample);
                }
            }
        }
        let (jobs, end) = (self.tally.settled_count() - before, Instant::now());
        let seconds = (end - begin.at).as_secs_f64();
        samples.push(Sample { seconds, settled: jobs, resident: self.environment.resident() });
        Ok(Span { jobs, seconds, samples, used: Mark::take(self.environment).await.since(&begin) })
    }

    pub(crate) fn stop_producing(&self) {
        self.stop_producers.cancel();
    }

    /// Stops the producers, and waits until all enqueued jobs are settled.
    pub(crate) async fn finish(&mut self) -> Result<()> {
        self.stop_producers.cancel();
        let mut producers = std::mem::take(&mut self.producers);
        self.unless_failed(async { while producers.join_next().await.is_some() {} }).await?;
        self.unless_failed(self.tally.until_settled(self.tally.enqueued_count())).await
    }

    /// Ends the workers after they have settled their jobs.
    pub(crate) async fn dismiss(&mut self) -> Result<()> {
        self.stop_workers.cancel();
        let mut tasks = std::mem::take(&mut self.tasks);
        let all = async { while tasks.join_next().await.is_some() {} };
        // A worker that does not end in time still holds jobs, which the final count shows as lost.
        let _ = timeout(DRAIN, self.unless_failed(all)).await;
        self.tally.failure().map_or(Ok(()), Err)
    }

    async fn unless_failed<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            value = future => Ok(value),
            () = self.tally.failed.cancelled() => {
                Err(self.tally.failure().unwrap_or_else(|| Error::Process("bug: a producer or worker ended the trial without an error".into())))
            }
        }
    }
}

fn spawn(tasks: &mut JoinSet<()>, tally: Arc<Tally>, task: impl Future<Output = Result<()>> + Send + 'static) {
    tasks.spawn(async move {
        if let Err(error) = task.await {
            tally.fail(error);
        }
    });
}

/// Number of settled jobs and resident memory at one time of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Seconds since the start of the measurement.
    pub(crate) seconds: f64,
    /// Jobs settled since the start of the measurement.
    pub(crate) settled: u64,
    /// Resident bytes of the brokers.
    pub(crate) resident: Option<u64>,
}

/// A measurement.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) jobs: u64,
    pub(crate) seconds: f64,
    pub(crate) samples: Vec<Sample>,
    /// Resources used in the measurement.
    pub(crate) used: Used,
}

impl Span {
    /// Creates a measurement without samples.
    pub(crate) fn new(jobs: u64, seconds: f64, used: Used) -> Self {
        Self { jobs, seconds, samples: Vec::new(), used }
    }

    /// Jobs per second.
    pub(crate) fn rate(&self) -> f64 {
        self.jobs as f64 / self.seconds.max(1e-9)
    }

    /// Sums several measurements into one; `None` without any. The sum has no samples, because other work ran in between.
    pub(crate) fn all(spans: Vec<Self>) -> Option<Self> {
        spans.into_iter().reduce(|mut all, span| {
            all.samples.clear();
            all.jobs += span.jobs;
            all.seconds += span.seconds;
            all.used.add(&span.used);
            all
        })
    }
}

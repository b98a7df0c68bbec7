//! A principal that floods a broker: it enqueues at twice its limit, makes calls that are refused, and opens connections. All rates
//! are fixed, so that the flooding clients, which share the machine, take the same processor time in each run.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use howdah_client::{
    Client, ClientBuilder,
    proto::{EnqueueJobsRequest, GetJobRequest, NewJob},
};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use tonic::Code;

use crate::error::{Error, Result};

/// Limit of jobs per second and principal.
pub(crate) const ALLOWED: u64 = 2_000;
/// Limit of connections per principal.
pub(crate) const CONNECTIONS: usize = 40;
/// Jobs per call.
const BATCH: usize = 100;
/// Enqueue calls per second, twice the limit.
const ENQUEUES: f64 = (2 * ALLOWED) as f64 / BATCH as f64;
/// Invalid calls per second: forbidden reads, invalid task types, unknown tokens.
const INVALID: f64 = 300.0;
/// New connections per second. The flood keeps the newest open, up to twice the limit of connections.
const CONNECTS: f64 = 20.0;
/// Concurrent calls of each kind. Further calls are skipped, because a flood does not wait for answers.
const AT_ONCE: usize = 64;

/// Counters of a flood.
#[derive(Debug, Default)]
pub(crate) struct Flooded {
    /// Jobs stored.
    pub(crate) stored: AtomicU64,
    /// Calls refused because of a limit.
    pub(crate) limited: AtomicU64,
    /// Calls refused for another reason.
    pub(crate) refused: AtomicU64,
    /// Connections opened.
    pub(crate) connected: AtomicU64,
}

/// A running flood, stopped when dropped.
#[derive(Debug)]
pub(crate) struct Flood {
    tasks: JoinSet<()>,
    flooded: Arc<Flooded>,
}

/// Client settings of a flood.
#[derive(Clone, Debug)]
pub(crate) struct Flooder {
    /// Client with the token of the flooding principal.
    pub(crate) client: ClientBuilder,
    /// Client with an unknown token.
    pub(crate) stranger: ClientBuilder,
    /// Task type of the flood's jobs.
    pub(crate) task_type: String,
}

impl Flood {
    /// Starts to flood a broker.
    pub(crate) async fn start(flooder: &Flooder, broker: &str) -> Result<Self> {
        let (mut tasks, flooded) = (JoinSet::new(), Arc::new(Flooded::default()));
        let client = flooder.client.clone().endpoint(broker).connect().await?;
        let stranger = flooder.stranger.clone().endpoint(broker).connect().await?;
        let job = NewJob { task_type: flooder.task_type.clone(), payload: vec![0; 64].into(), ..NewJob::default() };
        let (sender, count) = (client.clone(), flooded.clone());
        tasks.spawn(call_at_rate(ENQUEUES, move || enqueue(sender.clone(), vec![job.clone(); BATCH], count.clone())));
        let (count, callers) = (flooded.clone(), [client, stranger]);
        let mut number = 0_usize;
        tasks.spawn(call_at_rate(INVALID, move || {
            number += 1;
            invalid_call(callers[usize::from(number.is_multiple_of(3))].clone(), number, count.clone())
        }));
        let (builder, count, broker) = (flooder.client.clone(), flooded.clone(), broker.to_owned());
        tasks.spawn(hold(builder, broker, count));
        Ok(Self { tasks, flooded })
    }

    /// Stops the flood and returns its counters.
    pub(crate) async fn stop(mut self) -> Arc<Flooded> {
        self.tasks.shutdown().await;
        self.flooded
    }
}

/// Makes calls at a fixed rate, whether earlier calls were answered or not.
async fn call_at_rate<F>(per_second: f64, mut call: impl FnMut() -> F + Send)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut tick = interval(Duration::from_secs_f64(1.0 / per_second));
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut calls = JoinSet::new();
    loop {
        tick.tick().await;
        while calls.try_join_next().is_some() {}
        if calls.len() < AT_ONCE {
            calls.spawn(call());
        }
    }
}

async fn enqueue(client: Client, jobs: Vec<NewJob>, flooded: Arc<Flooded>) {
    let sent = jobs.len() as u64;
    let answer = client.jobs().enqueue_jobs(EnqueueJobsRequest { jobs, request_key: String::new() }).await;
    match answer {
        Ok(_) => flooded.stored.fetch_add(sent, Relaxed),
        Err(status) => flooded.count(status.code()),
    };
}

async fn invalid_call(client: Client, number: usize, flooded: Arc<Flooded>) {
    let mut jobs = client.jobs();
    let status = if number.is_multiple_of(2) {
        jobs.get_job(GetJobRequest { id: number as i64 }).await.err()
    } else {
        let job = NewJob { task_type: "no task type".into(), ..NewJob::default() };
        jobs.enqueue_jobs(EnqueueJobsRequest { jobs: vec![job], request_key: String::new() }).await.err()
    };
    if let Some(status) = status {
        flooded.count(status.code());
    }
}

/// Opens connections at a fixed rate, makes one call on each, and keeps the newest open.
async fn hold(builder: ClientBuilder, broker: String, flooded: Arc<Flooded>) {
    let mut tick = interval(Duration::from_secs_f64(1.0 / CONNECTS));
    let mut held = std::collections::VecDeque::new();
    loop {
        tick.tick().await;
        let Ok(client) = builder.clone().endpoint(broker.as_str()).connect().await else { continue };
        flooded.connected.fetch_add(1, Relaxed);
        if let Err(status) = client.jobs().get_job(GetJobRequest { id: 1 }).await {
            flooded.count(status.code());
        }
        held.push_back(client);
        if held.len() > 2 * CONNECTIONS {
            held.pop_front();
        }
    }
}

impl Flooded {
    fn count(&self, code: Code) -> u64 {
        if code == Code::ResourceExhausted { &self.limited } else { &self.refused }.fetch_add(1, Relaxed)
    }

    /// Fails if the flood had no effect, which would make the measurement meaningless. Does not require that the limits were
    /// reached, because on a slow machine the flood may stay below them.
    pub(crate) fn check(&self) -> Result<()> {
        for (problem, count) in [
            ("no job was stored", &self.stored),
            ("no call was refused", &self.refused),
            ("no connection was opened", &self.connected),
        ] {
            if count.load(Relaxed) == 0 {
                return Err(Error::Process(format!("the flood had no effect: {problem}")));
            }
        }
        Ok(())
    }
}

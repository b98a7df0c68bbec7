//! A principal that floods: it asks for twice what its limits allow, makes calls that are refused, and opens connections.
//! All of it at fixed rates, so that its clients, which share the machine, take the same time of the processor in each run.

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

/// Jobs in a second that the limits of each principal allow.
pub(crate) const ALLOWED: u64 = 2_000;
/// Connections that they allow.
pub(crate) const CONNECTIONS: usize = 40;
/// Jobs in a call.
const BATCH: usize = 100;
/// What it asks for in a second.
const ENQUEUES: f64 = (2 * ALLOWED) as f64 / BATCH as f64;
/// Calls in a second that are wrong: what it may not read, what is no task type, a token that nobody has.
const BAD: f64 = 300.0;
/// Connections in a second. As many as it may have are held.
const CONNECTS: f64 = 20.0;
/// Calls under way at once, of each kind. More are left out: a flood waits for nobody.
const AT_ONCE: usize = 64;

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Flooded {
    /// Jobs that were stored.
    pub(crate) stored: AtomicU64,
    /// Calls that were refused for a limit.
    pub(crate) limited: AtomicU64,
    /// Calls that were refused for another reason.
    pub(crate) refused: AtomicU64,
    /// Connections that were opened.
    pub(crate) connected: AtomicU64,
}

/// A flood, until it is dropped.
#[derive(Debug)]
pub(crate) struct Flood {
    tasks: JoinSet<()>,
    flooded: Arc<Flooded>,
}

/// How the flood connects.
#[derive(Clone, Debug)]
pub(crate) struct Flooder {
    /// With the token of its principal.
    pub(crate) client: ClientBuilder,
    /// With a token that nobody has.
    pub(crate) stranger: ClientBuilder,
    /// The types of its jobs.
    pub(crate) task_type: String,
}

impl Flood {
    /// Begins to flood the broker.
    pub(crate) async fn start(flooder: &Flooder, broker: &str) -> Result<Self> {
        let (mut tasks, flooded) = (JoinSet::new(), Arc::new(Flooded::default()));
        let client = flooder.client.clone().endpoint(broker).connect().await?;
        let stranger = flooder.stranger.clone().endpoint(broker).connect().await?;
        let job = NewJob { task_type: flooder.task_type.clone(), payload: vec![0; 64].into(), ..NewJob::default() };
        let (own, count) = (client.clone(), flooded.clone());
        tasks.spawn(at(ENQUEUES, move || enqueue(own.clone(), vec![job.clone(); BATCH], count.clone())));
        let (count, callers) = (flooded.clone(), [client, stranger]);
        let mut turn = 0_usize;
        tasks.spawn(at(BAD, move || {
            turn += 1;
            bad(callers[usize::from(turn.is_multiple_of(3))].clone(), turn, count.clone())
        }));
        let (builder, count, broker) = (flooder.client.clone(), flooded.clone(), broker.to_owned());
        tasks.spawn(hold(builder, broker, count));
        Ok(Self { tasks, flooded })
    }

    /// Ends it.
    pub(crate) async fn stop(mut self) -> Arc<Flooded> {
        self.tasks.shutdown().await;
        self.flooded
    }
}

/// Makes so many calls in a second, whether those before were answered or not.
async fn at<F>(per_second: f64, mut call: impl FnMut() -> F + Send)
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
        Err(status) => flooded.note(status.code()),
    };
}

async fn bad(client: Client, turn: usize, flooded: Arc<Flooded>) {
    let mut jobs = client.jobs();
    let status = if turn.is_multiple_of(2) {
        jobs.get_job(GetJobRequest { id: turn as i64 }).await.err()
    } else {
        let job = NewJob { task_type: "no task type".into(), ..NewJob::default() };
        jobs.enqueue_jobs(EnqueueJobsRequest { jobs: vec![job], request_key: String::new() }).await.err()
    };
    if let Some(status) = status {
        flooded.note(status.code());
    }
}

/// Opens connections and makes a call on each; holds the last of them.
async fn hold(builder: ClientBuilder, broker: String, flooded: Arc<Flooded>) {
    let mut tick = interval(Duration::from_secs_f64(1.0 / CONNECTS));
    let mut held = std::collections::VecDeque::new();
    loop {
        tick.tick().await;
        let Ok(client) = builder.clone().endpoint(broker.as_str()).connect().await else { continue };
        flooded.connected.fetch_add(1, Relaxed);
        if let Err(status) = client.jobs().get_job(GetJobRequest { id: 1 }).await {
            flooded.note(status.code());
        }
        held.push_back(client);
        if held.len() > 2 * CONNECTIONS {
            held.pop_front();
        }
    }
}

impl Flooded {
    fn note(&self, code: Code) -> u64 {
        if code == Code::ResourceExhausted { &self.limited } else { &self.refused }.fetch_add(1, Relaxed)
    }

    /// An error if it was no flood: then nothing was measured. Whether it has met its limits is for people to see: a slow machine
    /// may not get there.
    pub(crate) fn check(&self) -> Result<()> {
        for (what, count) in [
            ("no job of it was stored", &self.stored),
            ("no call was refused", &self.refused),
            ("no connection was opened", &self.connected),
        ] {
            if count.load(Relaxed) == 0 {
                return Err(Error::Process(format!("the flood was none: {what}")));
            }
        }
        Ok(())
    }
}

//! A worker process that uses the protocol directly and records what it receives. It resumes its session, resends unanswered
//! outcomes, and also sends outcomes of leases that it has lost.

use std::{collections::HashMap, path::PathBuf, time::Duration};

use howdah_proto::v1::{
    self, Ack, LeasedJob, Nack, Outcome, Progress, ProgressReport, Release, Settle, SettleStatus, Snooze, Subscribe,
    Window, WorkRequest, WorkResponse, outcome, work_request, work_response,
    worker_service_client::WorkerServiceClient,
};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Streaming, transport::Endpoint};

use super::record::{Lease, Line, Record, now};

/// Environment variable that turns this test program into a worker process.
pub(super) const VARIABLE: &str = "HOWDAH_ENDURANCE_WORKER";
/// Name of the test that becomes a worker process if the variable is set.
pub(super) const TEST: &str = "endurance::entry_point_of_worker_processes";

/// Parameters of a worker process.
#[derive(Clone)]
pub(super) struct Orders {
    pub(super) name: String,
    /// Addresses of the brokers. The worker begins with the first address, and goes on to the next address whenever a stream
    /// ends.
    pub(super) brokers: Vec<String>,
    pub(super) records: PathBuf,
    /// Task types to subscribe to, each with its window.
    pub(super) windows: Vec<(String, i32)>,
    /// Payload of the jobs that kill the worker.
    pub(super) poison: String,
    /// Whether the worker sends only acks. Otherwise it also nacks, snoozes and releases some jobs.
    pub(super) plain: bool,
    /// Whether the worker pulls jobs by unary calls instead of a stream.
    pub(super) pulls: bool,
}

impl Orders {
    pub(super) fn text(&self) -> String {
        json!({"name": self.name, "brokers": self.brokers, "records": self.records, "windows": self.windows,
               "poison": self.poison, "plain": self.plain, "pulls": self.pulls})
        .to_string()
    }

    fn parse(text: &str) -> Self {
        let value: Value = serde_json::from_str(text).expect("orders");
        let string = |value: &Value| value.as_str().expect("a string").to_owned();
        let list = |key: &str| value[key].as_array().expect("a list").clone();
        let window = |pair: &Value| (string(&pair[0]), pair[1].as_i64().expect("a number") as i32);
        Self {
            name: string(&value["name"]),
            brokers: list("brokers").iter().map(string).collect(),
            records: string(&value["records"]).into(),
            windows: list("windows").iter().map(window).collect(),
            poison: string(&value["poison"]),
            plain: value["plain"].as_bool().expect("a boolean"),
            pulls: value["pulls"].as_bool().expect("a boolean"),
        }
    }
}

/// Runs a worker until it is killed or its parent process ends.
pub(super) fn run(orders: &str) -> ! {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let orders = Orders::parse(orders);
    let record = Record::open(&orders.records, &orders.name);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        if orders.pulls {
            super::puller::run(orders, record).await;
            std::process::exit(1);
        }
        let mut worker = Life { orders, record, session: String::new(), held: HashMap::new(), turn: 0 };
        loop {
            let why = worker.stream().await.err().unwrap_or_else(|| "ended".into());
            worker.record.write(&Line::Broken { at: now(), why });
            worker.turn += 1;
            sleep(Duration::from_millis(20)).await;
        }
    })
}

/// A job that the worker runs.
struct Held {
    /// Time at which the worker next sends the outcome of the job.
    due: Instant,
    /// Outcome of the job, drawn at random when the job arrived.
    outcome: Outcome,
    sent: bool,
    /// Send time of the last progress report, in microseconds since 1970; `None` before the first report.
    reported: Option<u64>,
}

struct Life {
    orders: Orders,
    record: Record,
    session: String,
    held: HashMap<Lease, Held>,
    turn: usize,
}

type Failed = String;

impl Life {
    /// Opens a stream and handles its messages until it ends.
    async fn stream(&mut self) -> Result<(), Failed> {
        let broker = self.orders.brokers[self.turn % self.orders.brokers.len()].clone();
        let endpoint = Endpoint::from_shared(format!("http://{broker}"))
            .expect("address")
            .connect_timeout(Duration::from_secs(2))
            .http2_keep_alive_interval(Duration::from_secs(2))
            .keep_alive_timeout(Duration::from_secs(4))
            .keep_alive_while_idle(true);
        let channel = endpoint.connect().await.map_err(|error| format!("connect: {error}"))?;
        let (send, receive) = mpsc::unbounded_channel();
        let subscribe = self.subscribe();
        drop(send.send(request(work_request::Message::Subscribe(subscribe))));
        let mut client = WorkerServiceClient::new(channel);
        let opened = timeout(Duration::from_secs(10), client.work(UnboundedReceiverStream::new(receive))).await;
        let opened = opened.map_err(|_| "no headers".to_owned())?;
        let mut stream = opened.map_err(|status| format!("open: {status:?}"))?.into_inner();
        self.serve(&mut stream, send).await
    }

    fn subscribe(&self) -> Subscribe {
        let windows = &self.orders.windows;
        let window = |(task_type, jobs): &(String, i32)| Window { task_type: task_type.clone(), jobs: *jobs, bytes: 0 };
        Subscribe {
            windows: windows.iter().map(window).collect(),
            session_id: self.session.clone(),
            held: self.held.keys().map(|lease| v1::Lease { id: lease.id, token: lease.token }).collect(),
            ..Subscribe::default()
        }
    }

    async fn serve(
        &mut self,
        stream: &mut Streaming<WorkResponse>,
        send: mpsc::UnboundedSender<WorkRequest>,
    ) -> Result<(), Failed> {
        let mut send = Some(send);
        let mut leave = None;
        loop {
            let next = self.held.values().map(|held| held.due).min();
            tokio::select! {
                message = stream.message() => {
                    let message = message.map_err(|status| format!("stream: {} {}", status.code(), status.message()))?;
                    let Some(message) = message.and_then(|message| message.message) else { return Ok(()) };
                    if let Some(wait) = self.take(message, send.as_ref()) {
                        // Stay for 100 ms, to settle jobs that are nearly done. The worker resumes the other jobs at the next
                        // broker.
                        leave.get_or_insert((Instant::now() + Duration::from_millis(100), wait));
                    }
                }
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() && send.is_some() => {
                    self.settle_due(send.as_ref());
                }
                () = sleep_until(leave.map_or_else(Instant::now, |(at, _)| at)), if leave.is_some() && send.is_some() => {
                    send = None;
                }
            }
            if let (None, Some((_, wait))) = (&send, leave) {
                let rest = async {
                    while let Ok(Some(message)) = stream.message().await {
                        message.message.into_iter().for_each(|message| {
                            self.take(message, None);
                        });
                    }
                };
                let _ = timeout(Duration::from_secs(2), rest).await;
                sleep(wait).await;
                return Ok(());
            }
        }
    }

    /// Handles a message. Returns the delay before reconnecting if the broker asks the worker to leave.
    fn take(
        &mut self,
        message: work_response::Message,
        send: Option<&mpsc::UnboundedSender<WorkRequest>>,
    ) -> Option<Duration> {
        match message {
            work_response::Message::Welcome(welcome) => {
                self.session = welcome.session_id;
                self.lose(welcome.lost.iter().map(|lease| Lease { id: lease.id, token: lease.token }));
                // Send all outcomes without a result again, because the old stream may have lost them or their results.
                self.held.values_mut().filter(|held| held.sent).for_each(|held| held.due = Instant::now());
            }
            work_response::Message::Jobs(jobs) => jobs.jobs.into_iter().for_each(|job| self.begin(job, send)),
            work_response::Message::Settled(settled) => {
                settled.results.iter().for_each(|result| self.settled(result));
            }
            work_response::Message::Progressed(progressed) => {
                let ok = progressed.results.iter().filter(|result| result.status() == SettleStatus::Ok);
                for result in ok {
                    let lease = Lease { id: result.id, token: result.token };
                    // The broker confirmed the lease after the worker had sent the report, so the lease was live at the
                    // send time.
                    let reported = self.held.get(&lease).and_then(|held| held.reported);
                    reported.into_iter().for_each(|at| self.record.write(&Line::Alive { at, lease }));
                }
            }
            work_response::Message::Cancel(cancel) => {
                self.lose(cancel.jobs.iter().map(|job| Lease { id: job.id, token: job.token }));
            }
            work_response::Message::Drain(drain) => {
                return Some(drain.reconnect_after.and_then(|d| d.try_into().ok()).unwrap_or_default());
            }
            work_response::Message::Ping(_) => {
                if let Some(send) = send {
                    let _ = send.send(WorkRequest { message: Some(work_request::Message::Pong(v1::Pong {})) });
                }
            }
            work_response::Message::Pong(_) | work_response::Message::Extended(_) => {}
        }
        None
    }

    fn begin(&mut self, job: LeasedJob, send: Option<&mpsc::UnboundedSender<WorkRequest>>) {
        let lease = Lease { id: job.id, token: job.token };
        let name = String::from_utf8_lossy(&job.payload).into_owned();
        let (attempt, task_type) = (job.attempt, job.task_type);
        let poison = name == self.orders.poison;
        self.record.write(&Line::Begun { at: now(), lease, attempt, task_type, name });
        if poison {
            std::process::abort();
        }
        let dice = lease.token.unsigned_abs();
        let mut reported = None;
        if dice % 20 == 7
            && let Some(send) = send
        {
            reported = Some(now());
            let report = ProgressReport {
                id: lease.id,
                token: lease.token,
                fraction: None,
                text: None,
                checkpoint: Some(attempt.to_string().into_bytes().into()),
            };
            drop(send.send(request(work_request::Message::Progress(Progress { reports: vec![report] }))));
        }
        let outcome = Outcome { id: lease.id, token: lease.token, outcome: Some(outcome(dice, self.orders.plain)) };
        self.held.insert(lease, Held { due: Instant::now() + lasts(dice), outcome, sent: false, reported });
    }

    fn settle_due(&mut self, send: Option<&mpsc::UnboundedSender<WorkRequest>>) {
        let Some(send) = send else { return };
        let now_instant = Instant::now();
        let mut outcomes = Vec::new();
        for (lease, held) in self.held.iter_mut().filter(|(_, held)| held.due <= now_instant) {
            if !held.sent {
                let outcome = word(&held.outcome).to_owned();
                self.record.write(&Line::Sent { at: now(), lease: *lease, outcome });
                held.sent = true;
            }
            // Do not send the outcome again on this stream. If no result arrives, the stream breaks, and the worker sends the
            // outcome on the next stream.
            held.due = now_instant + Duration::from_secs(3600);
            outcomes.push(held.outcome.clone());
        }
        for outcomes in outcomes.chunks(1_000) {
            let settle = Settle { outcomes: outcomes.to_vec() };
            drop(send.send(request(work_request::Message::Settle(settle))));
        }
    }

    fn settled(&mut self, result: &v1::SettleResult) {
        let lease = Lease { id: result.id, token: result.token };
        let status = result.status();
        self.record.write(&Line::Settled { at: now(), lease, status: format!("{status:?}") });
        if status == SettleStatus::Unavailable {
            if let Some(held) = self.held.get_mut(&lease) {
                held.due = Instant::now() + Duration::from_millis(200);
            }
        } else {
            self.held.remove(&lease);
        }
    }

    /// Records that the worker has lost leases. The worker keeps running their jobs, so that it also sends outcomes of lost
    /// leases.
    fn lose(&mut self, leases: impl Iterator<Item = Lease>) {
        leases.for_each(|lease| self.record.write(&Line::Lost { at: now(), lease }));
    }
}

/// Chooses the outcome of a job from a random number: mostly success.
pub(super) fn outcome(dice: u64, plain: bool) -> outcome::Outcome {
    let soon = |ms| Some(Duration::from_millis(ms).try_into().expect("a duration"));
    match (dice / 1_000) % 100 {
        0..=3 if !plain => outcome::Outcome::Nack(Nack {
            error: "by the dice".into(),
            retry_after: soon(dice % 300),
            ..Nack::default()
        }),
        4 if !plain => outcome::Outcome::Snooze(Snooze { delay: soon(dice % 300 + 1) }),
        5 if !plain => outcome::Outcome::Release(Release {}),
        _ => outcome::Outcome::Ack(Ack { result: b"done".to_vec().into(), ..Ack::default() }),
    }
}

/// Chooses the duration of a job from a random number: mostly zero, sometimes long enough to be interrupted.
pub(super) fn lasts(dice: u64) -> Duration {
    Duration::from_millis(match (dice / 100_000) % 100 {
        0..=7 => 300 + dice % 900,
        8..=29 => 20 + dice % 200,
        _ => dice % 5,
    })
}

pub(super) fn word(outcome: &Outcome) -> &'static str {
    match &outcome.outcome {
        Some(outcome::Outcome::Ack(_)) => "ack",
        Some(outcome::Outcome::Nack(_)) => "nack",
        Some(outcome::Outcome::Snooze(_)) => "snooze",
        Some(outcome::Outcome::Release(_)) => "release",
        None => "none",
    }
}

fn request(message: work_request::Message) -> WorkRequest {
    WorkRequest { message: Some(message) }
}

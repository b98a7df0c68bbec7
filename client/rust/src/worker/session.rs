//! The lifecycle of a worker: connect, serve, reconnect, stop.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use howdah_proto::v1::{CancelReason, SettleResult, Subscribe, Welcome, Window};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until},
};
use tonic::Code;

use crate::{Client, Error, Result, call::Backoff, telemetry::Attempt, time};

use super::{
    builder::{Config, Worker},
    flow::Flow,
    handle::{Command, Status, WorkerHandle, WorkerReport, WorkerState},
    ledger::{Key, Ledger},
    link::{Link, LinkThread},
    outcome::Outcome,
    requests::{PendingRequests, Request},
    slots::Slots,
};

/// Time that handlers have to end after they were told to abandon their jobs. Then the handlers are dropped.
pub(crate) const HANDLER_TIMEOUT: Duration = Duration::from_secs(1);
/// Initial maximum of the bytes of a `SettleJobs` call with more than one outcome.
const UNARY_BYTES: usize = 64 << 10;
/// Maximum number of jobs that one log line names.
const MAX_NAMED: usize = 20;

/// The state of a worker, which outlives its streams.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) config: Arc<Config>,
    /// Messages of handlers and of `SettleJobs` calls.
    pub(crate) mail: mpsc::UnboundedReceiver<Mail>,
    pub(crate) mail_sender: mpsc::UnboundedSender<Mail>,
    pub(crate) ledger: Ledger,
    pub(crate) slots: Slots,
    pub(crate) requests: PendingRequests,
    /// Whether a `SettleJobs` call is pending.
    pub(crate) unary_is_busy: bool,
    /// Maximum bytes of a `SettleJobs` call with more than one outcome.
    pub(crate) unary_bytes: usize,
    pub(crate) commands: mpsc::UnboundedReceiver<Command>,
    pub(crate) status: watch::Sender<Status>,
    /// Window of each task type.
    pub(crate) windows: Vec<usize>,
    /// Number of jobs in the window of each task type that was sent last on the stream.
    pub(crate) sent_windows: Vec<usize>,
    pub(crate) stop: Stop,
    /// Number of jobs accepted so far; the worker stops at `max_jobs`.
    pub(crate) taken: u64,
    /// Time at which outcomes that the broker could not store are resent. `None` without such outcomes.
    pub(crate) resend_at: Option<Instant>,
    pub(crate) resend_backoff: Backoff,
    id: String,
    /// Index of the broker of the last stream.
    pub(crate) broker: usize,
    pub(crate) grace: Option<Duration>,
    pub(crate) has_stream: bool,
    /// End of the grace time, during which the broker keeps the leases while no stream is open. `None` while a stream is
    /// open, before the first stream, and after the grace time.
    pub(crate) lost_at: Option<Instant>,
    /// During a stop: time since which no handler runs and only confirmations are missing. `None` before.
    pub(crate) waits_since: Option<Instant>,
}

/// A message to the worker.
#[derive(Debug)]
pub(crate) enum Mail {
    /// The outcome of a handler.
    Done(Key, Outcome, Attempt),
    /// A handler's extension or progress report.
    Request(Request),
    /// The leases that a `SettleJobs` call named, and its result.
    Unary(Vec<Key>, Result<Vec<SettleResult>>),
}

/// The progress of a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    No,
    /// The worker takes no more jobs. Handlers run to their end, or until this time if it is set.
    Draining(Option<Instant>),
    /// Handlers are told to abandon their jobs, and have until this time to end.
    Cancelling(Instant),
    /// Handlers are dropped. The broker has until this time to confirm that their jobs are released.
    Closing(Instant),
    /// The worker ends now.
    Now,
}

/// Reason why the session no longer serves a stream.
pub(crate) enum End {
    /// The worker has stopped: all jobs are settled, or a time limit of the stop has passed.
    Finished,
    /// The broker asks the worker to reconnect, from this time on.
    Drained(Instant),
    Broken(Error),
}

/// Starts a worker in the background.
pub(crate) fn start(worker: &Worker) -> WorkerHandle {
    let (command_sender, commands) = mpsc::unbounded_channel();
    let session = Session::new(worker, commands);
    let handle = WorkerHandle { commands: command_sender, status: session.status.subscribe() };
    tokio::spawn(async move {
        let status = session.status.clone();
        let result = session.run().await;
        status.send_modify(|status| {
            status.state = WorkerState::Stopped;
            status.result = Some(result);
        });
    });
    handle
}

impl Drop for Session {
    fn drop(&mut self) {
        // Also runs when the runtime shuts down and drops the session. Outcomes can then no longer be sent.
        self.ledger.abort_all();
        self.ledger.give_up(self.client.address(self.broker));
    }
}

impl Session {
    fn new(worker: &Worker, commands: mpsc::UnboundedReceiver<Command>) -> Self {
        let types = &worker.config.types;
        let (mail_sender, mail) = mpsc::unbounded_channel();
        let status = Status { state: WorkerState::Connecting, report: WorkerReport::default(), result: None };
        Self {
            client: worker.client.clone(),
            config: worker.config.clone(),
            mail,
            mail_sender,
            ledger: Ledger::default(),
            slots: Slots::new(types.iter().map(|of| of.concurrency), worker.config.concurrency),
            requests: PendingRequests::default(),
            unary_is_busy: false,
            unary_bytes: UNARY_BYTES,
            commands,
            status: watch::Sender::new(status),
            windows: types.iter().map(|of| of.window).collect(),
            sent_windows: vec![0; types.len()],
            stop: Stop::No,
            taken: 0,
            resend_at: None,
            resend_backoff: Backoff::default(),
            id: String::new(),
            broker: 0,
            grace: None,
            has_stream: false,
            lost_at: None,
            waits_since: None,
        }
    }

    async fn run(mut self) -> Result<WorkerReport> {
        let link = LinkThread::start()
            .map_err(|error| Error::broken(format!("cannot start the thread of the worker's connection: {error}")))?;
        let mut broker = self.client.current();
        let mut backoff = Backoff::default();
        let mut streams = 0_u64;
        loop {
            let open = link.open(self.client.clone(), broker, self.subscribe());
            let Some(opened) = self.meanwhile(open).await else {
                return Ok(self.report());
            };
            let end = match opened {
                Ok((mut link, welcome)) => {
                    streams += 1;
                    self.count(|report| report.reconnects = streams - 1);
                    let mut flow = self.begin(&welcome, broker);
                    let end = self.serve(&mut link, &mut flow).await;
                    if flow.worked() {
                        backoff.reset();
                    }
                    self.leave(link, &end).await;
                    end
                }
                // A refusal ends the worker only if no stream was open before. A later refusal may come from a proxy that has
                // lost the broker.
                Err(error) if error.is_refusal() && streams == 0 => {
                    return self.give_up(error).await;
                }
                Err(error) => End::Broken(error),
            };
            let wait = match end {
                End::Finished => return Ok(self.report()),
                End::Drained(at) => at.saturating_duration_since(Instant::now()),
                End::Broken(error) if is_final(&error) => return self.give_up(error).await,
                End::Broken(error) => {
                    let wait = backoff.next();
                    let endpoint = self.client.endpoint_name(broker);
                    tracing::warn!(%endpoint, %error, ?wait, "the stream to the broker broke; reconnecting");
                    wait
                }
            };
            broker += 1;
            if self.meanwhile(sleep(wait)).await.is_none() {
                return Ok(self.report());
            }
        }
    }

    /// Returns the Subscribe, the first message of a stream.
    fn subscribe(&mut self) -> Subscribe {
        let windows = if self.is_stopping() { 0..0 } else { 0..self.windows.len() };
        Subscribe {
            windows: windows.map(|index| self.window(index)).collect(),
            session_id: self.id.clone(),
            held: self.ledger.held(),
            labels: self.config.labels.clone(),
            max_message_bytes: i32::try_from(self.config.max_message_bytes).unwrap_or(i32::MAX),
            liveness: self.config.liveness.map(time::to_proto),
            ..Subscribe::default()
        }
    }

    /// Number of jobs of a task type to hold at once. Exact windows have only the jobs that the worker holds and the free slots,
    /// so that the broker gives the other jobs to other workers.
    fn window_jobs(&self, index: usize) -> usize {
        let exact = self.ledger.live(index) + self.slots.free();
        if self.slots.is_exact() { self.windows[index].min(exact) } else { self.windows[index] }
    }

    /// Index of a task type whose window has changed since it was sent.
    pub(crate) fn changed_window(&self) -> Option<usize> {
        (0..self.windows.len()).find(|&index| self.sent_windows[index] != self.window_jobs(index))
    }

    /// Returns the window of a task type to send.
    pub(crate) fn window(&mut self, index: usize) -> Window {
        self.sent_windows[index] = self.window_jobs(index);
        let left = self.config.max_jobs.map_or(u64::MAX, |max| max - self.taken.min(max));
        let jobs = (self.sent_windows[index] as u64).min(left);
        Window {
            task_type: self.config.types[index].name.clone(),
            jobs: i32::try_from(jobs).unwrap_or(i32::MAX),
            bytes: self.config.window_bytes,
        }
    }

    /// Adjusts the session to a Welcome, and returns the initial state of the new stream.
    fn begin(&mut self, welcome: &Welcome, broker: usize) -> Flow {
        let name = if welcome.broker.is_empty() { self.client.endpoint_name(broker) } else { welcome.broker.clone() };
        // The log line has no session id, because whoever knows the id could take over the session.
        tracing::info!(broker = name, kept = welcome.kept.len(), lost = welcome.lost.len(), "connected");
        let lost = self.ledger.resume(&welcome.kept);
        self.count(|report| report.lost += lost as u64);
        self.requests.resume();
        self.resend_at = None;
        self.id.clone_from(&welcome.session_id);
        self.grace = time::from_proto(welcome.session_grace);
        self.lost_at = None;
        self.broker = broker;
        self.has_stream = true;
        self.publish(WorkerState::Connected { broker: name, session_id: welcome.session_id.clone() });
        Flow::new(welcome, self.client.settings().max_message_bytes)
    }

    /// Records that no stream is open. Closes a stream that is not broken gracefully, so that the last messages arrive.
    async fn leave(&mut self, link: Link, end: &End) {
        self.publish(WorkerState::Connecting);
        self.has_stream = false;
        self.lost_at = self.grace.map(|grace| Instant::now() + grace);
        let orderly = match end {
            End::Finished => self.stop != Stop::Now,
            End::Drained(_) => self.ledger.is_empty(),
            End::Broken(_) => false,
        };
        if orderly {
            link.close().await;
        }
    }

    /// Runs `work` while no stream is open. Meanwhile handles commands, mail and timers. Returns `None` if the worker must
    /// end.
    async fn meanwhile<F: Future>(&mut self, work: F) -> Option<F::Output> {
        let mut work = pin!(work);
        loop {
            self.take_mail();
            if self.stop == Stop::Now || (self.is_stopping() && self.ledger.is_empty()) {
                return None;
            }
            self.track_wait();
            let timer = self.next_timer();
            tokio::select! {
                biased;
                done = &mut work => return Some(done),
                Some(command) = self.commands.recv() => self.command(command),
                Some(mail) = self.mail.recv() => self.handle_mail(mail),
                () = sleep_until(timer) => self.on_timer(),
            }
        }
    }

    /// Ends a worker that the broker refuses. The outcomes of its running jobs cannot be settled.
    async fn give_up(&mut self, error: Error) -> Result<WorkerReport> {
        tracing::error!(%error, "the broker refuses this worker");
        self.ledger.cancel_all(CancelReason::LeaseLost);
        self.stop = Stop::Cancelling(Instant::now() + HANDLER_TIMEOUT);
        while self.ledger.running() > 0 && matches!(self.stop, Stop::Cancelling(_)) {
            let timer = self.next_timer();
            tokio::select! {
                Some(mail) = self.mail.recv() => self.handle_mail(mail),
                () = sleep_until(timer) => self.on_timer(),
            }
        }
        Err(error)
    }

    fn report(&self) -> WorkerReport {
        let unconfirmed = self.ledger.unconfirmed().count();
        if unconfirmed > 0 {
            let some = self.ledger.unconfirmed().take(MAX_NAMED);
            let jobs = some.map(|(id, outcome)| format!("{id} {outcome}")).collect::<Vec<_>>().join(", ");
            tracing::warn!(unconfirmed, jobs, "the worker ended before the broker confirmed all outcomes");
        }
        self.count(|report| report.unconfirmed = unconfirmed as u64);
        self.status.borrow().report.clone()
    }

    /// Publishes the state to the handles.
    fn publish(&self, state: WorkerState) {
        self.status.send_modify(|status| status.state = state);
    }

    /// Changes the counters of the worker, without waking handles that wait for a state.
    pub(crate) fn count(&self, change: impl FnOnce(&mut WorkerReport)) {
        self.status.send_if_modified(|status| {
            change(&mut status.report);
            false
        });
    }
}

/// Whether the error ends the worker even if a stream was open before: the broker no longer accepts the client's credential.
fn is_final(error: &Error) -> bool {
    let code = error.code();
    error.is_refusal() && matches!(code, Code::Unauthenticated | Code::PermissionDenied)
}

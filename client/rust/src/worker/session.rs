//! The life of a worker: connect, serve, reconnect, stop.

use std::{collections::VecDeque, future::Future, pin::pin, sync::Arc, time::Duration};

use howdah_proto::v1::{CancelReason, Extension, ProgressReport, Subscribe, Welcome, Window};
use tokio::time::{Instant, sleep, sleep_until};
use tonic::Code;

use crate::{Client, Error, Result, backoff::Backoff, time};

use super::{
    asks::Asks,
    builder::{Config, Worker},
    flow::Flow,
    handle::{self, Command, Seat, Status, WorkerHandle, WorkerReport, WorkerState},
    ledger::Ledger,
    link::{self, Link},
    mailbox::{Mail, Mailbox},
    slots::Slots,
};

/// How long handlers that were told to stop may take.
pub(crate) const HANDLER_PATIENCE: Duration = Duration::from_secs(1);
/// How long the broker may take to end a stream that we have closed.
pub(crate) const CLOSE_PATIENCE: Duration = Duration::from_secs(2);
/// The most jobs that are named in one log line.
const MAX_NAMED: usize = 20;

/// The state of a worker, which outlives its streams.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) config: Arc<Config>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) ledger: Ledger,
    pub(crate) slots: Slots,
    pub(crate) extensions: Asks<Extension>,
    pub(crate) reports: Asks<ProgressReport>,
    pub(crate) commands: tokio::sync::mpsc::UnboundedReceiver<Command>,
    pub(crate) status: Arc<Status>,
    /// Jobs in the window of each type.
    pub(crate) windows: Vec<usize>,
    /// Windows to announce on the stream.
    pub(crate) resized: VecDeque<Window>,
    pub(crate) stop: Stop,
    /// Jobs started.
    pub(crate) taken: u64,
    /// When outcomes that the broker could not store are sent again.
    pub(crate) again_at: Option<Instant>,
    pub(crate) again: Backoff,
    id: String,
    /// The broker of the last stream.
    pub(crate) broker: usize,
    pub(crate) grace: Option<Duration>,
    pub(crate) has_stream: bool,
    /// When the leases will be lost, while there is no stream. `None`: they are lost.
    pub(crate) lost_at: Option<Instant>,
    /// The start of waiting only for confirmations, in a stop.
    pub(crate) waits_since: Option<Instant>,
    /// An emptied box, whose memory is used again.
    pub(crate) spare: Mail,
}

/// The progress of a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    No,
    /// Handlers end themselves, before this time if it is set.
    Draining(Option<Instant>),
    /// Handlers are told to end, and have until this time.
    Cancelling(Instant),
    /// Handlers are dropped, and their jobs are released until this time.
    Closing(Instant),
    /// The worker ends now.
    Now,
}

/// Why serving a stream ended.
pub(crate) enum End {
    /// The worker has stopped and everything is settled, or the time is over.
    Finished,
    /// The broker asks us to reconnect, from this time on.
    Drained(Instant),
    Broken(Error),
}

/// Starts a worker in the background.
pub(crate) fn start(worker: &Worker) -> WorkerHandle {
    let (handle, seat) = handle::new();
    let Seat { commands, status, ended } = seat;
    let session = Session::new(worker, commands, status.clone());
    tokio::spawn(async move {
        let result = session.run().await;
        status.state.send_replace(WorkerState::Stopped);
        ended.send_replace(Some(result));
    });
    handle
}

impl Drop for Session {
    fn drop(&mut self) {
        // Also when the runtime shuts down: the handlers' results cannot be sent any more.
        self.ledger.abort_all();
        self.ledger.give_up(self.client.address(self.broker));
        self.mailbox.close();
    }
}

impl Session {
    fn new(worker: &Worker, commands: tokio::sync::mpsc::UnboundedReceiver<Command>, status: Arc<Status>) -> Self {
        let types = &worker.config.types;
        Self {
            client: worker.client.clone(),
            config: worker.config.clone(),
            mailbox: Arc::new(Mailbox::new()),
            ledger: Ledger::default(),
            slots: Slots::new(types.iter().map(|of| of.concurrency)),
            extensions: Asks::default(),
            reports: Asks::default(),
            commands,
            status,
            windows: types.iter().map(|of| of.window).collect(),
            resized: VecDeque::new(),
            stop: Stop::No,
            taken: 0,
            again_at: None,
            again: Backoff::default(),
            id: String::new(),
            broker: 0,
            grace: None,
            has_stream: false,
            lost_at: None,
            waits_since: None,
            spare: Mail::default(),
        }
    }

    async fn run(mut self) -> Result<WorkerReport> {
        let mut broker = self.client.current();
        let mut backoff = Backoff::default();
        let mut streams = 0_u64;
        loop {
            let open = link::open(self.client.clone(), broker, self.subscribe());
            let Some(opened) = self.meanwhile(open).await else {
                return Ok(self.report());
            };
            let end = match opened {
                Ok((mut link, welcome)) => {
                    streams += 1;
                    self.status.report.lock().reconnects = streams - 1;
                    let mut flow = self.begin(&welcome, broker);
                    let end = self.serve(&mut link, &mut flow).await;
                    if flow.has_proved() {
                        backoff.reset();
                    }
                    self.leave(link, &end).await;
                    end
                }
                // Later it may be a proxy that does not find the broker for a while.
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

    /// The first message of a stream.
    fn subscribe(&mut self) -> Subscribe {
        // The windows include these changes already.
        self.resized.clear();
        let windows = (0..self.windows.len()).filter(|_| self.stop == Stop::No);
        Subscribe {
            windows: windows.map(|index| self.window(index)).collect(),
            session_id: self.id.clone(),
            held: self.ledger.held(),
            labels: self.config.labels.clone(),
            max_message_bytes: i32::try_from(self.config.max_message_bytes).unwrap_or(i32::MAX),
            ..Subscribe::default()
        }
    }

    pub(crate) fn window(&self, index: usize) -> Window {
        let left = self.config.max_jobs.map_or(u64::MAX, |max| max - self.taken.min(max));
        let jobs = (self.windows[index] as u64).min(left);
        Window {
            task_type: self.config.types[index].name.clone(),
            jobs: i32::try_from(jobs).unwrap_or(i32::MAX),
            bytes: self.config.window_bytes,
        }
    }

    /// A stream was opened.
    fn begin(&mut self, welcome: &Welcome, broker: usize) -> Flow {
        let name = if welcome.broker.is_empty() { self.client.endpoint_name(broker) } else { welcome.broker.clone() };
        // Without the session's id: who knows it may take over the session.
        tracing::info!(broker = name, kept = welcome.kept.len(), lost = welcome.lost.len(), "connected");
        let lost = self.ledger.resume(&welcome.kept);
        self.status.report.lock().lost += lost as u64;
        self.extensions.resume();
        self.reports.resume();
        self.again_at = None;
        self.id.clone_from(&welcome.session_id);
        self.grace = time::from_proto(welcome.session_grace);
        self.lost_at = None;
        self.broker = broker;
        self.has_stream = true;
        self.status.state.send_replace(WorkerState::Connected { broker: name, session_id: welcome.session_id.clone() });
        Flow::new(welcome, self.client.settings().max_message_bytes)
    }

    /// A stream has ended, or is left.
    async fn leave(&mut self, link: Link, end: &End) {
        self.status.state.send_replace(WorkerState::Connecting);
        self.has_stream = false;
        self.lost_at = self.grace.map(|grace| Instant::now() + grace);
        let orderly = match end {
            End::Finished => self.stop != Stop::Now,
            End::Drained(_) => self.ledger.is_empty(),
            End::Broken(_) => false,
        };
        if orderly {
            link.close(CLOSE_PATIENCE).await;
        }
    }

    /// Runs `work` while there is no stream. `None`: it is time to end.
    async fn meanwhile<F: Future>(&mut self, work: F) -> Option<F::Output> {
        let mut work = pin!(work);
        loop {
            self.take_mail();
            if self.stop == Stop::Now || (self.is_stopping() && self.ledger.is_empty()) {
                return None;
            }
            self.note_wait();
            let timer = self.next_timer();
            tokio::select! {
                biased;
                done = &mut work => return Some(done),
                Some(command) = self.commands.recv() => self.command(command),
                () = self.mailbox.wake.notified() => {}
                () = sleep_until(timer) => self.on_timer(),
            }
        }
    }

    /// The broker refuses this worker: jobs that still run cannot be settled.
    async fn give_up(&mut self, error: Error) -> Result<WorkerReport> {
        tracing::error!(%error, "the broker refuses this worker");
        self.ledger.cancel_all(CancelReason::LeaseLost);
        self.stop = Stop::Cancelling(Instant::now() + HANDLER_PATIENCE);
        while self.ledger.running() > 0 && matches!(self.stop, Stop::Cancelling(_)) {
            let timer = self.next_timer();
            tokio::select! {
                () = self.mailbox.wake.notified() => self.take_mail(),
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
        let mut report = self.status.report.lock();
        report.unconfirmed = unconfirmed as u64;
        report.clone()
    }
}

/// Whether a new stream would end the same way, although the first one was open.
fn is_final(error: &Error) -> bool {
    let code = error.code();
    error.is_refusal() && matches!(code, Code::Unauthenticated | Code::PermissionDenied)
}

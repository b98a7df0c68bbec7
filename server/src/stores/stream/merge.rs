//! What goes out: one Welcome, then what the engines send as it comes, one answer to a ping, one Drain (and another one when the broker
//! stops). It is asked for when the transport can take a message.

use std::{collections::VecDeque, pin::Pin, sync::Arc, time::Duration};

use futures::{
    Stream, StreamExt as _,
    stream::{BoxStream, SelectAll},
};
use tokio::{
    sync::oneshot,
    time::{Instant, Sleep},
};

use super::{lane::Event, open::Shared};
use crate::{
    error::Error,
    job::Lease,
    session::{ServerMessage, ping_at},
};

/// How long the first message waits for engines that do not answer.
const WELCOME: Duration = Duration::from_secs(1);

/// The messages of a stream. When it is dropped, the stream ends.
pub(super) struct Merge {
    shared: Arc<Shared>,
    lanes: SelectAll<BoxStream<'static, (usize, Event)>>,
    failed: oneshot::Receiver<Error>,
    welcome: Option<Welcome>,
    /// Messages that came before the Welcome went out.
    early: VecDeque<ServerMessage>,
    /// Engines, a bit for each.
    all: u64,
    attached: u64,
    away: u64,
    ended: u64,
    /// Those that have said that no more jobs come, and of these those whose broker stops.
    drained: u64,
    leaving: u64,
    /// What the worker was told of it.
    is_drained: bool,
    is_leaving: bool,
    quiet: Pin<Box<Sleep>>,
}

/// What the Welcome will say.
struct Welcome {
    until: Instant,
    kept: Vec<Lease>,
    lost: Vec<Lease>,
    /// Of engines that have not answered yet.
    open: Vec<Vec<Lease>>,
}

impl Drop for Merge {
    fn drop(&mut self) {
        // Nobody deals to a session because another one has just gone.
        self.shared.turns.close();
        self.shared.gone.cancel();
    }
}

impl Merge {
    /// `held`: what the worker says it holds in each engine; `lost`: leases of no store.
    pub(super) fn new(
        shared: Arc<Shared>,
        lanes: impl Iterator<Item = BoxStream<'static, (usize, Event)>>,
        held: Vec<Vec<Lease>>,
        lost: Vec<Lease>,
        failed: oneshot::Receiver<Error>,
    ) -> Self {
        let all = held.iter().enumerate().fold(0, |all, (engine, _)| all | 1 << engine);
        let welcome = Welcome { until: Instant::now() + WELCOME, kept: Vec::new(), lost, open: held };
        let quiet = Box::pin(tokio::time::sleep_until(ping_at(shared.config.ping_interval)));
        let (early, lanes) = (VecDeque::new(), lanes.collect());
        let (attached, away, ended, drained, leaving) = (0, 0, 0, 0, 0);
        Self {
            shared,
            lanes,
            failed,
            welcome: Some(welcome),
            early,
            all,
            attached,
            away,
            ended,
            drained,
            leaving,
            is_drained: false,
            is_leaving: false,
            quiet,
        }
    }

    pub(super) fn messages(self) -> impl Stream<Item = Result<ServerMessage, Error>> + Send {
        futures::stream::unfold(Some(self), |open| async move {
            let mut merge = open?;
            match merge.next().await {
                Ok(Some(message)) => {
                    let quiet = ping_at(merge.shared.config.ping_interval);
                    merge.quiet.as_mut().reset(quiet);
                    Some((Ok(message), Some(merge)))
                }
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        })
    }

    async fn next(&mut self) -> Result<Option<ServerMessage>, Error> {
        let max_bytes = self.shared.max_message_bytes.min(self.shared.config.limits.message_bytes) as u64;
        loop {
            if let Some(welcome) = self.welcome() {
                return Ok(Some(welcome));
            }
            let is_welcome = self.welcome.is_none();
            if is_welcome && let Some(message) = self.early.pop_front().or_else(|| self.shared.own.next(max_bytes)) {
                return Ok(Some(message));
            }
            if self.is_over() && (!is_welcome || self.shared.own.is_empty()) {
                return Ok(None);
            }
            let until = self.welcome.as_ref().map(|welcome| welcome.until);
            tokio::select! {
                event = self.lanes.next(), if !self.lanes.is_empty() => {
                    if let Some((engine, event)) = event
                        && let Some(message) = self.heard(engine, event)?
                    {
                        if is_welcome {
                            return Ok(Some(message));
                        }
                        self.early.push_back(message);
                    }
                }
                () = self.shared.own.changed.notified() => {}
                () = past(until), if self.attached != 0 => {}
                () = &mut self.quiet, if is_welcome => return Ok(Some(ServerMessage::Ping)),
                // A closed channel means that the reader ended without an error.
                Ok(error) = &mut self.failed, if !self.failed.is_terminated() => return Err(error),
            }
        }
    }

    /// Whether no engine that serves it is left. Those that could not be reached do not come back then: the broker stops, or
    /// the worker has closed its side.
    fn is_over(&self) -> bool {
        self.lanes.is_empty() || (self.attached != 0 && self.attached & !self.ended == 0)
    }

    /// The first message, when it is time. From then on the worker gets jobs.
    fn welcome(&mut self) -> Option<ServerMessage> {
        let welcome = self.welcome.as_ref()?;
        let is_complete = self.attached | self.away == self.all || Instant::now() >= welcome.until;
        if self.attached == 0 || !is_complete {
            return None;
        }
        let Welcome { mut kept, lost, open, .. } = self.welcome.take()?;
        // Nobody has said that these are lost.
        kept.extend(open.into_iter().flatten());
        self.shared.turns.open();
        self.shared.welcomed.cancel();
        let session_id = self.shared.session_id.at_turn(self.shared.next_turn).to_string();
        Some(ServerMessage::Welcome { session_id, kept, lost })
    }

    /// What the worker is told when this has come.
    fn heard(&mut self, engine: usize, event: Event) -> Result<Option<ServerMessage>, Error> {
        let bit = 1 << engine;
        match event {
            Event::Attached { kept, lost } => {
                self.attached |= bit;
                match &mut self.welcome {
                    Some(welcome) => {
                        welcome.kept.extend(kept);
                        welcome.lost.extend(lost);
                        if let Some(open) = welcome.open.get_mut(engine) {
                            open.clear();
                        }
                    }
                    None => self.shared.own.lost(lost),
                }
                Ok(None)
            }
            Event::Away(error) => {
                self.away |= bit;
                if self.attached == 0 && self.away == self.all { Err(error) } else { Ok(None) }
            }
            Event::Failed(error) => Err(error),
            Event::Ended => {
                self.ended |= bit;
                Ok(None)
            }
            Event::Message(message @ ServerMessage::Drain { shutdown, .. }) => {
                Ok(self.drains(bit, shutdown).then_some(message))
            }
            // This stream has its own, and is quiet only if all engines are.
            Event::Message(ServerMessage::Ping) => Ok(None),
            Event::Message(message) => Ok(Some(message)),
        }
    }

    /// Whether the worker is told now: by the last engine, once that no more jobs come, and once that the broker stops.
    fn drains(&mut self, engine: u64, shutdown: bool) -> bool {
        self.drained |= engine;
        let was_told = if shutdown {
            self.leaving |= engine;
            self.is_leaving
        } else {
            self.is_drained
        };
        let by = if shutdown { self.leaving } else { self.drained };
        let is_last = !was_told && by & self.attached == self.attached;
        self.is_drained |= is_last;
        self.is_leaving |= is_last && shutdown;
        is_last
    }
}

/// Ready at that time; without one, never.
async fn past(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

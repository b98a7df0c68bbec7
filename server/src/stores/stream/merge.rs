//! Merges the outgoing messages of a worker's stream over several stores: one `Welcome`, then the messages of the
//! stores in order of arrival. The worker gets one `Drain` when no store sends more jobs, and one when the broker
//! stops. The transport polls `Merge` when it can send a message.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures::{
    Stream, StreamExt as _,
    stream::{BoxStream, SelectAll},
};
use howdah_core::{error::Error, job::Lease};
use howdah_engine::session::ServerMessage;
use tokio::{sync::oneshot, time::Instant};

use super::{open::Shared, store_stream::Event};

/// Maximum time that the `Welcome` waits for stores in which opening the session has neither succeeded nor failed.
const WELCOME: Duration = Duration::from_secs(1);

/// The outgoing messages of a worker's stream. Dropping the value ends the stream.
pub(super) struct Merge {
    shared: Arc<Shared>,
    streams: SelectAll<BoxStream<'static, (usize, Event)>>,
    failed: oneshot::Receiver<Error>,
    welcome: Option<Welcome>,
    /// Messages that arrived before the `Welcome` was sent.
    early: VecDeque<ServerMessage>,
    /// Bit mask of all stores of the stream. `attached` (stores with a session of the worker), `unreachable`, `ended`,
    /// `drained` and `leaving` are masks of some of these stores.
    all: u64,
    attached: u64,
    unreachable: u64,
    ended: u64,
    /// Masks of stores that have sent a `Drain`, and of stores whose `Drain` announced the stop of the broker.
    drained: u64,
    leaving: u64,
    /// Whether the worker got a `Drain`, and whether it got a `Drain` that announces the stop of the broker.
    is_drained: bool,
    is_leaving: bool,
}

/// Contents of the `Welcome`, collected from the stores.
struct Welcome {
    until: Instant,
    kept: Vec<Lease>,
    lost: Vec<Lease>,
    /// Leases that the worker says it holds, by store. Cleared for a store when the worker's session is open there.
    open: Vec<Vec<Lease>>,
}

impl Drop for Merge {
    fn drop(&mut self) {
        // Closes the window shares first. Otherwise, when one store's session ends, its share of the windows would go
        // to the other sessions.
        self.shared.rights.close();
        self.shared.gone.cancel();
    }
}

impl Merge {
    /// Creates the merged stream. `held` are the leases that the worker says it holds, by store. `lost` are leases
    /// whose ids belong to no store.
    pub(super) fn new(
        shared: Arc<Shared>,
        streams: impl Iterator<Item = BoxStream<'static, (usize, Event)>>,
        held: Vec<Vec<Lease>>,
        lost: Vec<Lease>,
        failed: oneshot::Receiver<Error>,
    ) -> Self {
        let all = held.iter().enumerate().fold(0, |all, (store_no, _)| all | 1 << store_no);
        let welcome = Welcome { until: Instant::now() + WELCOME, kept: Vec::new(), lost, open: held };
        let (early, streams) = (VecDeque::new(), streams.collect());
        let (attached, unreachable, ended, drained, leaving) = (0, 0, 0, 0, 0);
        Self {
            shared,
            streams,
            failed,
            welcome: Some(welcome),
            early,
            all,
            attached,
            unreachable,
            ended,
            drained,
            leaving,
            is_drained: false,
            is_leaving: false,
        }
    }

    pub(super) fn messages(self) -> impl Stream<Item = Result<ServerMessage, Error>> + Send {
        futures::stream::unfold(Some(self), |open| async move {
            let mut merge = open?;
            match merge.next().await {
                Ok(Some(message)) => Some((Ok(message), Some(merge))),
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
            if is_welcome && let Some(message) = self.early.pop_front().or_else(|| self.shared.local.next(max_bytes)) {
                return Ok(Some(message));
            }
            if self.is_over() && (!is_welcome || self.shared.local.is_empty()) {
                return Ok(None);
            }
            let until = self.welcome.as_ref().map(|welcome| welcome.until);
            tokio::select! {
                event = self.streams.next(), if !self.streams.is_empty() => {
                    if let Some((store_no, event)) = event
                        && let Some(message) = self.handle_event(store_no, event)?
                    {
                        if is_welcome {
                            return Ok(Some(message));
                        }
                        self.early.push_back(message);
                    }
                }
                () = self.shared.local.changed.notified() => {}
                () = past(until), if self.attached != 0 => {}
                // Only a received error ends the stream. Without an error, the reader of the stream drops the channel
                // when it ends.
                Ok(error) = &mut self.failed, if !self.failed.is_terminated() => return Err(error),
            }
        }
    }

    /// Whether the stream is over, because every opened session has ended: the broker is stopping, or the worker has
    /// closed its side. Unreachable stores are not waited for.
    fn is_over(&self) -> bool {
        self.streams.is_empty() || (self.attached != 0 && self.attached & !self.ended == 0)
    }

    /// Returns the `Welcome` once the sessions are open in all reachable stores, or in one store and `WELCOME` has
    /// passed. Then opens the window shares, so that stores may send jobs.
    fn welcome(&mut self) -> Option<ServerMessage> {
        let welcome = self.welcome.as_ref()?;
        let is_complete = self.attached | self.unreachable == self.all || Instant::now() >= welcome.until;
        if self.attached == 0 || !is_complete {
            return None;
        }
        let Welcome { mut kept, lost, open, .. } = self.welcome.take()?;
        // A store without an answer may still have its leases, so the worker keeps them.
        kept.extend(open.into_iter().flatten());
        self.shared.rights.open();
        self.shared.welcomed.cancel();
        let session_id = self.shared.session_id.at_generation(self.shared.next_generation).to_string();
        Some(ServerMessage::Welcome { session_id, kept, lost, liveness: self.shared.liveness })
    }

    /// Handles an event of a store. Returns the message for the worker, if any.
    fn handle_event(&mut self, store_no: usize, event: Event) -> Result<Option<ServerMessage>, Error> {
        let bit = 1 << store_no;
        match event {
            Event::Attached { kept, lost } => {
                self.attached |= bit;
                match &mut self.welcome {
                    Some(welcome) => {
                        welcome.kept.extend(kept);
                        welcome.lost.extend(lost);
                        if let Some(open) = welcome.open.get_mut(store_no) {
                            open.clear();
                        }
                    }
                    None => self.shared.local.lost(lost),
                }
                Ok(None)
            }
            Event::Unreachable(error) => {
                self.unreachable |= bit;
                if self.attached == 0 && self.unreachable == self.all { Err(error) } else { Ok(None) }
            }
            Event::Failed(error) => Err(error),
            Event::Ended => {
                self.ended |= bit;
                Ok(None)
            }
            Event::Message(message @ ServerMessage::Drain { shutdown, .. }) => {
                Ok(self.drains(bit, shutdown).then_some(message))
            }
            Event::Message(message) => Ok(Some(message)),
        }
    }

    /// Records a `Drain` of a store. Returns whether to pass the `Drain` on: the worker gets one when all of its stores
    /// have sent one, and one when all have announced the stop of the broker.
    fn drains(&mut self, store_no: u64, shutdown: bool) -> bool {
        self.drained |= store_no;
        let was_sent = if shutdown {
            self.leaving |= store_no;
            self.is_leaving
        } else {
            self.is_drained
        };
        let by = if shutdown { self.leaving } else { self.drained };
        let is_last = !was_sent && by & self.attached == self.attached;
        self.is_drained |= is_last;
        self.is_leaving |= is_last && shutdown;
        is_last
    }
}

/// Waits until `until`. Never completes if `until` is `None`.
async fn past(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

//! The messages in flight on one stream, and how long the stream is good.

use std::{collections::VecDeque, time::Duration};

use howdah_proto::v1::{Drain, DrainReason, DrainRequest, Welcome, WorkRequest, work_request::Message};
use tokio::time::Instant;

use crate::time;

use super::batches::Batches;

/// The assumed ping interval of a broker that does not name one.
const DEFAULT_PING_INTERVAL: Duration = Duration::from_secs(10);

/// If a Settle is not answered within this time, its stream is dead: a broker that cannot reach Postgres answers within
/// 15 s.
const LONGEST_ANSWER: Duration = Duration::from_mins(1);

/// How long the broker may take to answer a drain request when nothing is held any more.
const DRAIN_PATIENCE: Duration = Duration::from_secs(5);

/// The part of a message that is kept for what is not counted.
const MESSAGE_SLACK: usize = 1024;

/// The state of one stream.
#[derive(Debug)]
pub(crate) struct Flow {
    /// Sent before outcomes.
    pub(crate) control: VecDeque<WorkRequest>,
    pub(crate) batches: Batches,
    /// The most outcomes in a Settle.
    pub(crate) max_outcomes: usize,
    /// The most bytes of a Settle.
    pub(crate) max_bytes: usize,
    /// An outcome was stored: this stream works.
    pub(crate) useful: bool,
    drain_asked: Option<Instant>,
    drained: bool,
    /// When to open another stream, after a drain by the broker.
    reconnect_at: Option<Instant>,
    /// When the last message arrived.
    heard: Instant,
    opened: Instant,
    ping_interval: Duration,
}

impl Flow {
    pub(crate) fn new(welcome: &Welcome, max_message_bytes: usize) -> Self {
        let limits = welcome.limits.unwrap_or_default();
        let or = |limit: usize, default: usize| if limit == 0 { default } else { limit };
        let theirs = or(limits.max_message_bytes.max(0) as usize, usize::MAX);
        let ping_interval = time::from_proto(welcome.ping_interval)
            .filter(|interval| !interval.is_zero())
            .unwrap_or(DEFAULT_PING_INTERVAL);
        Self {
            control: VecDeque::new(),
            batches: Batches::default(),
            max_outcomes: or(limits.max_settle_outcomes.max(0) as usize, 10_000),
            max_bytes: theirs.min(max_message_bytes).saturating_sub(MESSAGE_SLACK).max(MESSAGE_SLACK),
            useful: false,
            drain_asked: None,
            drained: false,
            reconnect_at: None,
            heard: Instant::now(),
            opened: Instant::now(),
            ping_interval,
        }
    }

    /// A message arrived.
    pub(crate) fn heard(&mut self) {
        self.heard = Instant::now();
    }

    /// Asks for no more jobs, once.
    pub(crate) fn ask_drain(&mut self) {
        if self.drain_asked.is_none() && !self.drained {
            self.drain_asked = Some(Instant::now());
            self.control.push_back(WorkRequest { message: Some(Message::Drain(DrainRequest {})) });
        }
    }

    /// No more jobs will come.
    pub(crate) fn drain(&mut self, drain: &Drain) {
        self.drained = true;
        let after = time::from_proto(drain.reconnect_after);
        if after.is_some() || drain.reason() == DrainReason::Shutdown {
            self.reconnect_at = Some(Instant::now() + after.unwrap_or_default());
        }
    }

    /// Whether the broker has said that no more jobs will come, or has had enough time to.
    pub(crate) fn is_drained(&self) -> bool {
        let late = |at: Instant| at.elapsed() >= DRAIN_PATIENCE;
        self.drained || self.drain_asked.is_some_and(late)
    }

    pub(crate) fn reconnect_at(&self) -> Option<Instant> {
        self.reconnect_at
    }

    /// Why the stream is dead, if it is.
    pub(crate) fn death(&self) -> Option<&'static str> {
        if self.silent_until() <= Instant::now() {
            return Some("the broker is silent");
        }
        let unanswered = self.batches.oldest().is_some_and(|at| at.elapsed() >= LONGEST_ANSWER);
        unanswered.then_some("the broker does not answer")
    }

    /// Whether this stream has shown that the broker works.
    pub(crate) fn has_proved(&self) -> bool {
        self.useful || self.drained || self.opened.elapsed() > 3 * self.ping_interval
    }

    /// When to check the stream again, if nothing happens.
    pub(crate) fn next_timer(&self) -> Instant {
        let mut next = self.silent_until();
        if let Some(at) = self.batches.oldest() {
            next = next.min(at + LONGEST_ANSWER);
        }
        if let Some(at) = self.reconnect_at {
            next = next.min(at);
        }
        if let Some(late) = self.drain_asked.map(|at| at + DRAIN_PATIENCE)
            && late > Instant::now()
        {
            next = next.min(late);
        }
        next
    }

    fn silent_until(&self) -> Instant {
        self.heard + 3 * self.ping_interval
    }
}

//! The state of one stream: its messages in flight, and whether the broker is alive.

use std::time::Duration;

use howdah_proto::v1::{Drain, DrainReason, Welcome};
use tokio::time::Instant;

use crate::time;

use super::batches::Batches;

/// The ping interval that is assumed if the broker does not name one.
const DEFAULT_PING_INTERVAL: Duration = Duration::from_secs(10);

/// Timeout of a Settle message without an answer, after which its stream counts as dead. A broker that cannot reach Postgres
/// responds within 15 s.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// Time after its drain request for which a stopping worker waits for the broker's answer.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of a message that are reserved for its framing, because the sizes of outcomes do not include it.
const MESSAGE_SLACK: usize = 1024;

/// The state of one stream.
#[derive(Debug)]
pub(crate) struct Flow {
    /// Whether the drain request is to be sent.
    pub(crate) drain_is_due: bool,
    pub(crate) batches: Batches,
    /// Maximum number of outcomes in a Settle.
    pub(crate) max_outcomes: usize,
    /// Maximum bytes of a Settle: the smaller limit of broker and client on message sizes, less [`MESSAGE_SLACK`].
    pub(crate) max_bytes: usize,
    /// Whether the broker has stored an outcome on this stream, which shows that the broker works.
    pub(crate) has_stored: bool,
    drain_requested: Option<Instant>,
    drained: bool,
    /// Time at which the worker opens another stream; set when the broker drains this one.
    pub(crate) reconnect_at: Option<Instant>,
    /// Arrival time of the last message from the broker.
    received_at: Instant,
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
            drain_is_due: false,
            batches: Batches::default(),
            max_outcomes: or(limits.max_settle_outcomes.max(0) as usize, 10_000),
            max_bytes: theirs.min(max_message_bytes).saturating_sub(MESSAGE_SLACK).max(MESSAGE_SLACK),
            has_stored: false,
            drain_requested: None,
            drained: false,
            reconnect_at: None,
            received_at: Instant::now(),
            opened: Instant::now(),
            ping_interval,
        }
    }

    /// Records that the broker has sent a message, which restarts the liveness timeout.
    pub(crate) fn message_received(&mut self) {
        self.received_at = Instant::now();
    }

    /// Makes a drain request due, once: it asks the broker to send no more jobs.
    pub(crate) fn request_drain(&mut self) {
        if self.drain_requested.is_none() && !self.drained {
            self.drain_requested = Some(Instant::now());
            self.drain_is_due = true;
        }
    }

    /// Handles the broker's Drain: the broker sends no more jobs on this stream, and may ask the worker to reconnect.
    pub(crate) fn drain(&mut self, drain: &Drain) {
        self.drained = true;
        let after = time::from_proto(drain.reconnect_after);
        if after.is_some() || drain.reason() == DrainReason::Shutdown {
            self.reconnect_at = Some(Instant::now() + after.unwrap_or_default());
        }
    }

    /// Whether the broker has answered the drain request, or [`DRAIN_TIMEOUT`] has passed.
    pub(crate) fn is_drained(&self) -> bool {
        let timed_out = |at: Instant| at.elapsed() >= DRAIN_TIMEOUT;
        self.drained || self.drain_requested.is_some_and(timed_out)
    }

    /// The reason why the stream counts as dead; `None` if it is alive.
    pub(crate) fn death(&self) -> Option<&'static str> {
        if self.silent_until() <= Instant::now() {
            return Some("the broker is silent: no message for three ping intervals");
        }
        let unanswered = self.batches.oldest().is_some_and(|at| at.elapsed() >= ANSWER_TIMEOUT);
        unanswered.then_some("the broker has not answered a Settle message in time")
    }

    /// Whether the stream has shown that the broker works, so that the backoff of reconnects starts again.
    pub(crate) fn worked(&self) -> bool {
        self.has_stored || self.drained || self.opened.elapsed() > 3 * self.ping_interval
    }

    /// Time at which the stream must be checked next for silence, an unanswered Settle, a reconnect or a drain timeout.
    pub(crate) fn next_timer(&self) -> Instant {
        let settle = self.batches.oldest().map(|at| at + ANSWER_TIMEOUT);
        let drain = self.drain_requested.map(|at| at + DRAIN_TIMEOUT).filter(|at| *at > Instant::now());
        [settle, drain, self.reconnect_at].into_iter().flatten().fold(self.silent_until(), Instant::min)
    }

    fn silent_until(&self) -> Instant {
        self.received_at + 3 * self.ping_interval
    }
}

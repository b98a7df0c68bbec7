//! The state of one stream: its messages in flight, whether the broker is alive, and whether a handler blocks the runtime.

use std::time::Duration;

use howdah_proto::v1::{Drain, DrainReason, Welcome};
use tokio::time::Instant;

use crate::time;

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
    pub(crate) pulse: Pulse,
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
            pulse: Pulse { due: Instant::now() + CHECK_INTERVAL, logged: None },
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

    /// Time at which the stream must be checked next for silence, an unanswered Settle, a reconnect, a drain timeout or a blocked
    /// runtime.
    pub(crate) fn next_timer(&self) -> Instant {
        let settle = self.batches.oldest().map(|at| at + ANSWER_TIMEOUT);
        let drain = self.drain_requested.map(|at| at + DRAIN_TIMEOUT).filter(|at| *at > Instant::now());
        let timers = [settle, drain, self.reconnect_at, Some(self.pulse.due)];
        timers.into_iter().flatten().fold(self.silent_until(), Instant::min)
    }

    fn silent_until(&self) -> Instant {
        self.received_at + 3 * self.ping_interval
    }
}

/// The Settle messages of a stream that are not fully answered, oldest first.
///
/// While at least [`EAGER_MESSAGES`](Batches::EAGER_MESSAGES) messages are unanswered, outcomes accumulate until they number
/// a quarter of the slots. The next message then takes all of them. So messages grow under load, a single outcome is sent at
/// once, and few slots are idle because their outcomes wait. With [`MAX_MESSAGES`](Batches::MAX_MESSAGES) unanswered
/// messages, nothing is sent until a result arrives.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    open: Vec<Batch>,
    /// Number of the next batch. A batch is the outcomes of one Settle message.
    pub(crate) next: u64,
}

#[derive(Debug)]
struct Batch {
    number: u64,
    unanswered: usize,
    sent_at: Instant,
}

impl Batches {
    const EAGER_MESSAGES: usize = 4;
    const MAX_MESSAGES: usize = 16;
    /// Divisor: a message is sent when the outcomes number a quarter of the slots.
    const SLOT_FRACTION: usize = 4;

    /// Whether no Settle message may be sent until a result arrives.
    pub(crate) fn is_full(&self) -> bool {
        self.open.len() >= Self::MAX_MESSAGES
    }

    /// Whether to send a Settle now, given the number of outcomes to send and the number of the worker's slots.
    pub(crate) fn takes(&self, outcomes: usize, slots: usize) -> bool {
        let is_eager = self.open.len() < Self::EAGER_MESSAGES;
        outcomes > 0 && (is_eager || (!self.is_full() && outcomes * Self::SLOT_FRACTION >= slots))
    }

    /// Records that the next batch is sent, with this many outcomes.
    pub(crate) fn sent(&mut self, outcomes: usize) {
        self.open.push(Batch { number: self.next, unanswered: outcomes, sent_at: Instant::now() });
        self.next += 1;
    }

    /// Records the result of one outcome of a batch.
    pub(crate) fn answered(&mut self, number: u64) {
        if let Some(position) = self.open.iter().position(|batch| batch.number == number) {
            self.open[position].unanswered -= 1;
            if self.open[position].unanswered == 0 {
                self.open.remove(position);
            }
        }
    }

    /// Send time of the oldest batch that has unanswered outcomes.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.open.first().map(|batch| batch.sent_at)
    }
}

/// Longest time after which the worker's task runs again while the runtime is not blocked.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Shortest blocking that is logged.
const MIN_BLOCK: Duration = Duration::from_secs(2);
/// Minimum time between two log lines about blocking.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Detects that a handler blocked the tokio runtime, so that the worker's task could not run.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// Time at which the worker's task wakes up even if no message arrives.
    due: Instant,
    /// Time of the last log line about blocking.
    logged: Option<Instant>,
}

impl Pulse {
    /// Records that the worker's task runs. Logs a warning if the task runs [`MIN_BLOCK`] late or more.
    pub(crate) fn record(&mut self) {
        let now = Instant::now();
        let blocked = now.saturating_duration_since(self.due);
        if blocked >= MIN_BLOCK && self.logged.is_none_or(|at| now - at >= LOG_INTERVAL) {
            self.logged = Some(now);
            tracing::warn!(
                ?blocked,
                "a handler blocked the runtime; use handle_blocking or spawn_blocking for work that does not await"
            );
        }
        if now >= self.due {
            self.due = now + CHECK_INTERVAL;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_sixteen_messages_are_unanswered_nothing_is_sent() {
        let mut batches = Batches::default();
        for _ in 0..16 {
            assert!(batches.takes(4, 16) && !batches.is_full());
            batches.sent(2);
        }
        assert!(!batches.takes(16, 16) && batches.is_full());
        batches.answered(3);
        assert!(batches.is_full(), "the message is only half answered");
        batches.answered(3);
        assert!(batches.takes(4, 16));
    }

    #[test]
    fn answers_may_come_in_any_order_and_twice() {
        let mut batches = Batches::default();
        for _ in 0..3 {
            batches.sent(1);
        }
        for number in [2, 0, 1, 1, 7] {
            batches.answered(number);
        }
        assert_eq!(batches.oldest(), None);
    }
}

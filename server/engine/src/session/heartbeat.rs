//! Heartbeats of workers: a silent worker gets a `Ping`, and is lost after its liveness without a message.

use std::{sync::LazyLock, time::Duration};

use futures::{Stream, StreamExt as _};
use howdah_core::error::Error;
use tokio::time::{Instant, timeout};

use super::ClientMessage;

/// Maximum silence of a worker before it gets a `Ping`. Proxies close streams that are idle for a minute.
const MAX_SILENCE: Duration = Duration::from_secs(15);

/// Returns the silence after which a worker gets a `Ping`. It is a quarter of `liveness` at most, so a worker misses
/// several pings before it is lost.
pub fn ping_interval(liveness: Duration) -> Duration {
    (liveness / 4).min(MAX_SILENCE)
}

/// Reads the messages of a worker and detects its silence.
pub struct Heartbeat {
    /// `None` if several stores serve the stream: the router of that stream checks the worker's silence once for all
    /// stores.
    liveness: Option<Duration>,
}

impl Heartbeat {
    /// Creates a heartbeat for a worker that is lost after `liveness` of silence. With `None`, silence is not checked.
    pub fn new(liveness: Option<Duration>) -> Self {
        Self { liveness }
    }

    /// Returns the next message of the worker. Calls `ping` at intervals while the worker is silent, and finally
    /// returns [`ClientMessage::Lost`].
    ///
    /// Silence is the sum of the planned waits, not a difference of clock readings. So time in which the process of the
    /// broker is suspended counts as at most one wait. Messages that arrived meanwhile are read before the next wait
    /// ends.
    pub async fn next<S>(&self, incoming: &mut S, ping: impl Fn()) -> Option<Result<ClientMessage, Error>>
    where
        S: Stream<Item = Result<ClientMessage, Error>> + Send + Unpin,
    {
        let Some(liveness) = self.liveness else { return incoming.next().await };
        let mut left = liveness;
        loop {
            let wait = align(*EPOCH, ping_interval(liveness)).min(left);
            if let Ok(message) = timeout(wait, incoming.next()).await {
                return message;
            }
            left -= wait;
            if left.is_zero() {
                return Some(Ok(ClientMessage::Lost));
            }
            ping();
        }
    }
}

static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Shortens the ping interval by at most 1/20, so that streams of a connection are pinged at the same times. Many pings
/// then cost one write and one wake-up.
fn align(epoch: Instant, interval: Duration) -> Duration {
    let tick = (interval / 20).max(Duration::from_millis(1)).as_nanos();
    let at = epoch.elapsed() + interval;
    interval.saturating_sub(Duration::from_nanos((at.as_nanos() % tick) as u64))
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, collections::BTreeSet};

    use tokio::{
        sync::mpsc,
        time::{advance, sleep},
    };
    use tokio_stream::wrappers::UnboundedReceiverStream;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    type Sender = mpsc::UnboundedSender<Result<ClientMessage, Error>>;

    fn worker() -> (Sender, UnboundedReceiverStream<Result<ClientMessage, Error>>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (sender, UnboundedReceiverStream::new(receiver))
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_worker_is_asked_and_is_lost_after_its_liveness() {
        let (_worker, mut incoming) = worker();
        for (liveness, least_pings) in [(10, 3), (60, 3), (3_600, 239)] {
            let (begun, pings) = (Instant::now(), Cell::new(0));
            let liveness = Duration::from_secs(liveness);
            let heartbeat = Heartbeat::new(Some(liveness));
            let last = heartbeat.next(&mut incoming, || pings.set(pings.get() + 1)).await;
            assert!(matches!(last, Some(Ok(ClientMessage::Lost))));
            assert_eq!(begun.elapsed().as_secs(), liveness.as_secs());
            assert!(pings.get() >= least_pings, "{} pings in {liveness:?}", pings.get());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_only_answers_is_never_lost_and_one_that_stops_is_lost_that_much_later() {
        let (worker, mut incoming) = worker();
        let heartbeat = Heartbeat::new(Some(MINUTE));
        for _ in 0..20 {
            // The worker is blocked for most of its liveness, and answers only then.
            let worker = worker.clone();
            tokio::spawn(async move {
                sleep(Duration::from_secs(59)).await;
                let _ = worker.send(Ok(ClientMessage::Pong));
            });
            assert!(matches!(heartbeat.next(&mut incoming, || {}).await, Some(Ok(ClientMessage::Pong))));
        }
        let heard = Instant::now();
        assert!(matches!(heartbeat.next(&mut incoming, || {}).await, Some(Ok(ClientMessage::Lost))));
        assert_eq!(heard.elapsed().as_secs(), 60);
    }

    #[tokio::test(start_paused = true)]
    async fn a_broker_that_was_suspended_reads_the_messages_of_a_worker_before_it_is_lost() {
        let (worker, mut incoming) = worker();
        let heartbeat = Heartbeat::new(Some(MINUTE));
        let mut next = Box::pin(heartbeat.next(&mut incoming, || {}));
        assert!(futures::poll!(&mut next).is_pending());
        // All timers fire late and at the same time, and the messages of the worker are read after them.
        advance(2 * MINUTE).await;
        assert!(futures::poll!(&mut next).is_pending());
        worker.send(Ok(ClientMessage::Pong)).unwrap();
        assert!(matches!(next.await, Some(Ok(ClientMessage::Pong))));
    }

    #[tokio::test(start_paused = true)]
    async fn streams_that_fall_silent_at_nearly_the_same_time_are_pinged_together_and_none_of_them_late() {
        let (epoch, interval) = (Instant::now(), Duration::from_secs(15));
        let mut moments = BTreeSet::new();
        for _ in 0..1_000 {
            let wait = align(epoch, interval);
            assert!(wait <= interval && wait + interval / 20 > interval, "{wait:?}");
            moments.insert(epoch.elapsed() + wait);
            advance(Duration::from_millis(10)).await;
        }
        assert!(moments.len() <= 15, "{}", moments.len());
    }
}

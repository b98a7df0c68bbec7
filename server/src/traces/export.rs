//! Spans on their way to the collector. The queue is bounded: what it cannot take is dropped and counted, and nothing waits.

use std::time::Duration;

use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::{
    error::OTelSdkError,
    trace::{SpanData, SpanExporter as _},
};
use parking_lot::Mutex;
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::target::EXPORT_WITHIN;
use crate::metrics::TraceMetrics;

/// Spans that wait for the collector.
pub(crate) const QUEUE: usize = 8_192;
/// Spans in a message.
const BATCH: usize = 512;
/// How long a span waits for others.
const GATHER: Duration = Duration::from_secs(1);

/// The end at which spans come in.
pub(super) struct Queue {
    spans: mpsc::Sender<SpanData>,
    metrics: TraceMetrics,
}

impl Queue {
    /// Adds a span, or drops it.
    pub(super) fn push(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            self.dropped("queue");
        }
    }

    /// A span was dropped.
    pub(super) fn dropped(&self, reason: &'static str) {
        self.metrics.drop_spans(reason, 1);
    }
}

/// The task that sends them.
pub(super) struct Exporter {
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Exporter {
    /// Sends what is left, for this long at most.
    pub(super) async fn stop(&self, within: Duration) {
        self.stop.cancel();
        let task = self.task.lock().take();
        let Some(mut task) = task else { return };
        if timeout(within, &mut task).await.is_err() {
            task.abort();
            tracing::warn!("the collector of traces took too long; the last spans are lost");
        }
    }
}

/// Starts the task.
pub(super) fn start(exporter: SpanExporter, metrics: TraceMetrics) -> (Queue, Exporter) {
    let (send, spans) = mpsc::channel(QUEUE);
    // From the first scrape on there is something to compare with.
    ["collector", "queue", "attempts"].into_iter().for_each(|reason| metrics.drop_spans(reason, 0));
    let stop = CancellationToken::new();
    let sender = Sender { exporter, metrics: metrics.clone(), is_away: false };
    let task = tokio::spawn(export_always(sender, spans, stop.clone()));
    (Queue { spans: send, metrics }, Exporter { stop, task: Mutex::new(Some(task)) })
}

async fn export_always(mut sender: Sender, mut spans: mpsc::Receiver<SpanData>, stop: CancellationToken) {
    let mut batch = Vec::new();
    let mut due = Instant::now();
    loop {
        if batch.is_empty() {
            due = Instant::now() + GATHER;
        }
        let room = BATCH - batch.len();
        let is_due = tokio::select! {
            biased;
            () = stop.cancelled(), if !spans.is_closed() => {
                // What is in the queue still comes.
                spans.close();
                false
            }
            count = spans.recv_many(&mut batch, room) => count == 0,
            () = sleep_until(due), if !batch.is_empty() => true,
        };
        if is_due || batch.len() == BATCH {
            if batch.is_empty() {
                return;
            }
            sender.send(std::mem::take(&mut batch)).await;
        }
    }
}

/// Sends batches, and says in the log when the collector goes and comes.
struct Sender {
    exporter: SpanExporter,
    metrics: TraceMetrics,
    is_away: bool,
}

impl Sender {
    async fn send(&mut self, batch: Vec<SpanData>) {
        let count = batch.len();
        let sent = timeout(EXPORT_WITHIN, self.exporter.export(batch)).await;
        match sent.unwrap_or(Err(OTelSdkError::Timeout(EXPORT_WITHIN))) {
            Ok(()) => {
                self.metrics.exported.inc_by(count as u64);
                if self.is_away {
                    tracing::info!("the collector of traces takes spans again");
                }
                self.is_away = false;
            }
            Err(error) => {
                self.metrics.drop_spans("collector", count);
                if !self.is_away {
                    tracing::warn!(%error, "cannot send spans to the collector (otlp_endpoint); they are dropped until it takes them");
                }
                self.is_away = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::{config::Config, metrics::ByReason, traces::Collector};

    fn dropped(metrics: &TraceMetrics, reason: &'static str) -> u64 {
        metrics.dropped.get_or_create(&ByReason { reason }).get()
    }

    fn span() -> SpanData {
        crate::traces::tests::attempt(1).wait_span(std::time::UNIX_EPOCH)
    }

    /// It takes connections, and says nothing.
    fn silent() -> (TcpListener, Config) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut config = Config::new("");
        config.otlp.endpoint = Some(format!("http://{}", listener.local_addr().unwrap()));
        (listener, config)
    }

    #[tokio::test]
    async fn what_the_queue_cannot_take_is_dropped_and_counted_and_nobody_waits() {
        let (_listener, config) = silent();
        let metrics = TraceMetrics::default();
        let (queue, exporter) = start(Collector::of(&config).unwrap().unwrap().0, metrics.clone());
        // The task takes some of them, or none: it runs beside this.
        (0..QUEUE + 2 * BATCH + 10).for_each(|_| queue.push(span()));
        assert!(dropped(&metrics, "queue") >= 10, "{}", dropped(&metrics, "queue"));
        exporter.stop(Duration::ZERO).await;
        assert_eq!(metrics.exported.get(), 0);
    }

    #[tokio::test]
    async fn an_exporter_that_is_stopped_takes_no_more() {
        let (_listener, config) = silent();
        let metrics = TraceMetrics::default();
        let (queue, exporter) = start(Collector::of(&config).unwrap().unwrap().0, metrics.clone());
        exporter.stop(Duration::from_secs(60)).await;
        queue.push(span());
        assert_eq!(dropped(&metrics, "queue"), 1);
    }
}

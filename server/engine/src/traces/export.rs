//! Export of spans to the collector. The queue is bounded: spans beyond it are dropped and counted, and callers never wait.

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

/// Maximum number of spans that wait to be sent to the collector.
pub const QUEUE: usize = 8_192;
/// Maximum number of spans in one export request.
const BATCH: usize = 512;
/// Maximum time that a span waits for further spans to share an export request.
const GATHER: Duration = Duration::from_secs(1);

/// Sending end of the queue of spans.
pub(super) struct Queue {
    spans: mpsc::Sender<SpanData>,
    metrics: TraceMetrics,
}

impl Queue {
    /// Adds a span, or drops it if the queue is full.
    pub(super) fn push(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            self.dropped("queue");
        }
    }

    /// Counts a dropped span.
    pub(super) fn dropped(&self, reason: &'static str) {
        self.metrics.drop_spans(reason, 1);
    }
}

/// Handle of the task that sends spans to the collector.
pub(super) struct Exporter {
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Exporter {
    /// Sends the queued spans and stops the task, within this time.
    pub(super) async fn stop(&self, within: Duration) {
        self.stop.cancel();
        let task = self.task.lock().take();
        let Some(mut task) = task else { return };
        if timeout(within, &mut task).await.is_err() {
            task.abort();
            tracing::warn!("the collector of traces did not take the last spans in time; they are lost");
        }
    }
}

/// Starts the export task.
pub(super) fn start(exporter: SpanExporter, metrics: TraceMetrics) -> (Queue, Exporter) {
    let (send, spans) = mpsc::channel(QUEUE);
    // Initializes the counters of dropped spans, so that the first scrape shows zeros.
    ["collector", "queue", "attempts"].into_iter().for_each(|reason| metrics.drop_spans(reason, 0));
    let stop = CancellationToken::new();
    let sender = Sender { exporter, metrics: metrics.clone(), is_away: false };
    let task = tokio::spawn(run_export(sender, spans, stop.clone()));
    (Queue { spans: send, metrics }, Exporter { stop, task: Mutex::new(Some(task)) })
}

async fn run_export(mut sender: Sender, mut spans: mpsc::Receiver<SpanData>, stop: CancellationToken) {
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
                // Closes the queue. The loop still receives the spans that are in it.
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

/// Sends batches of spans. Logs when the collector becomes unavailable and when it is available again.
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
    use crate::{metrics::ByReason, traces::Collector};
    use howdah_core::config::Config;

    fn dropped(metrics: &TraceMetrics, reason: &'static str) -> u64 {
        metrics.dropped.get_or_create(&ByReason { reason }).get()
    }

    fn span() -> SpanData {
        crate::traces::tests::attempt(1).wait_span(std::time::UNIX_EPOCH)
    }

    /// A collector that accepts connections and does not answer.
    fn silent() -> (TcpListener, Config) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut config = Config::new("");
        config.otlp.endpoint = Some(format!("http://{}", listener.local_addr().unwrap()));
        (listener, config)
    }

    #[tokio::test]
    async fn spans_that_the_full_queue_cannot_take_are_dropped_and_counted() {
        let (_listener, config) = silent();
        let metrics = TraceMetrics::default();
        let (queue, exporter) = start(Collector::from_config(&config).unwrap().unwrap().0, metrics.clone());
        // The export task runs concurrently and may already take some of the spans from the queue.
        (0..QUEUE + 2 * BATCH + 10).for_each(|_| queue.push(span()));
        assert!(dropped(&metrics, "queue") >= 10, "{}", dropped(&metrics, "queue"));
        exporter.stop(Duration::ZERO).await;
        assert_eq!(metrics.exported.get(), 0);
    }

    #[tokio::test]
    async fn an_exporter_that_is_stopped_takes_no_more() {
        let (_listener, config) = silent();
        let metrics = TraceMetrics::default();
        let (queue, exporter) = start(Collector::from_config(&config).unwrap().unwrap().0, metrics.clone());
        exporter.stop(Duration::from_secs(60)).await;
        queue.push(span());
        assert_eq!(dropped(&metrics, "queue"), 1);
    }
}

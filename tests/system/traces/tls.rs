//! Tests a collector with TLS: brokers send spans only to a collector whose certificate a trusted authority has signed.

use std::path::PathBuf;

use super::{Trace, collector::Collector, names};
use crate::{support::*, tls_server::authority::Authority};

async fn broker(collector: &Collector, ca: PathBuf) -> TestBroker {
    TestBroker::start_with(|config| {
        config.otlp.endpoint = Some(collector.endpoint.clone());
        config.otlp.ca = Some(ca);
    })
    .await
}

/// Enqueues a sampled job and settles it.
async fn work(broker: &TestBroker) -> Trace {
    let trace = Trace::new();
    broker.enqueue("mail").trace(&trace.sampled()).await;
    let mut worker = broker.worker("mail").await;
    let job = worker.next().await;
    worker.ack(&job).await;
    trace
}

#[tokio::test]
async fn spans_go_over_tls_to_a_collector_of_a_known_authority_and_to_no_other() {
    let (known, other) = (Authority::new("collectors"), Authority::new("others"));
    let collector = Collector::start_with_tls(&known.broker("collector")).await;
    // The broker that does not trust the collector runs first. If it had sent spans, they would have arrived before the check
    // at the end.
    let distrusting = broker(&collector, other.ca()).await;
    work(&distrusting).await;
    eventually("dropped spans", async || {
        let metrics = distrusting.metrics().await;
        let mut lines = metrics.lines();
        let count = lines.find_map(|line| line.strip_prefix("howdah_spans_dropped_total{reason=\"collector\"} "));
        count.is_some_and(|count| count != "0")
    })
    .await;
    distrusting.stop().await;
    let trusting = broker(&collector, known.ca()).await;
    let trace = work(&trusting).await;
    assert_eq!(names(&collector.spans(&trace.id, 2).await), ["wait mail", "attempt mail"]);
    assert_eq!(collector.traces(), [trace.id]);
    trusting.stop().await;
}

//! Tests a collector that is unavailable or does not respond: jobs continue, and brokers drop spans and count them.

use std::net::Ipv4Addr;

use tokio::net::TcpListener;

use super::Trace;
use crate::support::*;

async fn broker(endpoint: String) -> TestBroker {
    TestBroker::start_with(|config| {
        config.otlp.endpoint = Some(endpoint);
        config.otlp.sample_ratio = 1.0;
    })
    .await
}

/// Enqueues and settles some jobs.
async fn work(broker: &TestBroker) {
    let mut worker = broker.worker("mail").window(10).await;
    for _ in 0..20 {
        broker.enqueue("mail").trace(&Trace::new().sampled()).await;
        let job = worker.next().await;
        worker.ack(&job).await;
    }
}

#[tokio::test]
async fn without_its_collector_a_broker_works_and_counts_the_spans_it_drops() {
    let broker = broker(format!("http://{}", unused_address())).await;
    work(&broker).await;
    eventually("dropped spans", async || {
        let metrics = broker.metrics().await;
        let mut lines = metrics.lines();
        let count = lines.find_map(|line| line.strip_prefix("howdah_spans_dropped_total{reason=\"collector\"} "));
        count.is_some_and(|count| count != "0")
    })
    .await;
    broker.stop().await;
}

#[tokio::test]
async fn a_collector_that_never_answers_delays_neither_jobs_nor_the_end_of_the_broker() {
    // The collector accepts connections and never responds.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bind");
    let broker = broker(format!("http://{}", listener.local_addr().expect("address"))).await;
    work(&broker).await;
    broker.stop().await;
}

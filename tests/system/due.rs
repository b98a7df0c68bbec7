//! Tests that jobs become due at their time, without waiting for the brokers' next sweep, because brokers set timers.

use std::collections::BTreeSet;

use crate::support::*;

/// Number of sweeps that a broker has done, from its metrics.
pub async fn sweeps(broker: &TestBroker) -> u64 {
    let metrics = broker.metrics().await;
    let count = metrics.lines().find_map(|line| line.strip_prefix("howdah_sweeps_total "));
    count.and_then(|count| count.parse().ok()).expect(&metrics)
}

/// Starts a broker with a poll interval of an hour and waits for its first sweeps. Also returns the number of sweeps.
async fn broker() -> (TestBroker, u64) {
    let broker = TestBroker::start_with(|config| config.poll_interval = HOUR).await;
    // A broker sweeps at its start, and again when it begins to listen for notifications.
    eventually("a broker that listens", async || broker.metrics().await.contains("\nhowdah_listening 1\n")).await;
    eventually("two sweeps of the broker", async || sweeps(&broker).await >= 2).await;
    let before = sweeps(&broker).await;
    (broker, before)
}

#[tokio::test]
async fn jobs_that_are_due_one_after_the_other_need_no_sweep() {
    let (broker, before) = broker().await;
    let mut worker = broker.worker("d").window(20).await;
    let delays = [450, 50, 400, 100, 350, 150, 300, 200, 250];
    let ids: BTreeSet<i64> =
        broker.enqueue_all(delays.map(|delay| new_job("d", "x").delay(millis(delay)))).await.into_iter().collect();
    let began: BTreeSet<i64> = worker.take(delays.len()).await.iter().map(|job| job.id).collect();
    assert_eq!(began, ids);
    assert_eq!(sweeps(&broker).await, before);
}

#[tokio::test]
async fn attempts_that_time_out_one_after_the_other_need_no_sweep() {
    let (broker, before) = broker().await;
    let mut worker = broker.worker("d").window(20).await;
    // The shortest timeout is long enough that all four jobs are delivered before it passes.
    let timeouts = [2_400, 1_200, 2_000, 1_600];
    let ids =
        broker.enqueue_all(timeouts.map(|timeout| new_job("d", "x").timeout(millis(timeout)).max_attempts(1))).await;
    worker.take(timeouts.len()).await;
    let mut ended = Vec::new();
    for _ in timeouts {
        ended.push(worker.cancelled().await.id);
    }
    // Sorts the ids, because on a slow machine two timeouts may pass together, and their order is then not defined.
    ended.sort_unstable();
    assert_eq!(ended, ids);
    assert_eq!(sweeps(&broker).await, before);
}

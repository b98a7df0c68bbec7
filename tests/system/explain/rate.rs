//! Tests the expected start of a ready job, which is estimated from the rate of the last minutes.

use std::time::Duration;

use howdah_proto::v1::{ExplainJobResponse, Rate, TaskTypeSettings};

use super::explain;
use crate::support::*;

/// Enqueues ten jobs and lets a worker hold the first. Returns the worker and the id of the last job.
async fn ten(broker: &TestBroker) -> (Worker, i64) {
    let mut worker = broker.worker("e").window(1).await;
    let ids = broker.enqueue_all(["e"; 10]).await;
    worker.next().await;
    (worker, ids[9])
}

fn expected(explained: &ExplainJobResponse) -> Duration {
    Duration::try_from(explained.expected_in.expect("a time")).expect("not negative")
}

#[tokio::test]
async fn the_rate_of_the_last_minutes_says_when_a_job_starts() {
    let broker = TestBroker::start().await;
    let (_worker, last) = ten(&broker).await;
    assert_eq!((explain(&broker, last).await.settled_per_minute, explain(&broker, last).await.expected_in), (0, None));
    // Inserts statistics of 300 attempts in the last four minutes. Older attempts and other types must not count.
    broker
        .sql(
            "INSERT INTO howdah.task_type (name) VALUES ('other');
             INSERT INTO howdah.statistics SELECT t.id, 1, date_trunc('minute', now()) - p.ago * interval '1 minute', 0, p.succeeded, p.failed,
                    0, 0, 0, 0, 0, '{}', '{}', '{}', '{}'
             FROM howdah.task_type t CROSS JOIN (VALUES (20, 1000000, 0), (4, 150, 50), (2, 100, 0)) p (ago, succeeded, failed)
             WHERE t.name = 'e' OR p.ago < 10;
             UPDATE howdah.statistics_sum SET summed = now()",
        )
        .await;
    let explained = explain(&broker, last).await;
    // 300 attempts in four to five minutes are 60 to 75 per minute. The rate may be lower if a minute ends before the
    // call.
    assert!((50..=75).contains(&explained.settled_per_minute), "{explained:?}");
    // Eight ready jobs are before this job, so it is the ninth.
    let rate = f64::from(explained.settled_per_minute);
    let (least, most) = (9.0 * 60.0 / (rate + 0.5), 9.0 * 60.0 / (rate - 0.5));
    let expected = expected(&explained).as_secs_f64();
    assert!((least - 0.01..=most + 0.01).contains(&expected), "{expected} s at {rate} a minute");
}

#[tokio::test]
async fn the_rate_limit_says_when_a_job_starts_while_workers_have_room() {
    let broker = TestBroker::start().await;
    let rate = Some(Rate { per_second: 0.01, burst: 1 });
    broker.set("e", TaskTypeSettings { rate, ..Default::default() }).await;
    let ids = broker.enqueue_all(["e"; 10]).await;
    let mut worker = broker.worker("e").window(100).await;
    worker.next().await;
    // The next of the nine ready jobs starts within 100 s, and each of the others 100 s later.
    let expected = expected(&explain(&broker, ids[9]).await).as_secs();
    assert!((801..=900).contains(&expected), "{expected}");
}

#[tokio::test]
async fn the_rate_counts_jobs_settled_by_calls_and_in_sql_over_at_least_a_minute() {
    let broker = TestBroker::start().await;
    broker.enqueue_all(["e"; 3]).await;
    let jobs = broker.pull("e").up_to(3).await;
    broker.settle(vec![ack(&jobs[0]), nack(&jobs[1], "no").no_retry()]).await;
    broker.sql(&format!("SELECT howdah.complete({}, {})", jobs[2].id, jobs[2].token)).await;
    let (_worker, last) = ten(&broker).await;
    let done =
        "SELECT NOT EXISTS (SELECT FROM howdah.statistics_change) AND howdah.sum_statistics(100000, '0 s') IS NOT NULL";
    broker.until("summed statistics", done).await;
    let settled = explain(&broker, last).await.settled_per_minute;
    // If a minute ends before the call, the rate covers slightly more than a minute.
    assert!((2..=3).contains(&settled), "{settled}");
}

//! Tests statistics by period: exact for every way of enqueueing and ending, aggregated in the background, and dropped by
//! retention.

use howdah_core::{
    config::Config,
    job::{TypeSettings, TypeView},
};
use howdah_engine::store::{Statement, Store};
use howdah_proto::v1::{GetStatsRequest, JobState, Stats, StatsPeriod};

use crate::support::*;

/// Aggregates all committed changes into the statistics.
async fn sum_up(database: &TestDatabase) {
    let all = "SELECT NOT EXISTS (SELECT FROM howdah.statistics_change)
               AND (SELECT summed FROM howdah.statistics_sum) IS NOT NULL AND howdah.sum_statistics(100000, '0 s') IS NOT NULL";
    database.until("statistics are summed up", all).await;
}

/// Deletes statistics of old periods, as brokers do once a minute.
async fn forget(database: &TestDatabase) {
    let store = Store::new(&Config::new(&database.url)).expect("store");
    store.forget_statistics().await.expect("an answer");
}

/// Query for differences between the daily statistics and the job tables, of which there must be none. It compares the counted
/// events of each type, and the run time of attempts in µs.
const DIFFERENCES: &str = "
WITH job AS (
    SELECT type_id, options, failures, NULL AS outcome, NULL::timestamptz AS leased_at, NULL::timestamptz AS finished FROM howdah.ready
    UNION ALL SELECT type_id, options, failures, NULL, NULL, NULL FROM howdah.leased
    UNION ALL SELECT type_id, options, failures, NULL, NULL, NULL FROM howdah.scheduled
    UNION ALL SELECT type_id, options, failures, NULL, NULL, NULL FROM howdah.waiting
    UNION ALL SELECT type_id, options, failures, 'dead', NULL, NULL FROM howdah.dead
    UNION ALL SELECT type_id, options, failures, outcome::text, leased_at, finished FROM howdah.history
),
stage AS (
    SELECT (s ->> 'type')::integer AS type_id, (s ->> 'started')::timestamptz AS started, (s ->> 'finished')::timestamptz AS finished
    FROM job CROSS JOIN LATERAL jsonb_array_elements(options -> 'completed_stages') s
),
fell_back AS (SELECT (options ->> 'fallback_from')::integer AS type_id FROM job WHERE options ? 'fallback_from'),
failure AS (
    SELECT coalesce((options ->> 'fallback_from')::integer, type_id) AS type_id, (f ->> 'started')::timestamptz AS started,
           (f ->> 'failed')::timestamptz AS finished
    FROM job CROSS JOIN LATERAL jsonb_array_elements(failures) f WHERE f ->> 'started' IS NOT NULL
),
event AS (
    SELECT type_id, 'enqueued' AS event, 0 AS run_us FROM job
    UNION ALL SELECT type_id, 'enqueued', 0 FROM stage
    UNION ALL SELECT type_id, 'enqueued', 0 FROM fell_back
    UNION ALL SELECT type_id, 'succeeded', extract(epoch FROM finished - leased_at) * 1000000 FROM job WHERE outcome = 'succeeded'
    UNION ALL SELECT type_id, 'succeeded', extract(epoch FROM finished - started) * 1000000 FROM stage
    UNION ALL SELECT type_id, 'failed', extract(epoch FROM finished - started) * 1000000 FROM failure
    UNION ALL SELECT type_id, outcome, 0 FROM job WHERE outcome IN ('dead', 'cancelled', 'expired')
),
expected AS (
    SELECT type_id, count(*) FILTER (WHERE event = 'enqueued') AS enqueued, count(*) FILTER (WHERE event = 'succeeded') AS succeeded,
           count(*) FILTER (WHERE event = 'failed') AS failed, count(*) FILTER (WHERE event = 'dead') AS dead,
           count(*) FILTER (WHERE event = 'cancelled') AS cancelled, count(*) FILTER (WHERE event = 'expired') AS expired,
           sum(run_us)::bigint AS run_us, count(*) FILTER (WHERE event IN ('succeeded', 'failed')) AS waits,
           count(*) FILTER (WHERE event IN ('succeeded', 'failed')) AS runs
    FROM event GROUP BY type_id
),
counted AS (
    SELECT type_id, minutes, sum(enqueued)::bigint AS enqueued, sum(succeeded)::bigint AS succeeded, sum(failed)::bigint AS failed,
           sum(dead)::bigint AS dead, sum(cancelled)::bigint AS cancelled, sum(expired)::bigint AS expired,
           sum(run_us)::bigint AS run_us, sum((SELECT sum(n) FROM unnest(wait_counts) n))::bigint AS waits,
           sum((SELECT sum(n) FROM unnest(run_counts) n))::bigint AS runs
    FROM howdah.statistics GROUP BY type_id, minutes
)
SELECT coalesce(string_agg(format('%s, of %s minutes: %s is counted as %s', t.name, m.minutes, e, c), E'\\n'), '') AS differences
FROM howdah.task_type t CROSS JOIN (VALUES (1), (60), (1440)) m (minutes)
LEFT JOIN expected e ON e.type_id = t.id LEFT JOIN counted c ON c.type_id = t.id AND c.minutes = m.minutes
WHERE (e.enqueued, e.succeeded, e.failed, e.dead, e.cancelled, e.expired, e.run_us, coalesce(e.waits, 0), coalesce(e.runs, 0)) IS DISTINCT FROM
      (c.enqueued, c.succeeded, c.failed, c.dead, c.cancelled, c.expired, c.run_us, coalesce(c.waits, 0), coalesce(c.runs, 0))";

async fn assert_exact(database: &TestDatabase) {
    sum_up(database).await;
    let row = database.connect().await.query_one(DIFFERENCES, &[]).await.expect("a comparison");
    assert_eq!(row.get::<_, String>("differences"), "");
}

async fn stats(broker: &TestBroker, task_type: &str, period: StatsPeriod) -> Vec<Stats> {
    let request = GetStatsRequest { task_type: task_type.into(), period: period.into(), ..Default::default() };
    broker.task_types().get_stats(request).await.expect("statistics").into_inner().stats
}

#[tokio::test]
async fn statistics_count_what_workers_do_on_streams() {
    let broker = TestBroker::start_with(|c| c.session_grace = millis(1)).await;
    // These jobs are stored in `ready`. Jobs enqueued below go directly into `leased`.
    broker.enqueue_all([new_job("s", "a"), new_job("s", "b").priority(7), new_job("s", "c").fair_key("f")]).await;
    broker.enqueue_all([new_job("s", "k").key("k"), new_job("s", "k").key("k"), new_job("s", "d").delay(HOUR)]).await;
    let mut worker = broker.worker("s").window(10).await;
    let first = worker.take(4).await;
    // One ack of the batch has a wrong token. The statistics must still count the other acks.
    let lost = howdah_proto::v1::LeasedJob { token: first[0].token ^ 1, ..first[0].clone() };
    worker.settle(vec![ack(&lost), ack(&first[1]), ack(&first[2])]).await;
    worker.settle(vec![ack(&first[0])]).await;
    for _ in 0..4 {
        worker.settled().await;
    }
    worker.nack(&first[3], "no").at_once().await;
    let again = worker.next().await;
    worker.nack(&again, "never").no_retry().await;
    broker.enqueue_all(["s", "s", "s", "s"]).await;
    let direct = worker.take(4).await;
    worker.ack(&direct[0]).await;
    worker.snooze(&direct[1], HOUR).await;
    worker.release(&direct[2]).await;
    let released = worker.next().await;
    worker.ack(&released).await;
    broker.cancel(&[direct[3].id]).await;
    worker.cancelled().await;
    let timed = broker.enqueue(new_job("s", "slow").timeout(millis(50)).max_attempts(1)).await;
    worker.next().await;
    broker.until_state(timed, JobState::Dead).await;
    worker.cancelled().await;
    // The worker vanishes with the last job.
    let last = broker.enqueue(new_job("s", "lost").max_attempts(1)).await;
    worker.next().await;
    worker.vanish();
    broker.until_state(last, JobState::Dead).await;
    assert_exact(&broker.database).await;

    let days = stats(&broker, "s", StatsPeriod::Day).await;
    let total = |count: fn(&Stats) -> i64| days.iter().map(count).sum::<i64>();
    assert_eq!((total(|s| s.enqueued_count), total(|s| s.succeeded_count)), (11, 5));
    assert_eq!((total(|s| s.failed_count), total(|s| s.dead_count), total(|s| s.cancelled_count)), (4, 3, 1));
    assert_eq!(total(|s| s.run.unwrap().count), 9);
}

#[tokio::test]
async fn statistics_count_what_is_pulled_and_what_applications_do_in_sql() {
    let broker = TestBroker::start_with(|c| c.retry.initial = HOUR).await;
    let client = broker.database.connect().await;
    client
        .batch_execute(
            "SELECT howdah.enqueue('q'), howdah.enqueue('q', 'b'::text), howdah.enqueue('q', 'c'::text, priority => 5);
             SELECT howdah.enqueue_many('q', ARRAY['d', 'e', 'f', 'g']);
             SELECT howdah.enqueue_batch('[{\"task_type\": \"q\"}, {\"task_type\": \"q\", \"delay\": \"1 h\"}]');
             SELECT howdah.enqueue('q', 'x'::text, key => 'k'), howdah.enqueue('q', 'y'::text, key => 'k')",
        )
        .await
        .unwrap();
    let rolled_back = "BEGIN; SELECT howdah.enqueue('q'), howdah.enqueue_many('q', ARRAY['z']); ROLLBACK";
    client.batch_execute(rolled_back).await.unwrap();
    let jobs = broker.pull("q").up_to(20).wait(MINUTE).lease(HOUR).await;
    assert_eq!(jobs.len(), 9);
    let lease = |index: usize| format!("{}, {}", jobs[index].id, jobs[index].token);
    client
        .batch_execute(&format!(
            "SELECT howdah.complete({}); SELECT howdah.fail({}, 'no'); SELECT howdah.fail({}, 'no', no_retry => true);
             SELECT howdah.snooze({}, '1 h'); SELECT howdah.end_lease({}, 'stuck'); SELECT howdah.cancel({})",
            lease(0),
            lease(1),
            lease(2),
            lease(3),
            jobs[4].id,
            jobs[5].id,
        ))
        .await
        .unwrap();
    client.batch_execute(&format!("BEGIN; SELECT howdah.complete({}); ROLLBACK", lease(6))).await.unwrap();
    broker.settle(vec![ack(&jobs[6]), nack(&jobs[7], "no").no_retry()]).await;
    // Assigns the last lease to a broker that does not exist, so that it is rescued.
    client
        .batch_execute(&format!(
            "UPDATE howdah.leased SET broker_id = 999999, deadline = NULL WHERE id = {}",
            jobs[8].id
        ))
        .await
        .unwrap();
    let number: i32 = client.query_one("SELECT max(id) FROM howdah.broker", &[]).await.unwrap().get(0);
    client.query(&*Statement::Rescue.text(), &[&10_i32, &number, &true]).await.unwrap();
    assert_eq!(broker.state(jobs[8].id).await, JobState::Ready);
    assert_exact(&broker.database).await;
    // The statistics also count an operator's retry, and attempts that end because their leases expire.
    broker.retry(&[jobs[2].id]).await;
    let again = broker.pull("q").up_to(2).wait(MINUTE).lease(secs(1)).await;
    for job in &again {
        broker.until_state(job.id, JobState::Scheduled).await;
    }
    sum_up(&broker.database).await;
    let days = stats(&broker, "q", StatsPeriod::Day).await;
    assert_eq!(days.iter().map(|day| day.failed_count).sum::<i64>(), 5 + again.len() as i64);
}

#[tokio::test]
async fn statistics_count_coordinated_jobs() {
    let broker = TestBroker::start_with(|c| c.retry.initial = HOUR).await;
    let late = broker.enqueue(new_job("c", "late").expire_after(millis(1))).await;
    broker.until_state(late, JobState::Expired).await;
    let doomed = broker.enqueue(new_job("c", "dies").max_attempts(1)).await;
    let after = broker.enqueue(new_job("c", "after").after(&[doomed])).await;
    broker.enqueue(new_job("c", "next").after(&[after])).await;
    let mut worker = broker.worker("c").window(10).and("c2").and("spare").await;
    let job = worker.next().await;
    worker.nack(&job, "no").await;
    broker.until_state(after, JobState::Cancelled).await;
    broker.enqueue(new_job("c", "stages").next_stages(&["c2", "c2"])).await;
    for _ in 0..3 {
        let job = worker.next().await;
        worker.ack(&job).await;
    }
    broker.enqueue(new_job("c", "spared").fallback("spare").max_attempts(1)).await;
    let job = worker.next().await;
    worker.nack(&job, "no").await;
    let spared = worker.next().await;
    worker.ack(&spared).await;
    // The failed attempt does not lead to a retry, because a newer job with the same key replaces the job.
    broker.enqueue(new_job("c", "old").key("k")).await;
    let old = worker.next().await;
    broker.enqueue(new_job("c", "new").key("k").replace()).await;
    worker.nack(&old, "no").await;
    let new = worker.next().await;
    worker.ack(&new).await;
    broker.enqueue(new_job("c", "limited").limit_key("l")).await;
    let limited = worker.next().await;
    worker.ack(&limited).await;
    assert_exact(&broker.database).await;
}

#[tokio::test]
async fn a_wait_counts_from_when_a_job_was_ready() {
    let broker = TestBroker::start().await;
    broker.enqueue_all([new_job("w", "a"), new_job("w", "b").priority(-3), new_job("w", "c").fair_key("f")]).await;
    let mut worker = broker.worker("w").window(10).await;
    let jobs = worker.take(3).await;
    worker.settle(jobs.iter().map(ack).collect()).await;
    broker.until("three acks", "SELECT count(*) = 3 FROM howdah.history").await;
    sum_up(&broker.database).await;
    let differs = "SELECT (SELECT sum(wait_us)::bigint FROM howdah.statistics WHERE minutes = 60)
                        - (SELECT sum(extract(epoch FROM leased_at - created) * 1000000)::bigint FROM howdah.history)";
    // The wait time counts from the job's rank, which for a fair key may be some milliseconds after the creation.
    let differs = broker.count(differs).await;
    assert!((-10_000..=0).contains(&differs), "{differs} µs");
}

#[tokio::test]
async fn totals_of_all_types_come_busiest_first_and_only_what_was_asked_for() {
    let broker = TestBroker::start().await;
    broker
        .sql(
            "INSERT INTO howdah.task_type (name) VALUES ('a'), ('b'), ('c');
             INSERT INTO howdah.statistics SELECT t.id, 60, date_trunc('hour', now()) - h * interval '1 hour', 10, CASE t.name WHEN 'b' THEN 2 ELSE 1 END,
                    0, 0, 0, 0, 0, 3000000, '{}', '{}', '{60, 80}', ARRAY[CASE t.name WHEN 'b' THEN 1 ELSE 0 END, 1]
             FROM howdah.task_type t CROSS JOIN generate_series(0, 5) h WHERE t.name <> 'c'",
        )
        .await;
    let ask = async |request| broker.task_types().get_stats(request).await.unwrap().into_inner().stats;
    let all = ask(GetStatsRequest::default()).await;
    let names: Vec<_> = all.iter().map(|total| (&total.task_type[..], total.succeeded_count)).collect();
    assert_eq!(names, [("b", 12), ("a", 6)]);
    let run = all[0].run.unwrap();
    assert_eq!((run.count, run.sum_seconds, run.mean), (12, 18.0, Some(wire(millis(1_500)))));
    assert_eq!(ask(GetStatsRequest { limit: 1, ..Default::default() }).await.len(), 1);
    // The response includes the period that contains the start time of the request.
    let client = broker.database.connect().await;
    let last = client.query_one("SELECT max(starts) FROM howdah.statistics", &[]).await.unwrap();
    let last: std::time::SystemTime = last.get(0);
    let two_hours =
        GetStatsRequest { task_type: "a".into(), since: Some((last - secs(1_800)).into()), ..Default::default() };
    assert_eq!(ask(two_hours.clone()).await.len(), 2);
    assert_eq!(ask(GetStatsRequest { until: Some((last - secs(1_799)).into()), ..two_hours }).await.len(), 1);
    assert!(ask(GetStatsRequest { period: StatsPeriod::Minute.into(), ..Default::default() }).await.is_empty());
    assert!(stats(&broker, "unknown", StatsPeriod::Hour).await.is_empty());
}

#[tokio::test]
async fn old_periods_are_deleted_and_a_deleted_type_takes_its_statistics_along() {
    let broker = TestBroker::start().await;
    broker
        .sql(
            "INSERT INTO howdah.task_type (name) VALUES ('old');
             INSERT INTO howdah.statistics SELECT t.id, p.minutes, date_trunc('day', now()) - p.days * interval '1 day', 1, 0, 0, 0, 0, 0, 0, 0, '{}', '{}', '{}', '{}'
             FROM howdah.task_type t CROSS JOIN (VALUES (1, 1), (60, 1), (60, 91), (1440, 1), (1440, 92)) p (minutes, days);
             INSERT INTO howdah.statistics_change (type_id, enqueued) SELECT id, 1 FROM howdah.task_type",
        )
        .await;
    sum_up(&broker.database).await;
    forget(&broker.database).await;
    let left = "SELECT count(*) FROM howdah.statistics WHERE starts < date_trunc('day', now())";
    assert_eq!(broker.count(left).await, 2);
    broker.sql("UPDATE howdah.task_type SET unused_since = now() - interval '1 year' WHERE name = 'old'").await;
    broker.sql("SELECT howdah.delete_unused_task_types('1 day', 10)").await;
    assert_eq!(broker.count("SELECT count(*) FROM howdah.statistics").await, 0);
    // An open transaction can commit counts of a type that another transaction has deleted. These counts are dropped.
    broker.sql("INSERT INTO howdah.statistics_change (type_id, enqueued) VALUES (999, 1)").await;
    sum_up(&broker.database).await;
    assert_eq!(broker.count("SELECT count(*) FROM howdah.statistics").await, 0);
}

#[tokio::test]
async fn one_broker_samples_the_backlog_once_a_minute_and_the_largest_of_an_hour_stays() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    // Waits for the broker's first backlog count. The next count is 15 s later, so the broker does not count between
    // the enqueues.
    database.until("the first count", "SELECT sampled > '-infinity' FROM howdah.backlog_sample").await;
    broker.enqueue_all(["t", "t", "t"]).await;
    broker.enqueue("t").delay(HOUR).await;
    let old = "INSERT INTO howdah.backlog SELECT t.id, p.minutes, date_trunc('day', now()) - p.days * interval '1 day', 1, 0, 0, 0, 0
               FROM howdah.task_type t CROSS JOIN (VALUES (1, 1), (60, 1), (60, 91), (1440, 1), (1440, 92)) p (minutes, days);
               UPDATE howdah.backlog_sample SET sampled = '-infinity'";
    database.sql(old).await;
    let other = TestBroker::on(&database).await;
    database.until("a sample", "SELECT count(*) > 0 FROM howdah.backlog WHERE ready = 3 AND scheduled = 1").await;
    let samples = "SELECT count(*) FROM howdah.backlog WHERE ready = 3 AND scheduled = 1";
    assert_eq!(database.count(samples).await, 3, "samples of the minute, the hour and the day");
    forget(&database).await;
    assert_eq!(
        database.count("SELECT count(*) FROM howdah.backlog WHERE ready = 1").await,
        2,
        "samples after the deletion of old ones"
    );
    for period in [StatsPeriod::Minute, StatsPeriod::Hour, StatsPeriod::Day] {
        let all = stats(&other, "t", period).await;
        let last = all.iter().filter_map(|s| s.backlog).next_back().expect("a backlog");
        assert_eq!((last.ready, last.scheduled, last.dead), (3, 1, 0), "{all:?}");
    }
    // The store ignores a second sample of the same minute. A later, smaller sample does not replace the maximum of the hour.
    let view = |ready| TypeView {
        name: "t".into(),
        settings: TypeSettings::default(),
        counts: [ready, 0, 0, 0, 0],
        oldest_ready: None,
        last_pull: None,
        braked: None,
        next_due: None,
    };
    let store = Store::new(&Config::new(&database.url)).expect("store");
    // Stops the brokers, because they would add samples.
    broker.stop().await;
    other.stop().await;
    database.sql("UPDATE howdah.backlog_sample SET sampled = now() + interval '1 hour'").await;
    assert!(!store.sample_backlog(&[view(9)]).await.expect("an answer"));
    database.sql("UPDATE howdah.backlog_sample SET sampled = '-infinity'").await;
    assert!(store.sample_backlog(&[view(2)]).await.expect("a sample"));
    assert_eq!(database.count("SELECT max(ready) FROM howdah.backlog WHERE minutes = 60").await, 3);
    database.sql("UPDATE howdah.task_type SET unused_since = now() - interval '1 year'; DELETE FROM howdah.ready; DELETE FROM howdah.scheduled").await;
    database.sql("SELECT howdah.delete_unused_task_types('1 day', 10)").await;
    assert_eq!(database.count("SELECT count(*) FROM howdah.backlog").await, 0);
}

#[tokio::test]
async fn reading_statistics_sums_up_changes_that_idle_brokers_have_not_summed_up() {
    let broker = TestBroker::start().await;
    // Waits until the broker has aggregated statistics. It aggregates again only after some seconds.
    broker
        .database
        .until("a sum of the statistics", "SELECT summed > now() - interval '1 s' FROM howdah.statistics_sum")
        .await;
    let long_ago = "SELECT howdah.enqueue('t'); UPDATE howdah.statistics_sum SET summed = now() - interval '1 minute'";
    broker.database.sql(long_ago).await;
    let day = stats(&broker, "t", StatsPeriod::Day).await;
    assert_eq!(day.iter().map(|stats| stats.enqueued_count).collect::<Vec<_>>(), [1]);
}

#[tokio::test]
async fn an_open_transaction_that_has_counted_jobs_blocks_no_other_session() {
    let broker = TestBroker::start().await;
    let (application, other) = (broker.database.connect().await, broker.database.connect().await);
    application.batch_execute("SELECT howdah.enqueue('n')").await.unwrap();
    application.batch_execute("BEGIN; SELECT howdah.enqueue('n')").await.unwrap();
    other.batch_execute("SET lock_timeout = '1 s'; SELECT howdah.enqueue('n')").await.unwrap();
    broker.enqueue("n").await;
    let mut worker = broker.worker("n").await;
    let job = worker.next().await;
    worker.ack(&job).await;
    // While one session aggregates statistics, other sessions return at once and do not aggregate.
    sum_up(&broker.database).await;
    let sum = "RESET lock_timeout; BEGIN; SELECT FROM howdah.statistics_sum FOR UPDATE";
    other.batch_execute(sum).await.unwrap();
    let result = application.query_one("SELECT howdah.sum_statistics(10, '0 s') AS summed", &[]).await.unwrap();
    assert_eq!(result.get::<_, Option<i64>>("summed"), None);
    other.batch_execute("ROLLBACK").await.unwrap();
    application.batch_execute("COMMIT").await.unwrap();
    assert_exact(&broker.database).await;
}

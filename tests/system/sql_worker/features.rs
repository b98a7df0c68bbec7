//! Tests the features of pg_task with SQL jobs. Other tests cover features of the broker.

use std::time::SystemTime;

use howdah_client::{NewSchedule, Plan};
use howdah_proto::v1::{Drift, HistoryMode, JobState, TaskTypeSettings};

use super::{SqlBroker, sql};
use crate::support::*;

#[tokio::test]
async fn sql_runs_now_later_and_at_a_time() {
    let broker = SqlBroker::start().await;
    let at = SystemTime::now() + MINUTE;
    let ids = broker.enqueue(vec![sql("SELECT 1"), sql("SELECT 2").delay(MINUTE), sql("SELECT 3").run_at(at)]).await;
    broker.work(&["--drain"]).await;
    let mut states = Vec::new();
    for id in &ids {
        states.push(broker.state(*id).await);
    }
    assert_eq!(states, [JobState::Succeeded, JobState::Scheduled, JobState::Scheduled]);
    broker.sql("UPDATE howdah.scheduled SET run_at = now()").await;
    broker.work(&["--max-jobs", "2"]).await;
    assert_eq!(broker.state(ids[2]).await, JobState::Succeeded);
}

#[tokio::test]
async fn sql_is_repeated_from_the_end_of_the_last_run() {
    let broker = SqlBroker::start().await;
    let schedule = NewSchedule::new("tidy", sql("SELECT 1"), Plan::every(MINUTE))
        .drift(Drift::End)
        .start(SystemTime::now() + MINUTE);
    broker.client.create_schedule(schedule).await.unwrap();
    let sql = broker.database.connect().await;
    // Moves the schedule's planned times back by a minute, twice, instead of waiting.
    for run in 1..=2 {
        broker.until("the next planned time", "SELECT coalesce(next_at > now(), false) FROM howdah.schedule").await;
        let pass =
            "UPDATE howdah.schedule SET anchor = anchor - interval '1 min', next_at = next_at - interval '1 min',
                    next_planned = next_planned - interval '1 min'";
        sql.batch_execute(pass).await.unwrap();
        broker.work(&["--max-jobs", "1"]).await;
        assert_eq!(broker.count("SELECT fired FROM howdah.schedule").await, run);
    }
    // The next run is planned a minute after the end of the last run, not after its planned time.
    let next = "SELECT coalesce(next_at >= (SELECT max(finished) FROM howdah.history) + interval '59 s', false)
                FROM howdah.schedule";
    broker.until("a planned time one minute after the end of the run", next).await;
}

#[tokio::test]
async fn jobs_of_a_limit_key_run_one_at_a_time_in_order_of_priority() {
    let broker = SqlBroker::start().await;
    let settings = TaskTypeSettings { key_max_running: 1, ..Default::default() };
    broker.client.update_task_type("sql", settings).await.unwrap();
    broker.sql("CREATE TABLE ran (n int, at bigserial)").await;
    // A job fails if another job holds the advisory lock, so concurrent jobs would fail.
    let job = |n: i32| {
        let text = format!(
            "SELECT 1 / pg_try_advisory_xact_lock(1)::int; INSERT INTO ran VALUES ({n}); SELECT count(*) FROM generate_series(1, 100000)"
        );
        sql(&text).limit_key("group").priority(-n)
    };
    broker.enqueue((0..10).map(job).collect()).await;
    broker.work(&["--jobs", "5", "--max-jobs", "10"]).await;
    assert_eq!(broker.count("SELECT count(*) FROM ran").await, 10);
    let order = "SELECT count(*) FROM (SELECT n, lag(n) OVER (ORDER BY at) AS before FROM ran) o WHERE n > before";
    assert!(broker.count(order).await <= 1, "the first job may have ended before the others were enqueued");
}

#[tokio::test]
async fn a_job_without_a_result_is_not_kept_in_history_mode_without_empty() {
    let broker = SqlBroker::start().await;
    let settings = TaskTypeSettings { history: HistoryMode::WithoutEmpty as i32, ..Default::default() };
    broker.client.update_task_type("sql", settings).await.unwrap();
    let ids = broker.enqueue(vec![sql("SELECT 1 WHERE false"), sql("SELECT 1")]).await;
    broker.work(&["--max-jobs", "2"]).await;
    broker.until("the second job in history", "SELECT count(*) = 1 FROM howdah.history").await;
    assert!(broker.client.get_job(ids[0]).await.unwrap().is_none());
}

#[tokio::test]
async fn sql_that_is_late_is_not_run_at_all() {
    let broker = SqlBroker::start().await;
    let id = broker.enqueue(vec![sql("CREATE TABLE late ()").expire_after(millis(1))]).await[0];
    broker.until("the expired job in history", "SELECT count(*) = 1 FROM howdah.history").await;
    broker.work(&["--drain"]).await;
    assert_ne!(broker.state(id).await, JobState::Succeeded);
    assert_eq!(broker.count("SELECT count(*) FROM pg_tables WHERE tablename = 'late'").await, 0);
}

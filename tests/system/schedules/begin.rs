//! Tests when a schedule with a period fires first: after its creation, a change and a pause.

use howdah_client::{NewJob, NewSchedule, Plan};
use howdah_proto::v1::Drift;

use super::{client, number, pass, until_schedule};
use crate::support::*;

fn every(period: std::time::Duration) -> NewSchedule {
    NewSchedule::new("s", NewJob::new("s"), Plan::every(period))
}

#[tokio::test]
async fn a_period_fires_at_once_unless_it_has_a_start_time() {
    // Without polls: the call itself makes the broker fire the schedule.
    let broker = TestBroker::start_with(|config| config.poll_interval = HOUR).await;
    let client = client(&broker).await;
    let later = NewSchedule::new("later", NewJob::new("later"), Plan::every(HOUR)).start(far());
    assert_eq!(client.create_schedule(later).await.expect("create").next_times[0], at(4_000_000_000));
    let made = client.create_schedule(every(HOUR)).await.expect("create");
    assert!(made.next_times[0].seconds <= made.create_time.expect("a time").seconds, "at once: {made:?}");
    let mut worker = broker.worker("s").await;
    let first = worker.next().await;
    let planned: prost_types::Timestamp = first.headers["howdah-planned-time"].parse().expect("a time");
    assert_eq!(planned, made.next_times[0]);
    until_schedule(&broker.database, "s", "fired = 1 AND next_planned = last_planned + interval '1 hour'").await;
    // A repeated definition changes nothing.
    let again = client.create_schedule(every(HOUR)).await.expect("create");
    let updated = client.update_schedule(every(HOUR), true).await.expect("update");
    assert_eq!((&again.next_times, &updated.next_times[0]), (&updated.next_times, &made.next_times[1]));
    assert_eq!(number(&broker.database, "later", "fired").await, 0);
}

#[tokio::test]
async fn a_changed_period_fires_again_only_when_it_has_passed_since_the_last_planned_time() {
    let broker = TestBroker::start().await;
    let client = client(&broker).await;
    client.create_schedule(every(HOUR)).await.expect("create");
    until_schedule(&broker.database, "s", "fired = 1").await;
    let slower = client.update_schedule(every(HOUR * 2), false).await.expect("update");
    until_schedule(&broker.database, "s", "next_planned = last_planned + interval '2 hours'").await;
    assert_eq!(slower.fired, 1);
    // The last planned time is half an hour ago, so a period of ten minutes is due.
    pass(&broker.database, "s", "30 minutes").await;
    broker.sql("UPDATE howdah.schedule SET last_planned = last_planned - interval '30 minutes'").await;
    client.update_schedule(every(MINUTE * 10), false).await.expect("update");
    until_schedule(&broker.database, "s", "fired = 2 AND skipped = 0").await;
    until_schedule(&broker.database, "s", "next_planned = last_planned + interval '10 minutes'").await;
}

#[tokio::test]
async fn a_changed_period_from_the_end_counts_from_the_end_of_the_last_job() {
    let broker = TestBroker::start().await;
    let client = client(&broker).await;
    let mut worker = broker.worker("s").await;
    client.create_schedule(every(HOUR).drift(Drift::End)).await.expect("create");
    let job = worker.next().await;
    until_schedule(&broker.database, "s", "watching AND next_planned IS NULL").await;
    let waits = client.update_schedule(every(HOUR * 2).drift(Drift::End), false).await.expect("update");
    assert!(waits.next_times.is_empty(), "{waits:?}");
    worker.ack(&job).await;
    let ended = format!("(SELECT finished FROM howdah.history WHERE id = {})", job.id);
    until_schedule(&broker.database, "s", &format!("next_planned = {ended} + interval '2 hours'")).await;
    client.update_schedule(every(HOUR * 3).drift(Drift::End), false).await.expect("update");
    until_schedule(&broker.database, "s", &format!("next_planned = {ended} + interval '3 hours'")).await;
    assert_eq!(number(&broker.database, "s", "fired").await, 1);
}

#[tokio::test]
async fn a_schedule_that_is_created_paused_fires_when_it_is_resumed() {
    let broker = TestBroker::start().await;
    let client = client(&broker).await;
    client.create_schedule(every(HOUR).paused(true)).await.expect("create");
    pass(&broker.database, "s", "10 minutes").await;
    client.resume_schedule("s").await.expect("resume");
    until_schedule(&broker.database, "s", "fired = 1 AND skipped = 0 AND last_planned > now() - interval '5 minutes'")
        .await;
    client.pause_schedule("s").await.expect("pause");
    let resumed = client.resume_schedule("s").await.expect("resume");
    until_schedule(&broker.database, "s", "next_planned = last_planned + interval '1 hour'").await;
    assert_eq!(resumed.fired, 1);
}

//! Tests overlap and catch-up policies of schedules.

use howdah_client::NewJob;
use howdah_proto::v1::{
    Drift, MissedPolicy, OverlapPolicy, RunScheduleRequest, SettleStatus, TaskTypeSettings, UpdateTaskTypeRequest,
};
use tonic::Code;

use super::{client, hourly, hourly_job, number, pass, until_schedule};
use crate::support::*;

#[tokio::test]
async fn with_overlap_skip_a_planned_time_is_left_out_while_a_job_is_not_finished() {
    let broker = TestBroker::start().await;
    let client = client(&broker).await;
    client.create_schedule(hourly("s").overlap(OverlapPolicy::Skip)).await.expect("create");
    let mut worker = broker.worker("s").await;
    pass(&broker.database, "s", "1 hour").await;
    let first = worker.next().await;
    pass(&broker.database, "s", "1 hour").await;
    until_schedule(&broker.database, "s", "skipped = 1").await;
    // The schedule counts a failed job that waits for its next attempt as running.
    worker.nack(&first, "later").retry_after(HOUR).await;
    pass(&broker.database, "s", "1 hour").await;
    until_schedule(&broker.database, "s", "skipped = 2").await;
    broker.sql("UPDATE howdah.scheduled SET run_at = now()").await;
    let again = worker.next().await;
    assert_eq!((again.id, worker.ack(&again).status().await), (first.id, SettleStatus::Ok));
    pass(&broker.database, "s", "1 hour").await;
    let second = worker.next().await;
    assert!(second.id > first.id);
    assert_eq!((number(&broker.database, "s", "fired").await, number(&broker.database, "s", "skipped").await), (2, 2));
}

#[tokio::test]
async fn with_one_waiting_the_next_begins_when_the_job_has_finished_and_the_rest_is_left_out() {
    let (broker, _other) = TestBroker::pair().await;
    let client = client(&broker).await;
    client.create_schedule(hourly("w").overlap(OverlapPolicy::OneWaiting)).await.expect("create");
    let mut worker = broker.worker("w").await;
    pass(&broker.database, "w", "1 hour").await;
    let first = worker.next().await;
    pass(&broker.database, "w", "1 hour").await;
    until_schedule(&broker.database, "w", "held IS NOT NULL").await;
    let waiting = client.get_schedule("w").await.expect("get").expect("there").waiting_time.expect("it waits");
    pass(&broker.database, "w", "1 hour").await;
    until_schedule(&broker.database, "w", "skipped = 1").await;
    assert_eq!(number(&broker.database, "w", "fired").await, 1, "nothing overlaps");
    worker.ack(&first).await;
    let second = worker.next().await;
    let planned: prost_types::Timestamp = second.headers["howdah-planned-time"].parse().unwrap();
    assert_eq!(planned.seconds, waiting.seconds);
    assert_eq!(number(&broker.database, "w", "fired").await, 2);
    until_schedule(&broker.database, "w", "held IS NULL AND NOT watching").await;
}

#[tokio::test]
async fn with_drift_from_the_end_the_period_begins_when_the_job_has_ended() {
    let broker = TestBroker::start().await;
    let client = client(&broker).await;
    let made = client.create_schedule(hourly("e").drift(Drift::End)).await.expect("create");
    assert_eq!(made.next_times.len(), 1);
    let mut worker = broker.worker("e").await;
    pass(&broker.database, "e", "1 hour").await;
    let job = worker.next().await;
    until_schedule(&broker.database, "e", "watching AND next_planned IS NULL").await;
    assert!(client.get_schedule("e").await.unwrap().unwrap().next_times.is_empty());
    worker.ack(&job).await;
    let from = |table: &str, time: &str, id: i64| {
        format!(
            "NOT watching AND next_planned = (SELECT {time} + interval '1 hour' FROM howdah.{table} WHERE id = {id})"
        )
    };
    until_schedule(&broker.database, "e", &from("history", "finished", job.id)).await;
    // The schedule counts a dead job as ended, so the next planned time is an hour after the death.
    pass(&broker.database, "e", "1 hour").await;
    let job = worker.next().await;
    worker.nack(&job, "for good").no_retry().await;
    until_schedule(&broker.database, "e", &from("dead", "died", job.id)).await;
    // The schedule counts a job without a row in history as ended when the broker notices that the job is gone.
    let settings = Some(TaskTypeSettings { history: 3, ..Default::default() });
    let request = UpdateTaskTypeRequest { task_type: "e".into(), settings, update_mask: None };
    broker.task_types().update_task_type(request).await.expect("settings");
    pass(&broker.database, "e", "1 hour").await;
    let job = worker.next().await;
    worker.ack(&job).await;
    until_schedule(&broker.database, "e", "NOT watching AND next_planned > now() + interval '59 minutes'").await;
    assert_eq!(number(&broker.database, "e", "fired").await, 3);
}

#[tokio::test]
async fn missed_times_fire_never_once_or_up_to_a_limit_as_the_policy_says() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let names = ["skip", "one", "all"];
    for (name, policy) in names.iter().zip([MissedPolicy::Skip, MissedPolicy::One, MissedPolicy::All]) {
        let schedule = hourly(name).missed(policy);
        let schedule = if policy == MissedPolicy::All { schedule.missed_all(3) } else { schedule };
        client(&broker).await.create_schedule(schedule).await.expect("create");
    }
    // Ten planned times pass while no broker runs, the last one half an hour ago.
    broker.stop().await;
    for name in names {
        pass(&database, name, "10 hours 30 minutes").await;
    }
    let _broker = TestBroker::on(&database).await;
    for (name, fired) in names.iter().zip([0, 1, 3]) {
        until_schedule(&database, name, &format!("fired = {fired} AND skipped = {}", 10 - fired)).await;
        until_schedule(&database, name, "next_planned BETWEEN now() AND now() + interval '31 minutes'").await;
        let newest = format!(
            "SELECT count(*) FROM howdah.job WHERE task_type = '{name}'
             AND (headers ->> 'howdah-planned-time')::timestamptz > now() - interval '{fired} hours'"
        );
        assert_eq!(database.count(&newest).await, fired, "{name}");
    }
}

#[tokio::test]
async fn a_paused_schedule_fires_nothing_until_it_is_resumed_and_makes_up_for_nothing() {
    let broker = TestBroker::start().await;
    let client = client(&broker).await;
    client.create_schedule(hourly("p")).await.expect("create");
    client.create_schedule(hourly("other")).await.expect("create");
    let paused = client.pause_schedule("p").await.expect("pause");
    assert!(paused.paused && paused.next_times.is_empty());
    pass(&broker.database, "p", "5 hours 30 minutes").await;
    pass(&broker.database, "other", "1 hour").await;
    until_schedule(&broker.database, "other", "fired = 1").await;
    assert_eq!(number(&broker.database, "p", "fired").await, 0);
    let resumed = client.resume_schedule("p").await.expect("resume");
    assert_eq!((resumed.paused, resumed.next_times.len()), (false, 10));
    until_schedule(&broker.database, "p", "next_planned BETWEEN now() AND now() + interval '31 minutes'").await;
    pass(&broker.database, "p", "31 minutes").await;
    until_schedule(&broker.database, "p", "fired = 1 AND skipped = 0").await;
}

#[tokio::test]
async fn run_now_enqueues_besides_the_plan_and_a_repeat_finds_the_same_job() {
    let broker = TestBroker::start().await;
    client(&broker).await.create_schedule(hourly("r").overlap(OverlapPolicy::Skip).paused(true)).await.expect("create");
    client(&broker).await.create_schedule(hourly("r2")).await.expect("create");
    let before = number(&broker.database, "r", "extract(epoch FROM next_planned) * 1000000").await;
    let mut schedules = broker.schedules();
    let mut run = async |name: &str, key: &str| {
        let request = RunScheduleRequest { name: name.into(), request_key: key.into() };
        schedules.run_schedule(request).await.map(|answer| answer.into_inner().job.expect("a job"))
    };
    let first = run("r", "k").await.expect("run");
    let again = run("r", "k").await.expect("run");
    assert_eq!((first.is_new, again.is_new, again.id), (true, false, first.id));
    let second = run("r", "").await.expect("run");
    assert!(second.is_new && second.id != first.id);
    let other = run("r2", "k").await.expect_err("the key was used for another schedule");
    assert_eq!(other.code(), Code::AlreadyExists);
    assert_eq!(run("nobody", "").await.expect_err("the schedule does not exist").code(), Code::NotFound);
    assert_eq!(number(&broker.database, "r", "fired").await, 2);
    assert_eq!(number(&broker.database, "r", "extract(epoch FROM next_planned) * 1000000").await, before);
    let mut worker = broker.worker("r").await;
    assert_eq!([worker.next().await.id, worker.next().await.id], [first.id, second.id]);
    // The schedule counts the job of a manual run as running, so it skips the next planned time.
    client(&broker).await.resume_schedule("r").await.expect("resume");
    pass(&broker.database, "r", "1 hour").await;
    until_schedule(&broker.database, "r", "skipped = 1 AND fired = 2").await;
}

#[tokio::test]
async fn while_another_job_holds_the_templates_key_a_planned_time_is_left_out() {
    let broker = TestBroker::start().await;
    let client = client(&broker).await;
    let holder = client.enqueue(NewJob::new("k").key("one")).await.expect("enqueue").id;
    let schedule = hourly_job("k", NewJob::new("k").key("one"));
    client.create_schedule(schedule).await.expect("create");
    pass(&broker.database, "k", "1 hour").await;
    until_schedule(&broker.database, "k", "skipped = 1 AND fired = 0").await;
    let run = client.run_schedule("k").await.expect("run");
    assert_eq!(run.id, holder);
    client.cancel_jobs([holder]).await.expect("cancel");
    pass(&broker.database, "k", "1 hour").await;
    until_schedule(&broker.database, "k", "fired = 1").await;
}

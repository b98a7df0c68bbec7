//! What is written once, what is kept of a finished job, and for how long.

use howdah_proto::v1::{
    EnqueueJobsRequest, GetJobRequest, HistoryMode, NewJob, SettleStatus, TaskTypeSettings, UpdateTaskTypeRequest,
    new_job as start,
};

use crate::support::{
    TestBroker, TestDatabase, Worker, ack, database, jobs_client, nack, new_job, soon, task_types_client, until,
};

const LARGE: usize = 100_000;

fn large(task_type: &str, byte: u8) -> NewJob {
    new_job(task_type, vec![byte; LARGE])
}

async fn enqueue(broker: &TestBroker, jobs: Vec<NewJob>) -> Vec<i64> {
    let request = EnqueueJobsRequest { jobs, ..Default::default() };
    let answer = soon("an answer", jobs_client(&broker.grpc).await.enqueue_jobs(request)).await;
    answer.expect("enqueue").into_inner().jobs.iter().map(|j| j.id).collect()
}

async fn payload(broker: &TestBroker, id: i64) -> Vec<u8> {
    let answer = soon("an answer", jobs_client(&broker.grpc).await.get_job(GetJobRequest { id })).await;
    answer.expect("get").into_inner().job.expect("a job").payload.to_vec()
}

async fn stored_apart(database: &TestDatabase) -> i64 {
    database.count("SELECT count(*) FROM howdah.payload").await
}

#[tokio::test]
async fn a_large_payload_is_written_once_and_is_whole_wherever_its_job_goes() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let keyed = NewJob { key: "k".into(), ..large("l", 3) };
    let delayed =
        NewJob { start: Some(start::Start::Delay(prost_types::Duration { seconds: 3600, nanos: 0 })), ..large("l", 4) };
    let before = enqueue(&broker, vec![large("l", 1), new_job("l", "small")]).await;
    let full = enqueue(&broker, vec![new_job("l", "between"), keyed.clone(), delayed]).await;
    assert_eq!(stored_apart(&database).await, 3);
    assert_eq!(enqueue(&broker, vec![keyed]).await, [full[1]]);
    assert_eq!(stored_apart(&database).await, 3, "the payload of a job that was not stored");
    assert_eq!(database.count("SELECT max(octet_length(payload))::bigint FROM howdah.ready").await, 7);
    assert!(payload(&broker, full[2]).await == [4; LARGE], "of a scheduled job");

    let mut worker = Worker::connect(&broker.grpc, "l", 10).await;
    let mut got = Vec::new();
    for _ in 0..5 {
        let job = worker.job().await;
        assert!(job.payload.iter().all(|byte| *byte == job.payload[0]) || job.payload.len() < 10);
        got.push((job.id, job.attempt, job.payload.len(), job.payload[0]));
        if (job.id, job.attempt) == (before[0], 1) {
            worker.settle(vec![nack(&job, "again")]).await;
        } else {
            assert!(payload(&broker, job.id).await == job.payload, "of a leased job");
            worker.settle(vec![ack(&job)]).await;
        }
    }
    got.sort_unstable();
    let (one, again) = ((before[0], 1, LARGE, 1), (before[0], 2, LARGE, 1));
    let small = |id, length, first| (id, 1, length, first);
    assert_eq!(got, [one, again, small(before[1], 5, b's'), small(full[0], 7, b'b'), small(full[1], LARGE, 3)]);
    // Straight to the worker.
    let direct = enqueue(&broker, vec![new_job("l", "first"), large("l", 5)]).await;
    let (first, second) = (worker.job().await, worker.job().await);
    assert!((second.id, &second.payload[..]) == (direct[1], &[5; LARGE][..]));
    worker.settle(vec![ack(&first), ack(&second)]).await;
    until(&database, "six acks", "SELECT count(*) = 6 FROM howdah.history").await;
    assert_eq!(stored_apart(&database).await, 4);
    assert_eq!(
        database.count("SELECT sum(octet_length(payload))::bigint FROM howdah.job WHERE state = 'succeeded'").await,
        3 * LARGE as i64 + 17
    );
}

#[tokio::test]
async fn a_window_in_bytes_counts_a_payload_that_is_kept_apart() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    enqueue(&broker, (0..6).map(|n| large("l", n)).collect()).await;
    let subscribe = howdah_proto::v1::Subscribe {
        windows: vec![howdah_proto::v1::Window { task_type: "l".into(), jobs: 100, bytes: 2 * LARGE as i64 + 5 }],
        ..Default::default()
    };
    let mut worker = Worker::subscribe(&broker.grpc, subscribe).await;
    for n in 0..6 {
        let job = worker.job().await;
        assert_eq!(job.payload[0], n);
        assert!(worker.buffered() < 2, "the window was exceeded");
        assert_eq!(worker.ack(&job).await.status(), SettleStatus::Ok);
    }
}

#[tokio::test]
async fn payloads_of_old_days_are_dropped_but_not_those_of_jobs_that_are_still_there() {
    let database = database().await;
    // It keeps them for years itself: its own cleaning, which begins at some time after its start, leaves them to us.
    let broker = TestBroker::start_with(&database, |c| c.history_days = 3_650).await;
    let ids = enqueue(&broker, vec![large("gone", 1), large("stays", 2)]).await;
    let client = database.connect().await;
    // As if both were of last month, and the first had been dropped with its history since. The day may be over.
    let day = "SELECT ((min(created) AT TIME ZONE 'UTC')::date - 30)::text FROM howdah.payload";
    let day: String = client.query_one(day, &[]).await.expect(day).get(0);
    let old = format!(
        "DELETE FROM howdah.ready WHERE id = {};
         SELECT howdah.make_day_partition('payload', 'created', '{day}');
         UPDATE howdah.payload SET created = created - interval '30 days'",
        ids[0]
    );
    client.batch_execute(&old).await.expect("old");
    let drop = "SELECT howdah.drop_payload_partitions((now() AT TIME ZONE 'UTC')::date - 8)::bigint";
    assert_eq!(database.count(drop).await, 1);
    assert_eq!(stored_apart(&database).await, 1);
    assert!(payload(&broker, ids[1]).await == [2; LARGE]);
    let mut worker = Worker::connect(&broker.grpc, "stays", 1).await;
    assert!(worker.job().await.payload == vec![2; LARGE]);
}

#[tokio::test]
async fn a_type_may_keep_no_succeeded_jobs_or_only_those_that_failed_before() {
    let database = database().await;
    let first = TestBroker::start(&database).await;
    for (task_type, mode) in [("none", HistoryMode::None), ("failures", HistoryMode::Failures)] {
        let settings = Some(TaskTypeSettings { history: mode as i32, ..Default::default() });
        let update = UpdateTaskTypeRequest { task_type: task_type.into(), settings };
        let answer = soon("an answer", task_types_client(&first.grpc).await.update_task_type(update)).await;
        assert_eq!(answer.expect("update").into_inner().settings.expect("settings").history(), mode);
    }
    // A broker that starts now has read them.
    let broker = TestBroker::start(&database).await;
    for task_type in ["none", "failures", "full"] {
        let mut worker = Worker::connect(&broker.grpc, task_type, 1).await;
        let ids = enqueue(&broker, vec![large(task_type, 1), large(task_type, 2)]).await;
        let job = worker.job().await;
        assert!((job.id, &job.payload[..]) == (ids[0], &[1; LARGE][..]));
        assert_eq!(worker.ack(&job).await.status(), SettleStatus::Ok);
        let job = worker.job().await;
        worker.settle(vec![nack(&job, "once")]).await;
        assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
        let job = worker.job().await;
        assert_eq!(worker.ack(&job).await.status(), SettleStatus::Ok);
        let kept = format!("SELECT count(*) FROM howdah.job WHERE task_type = '{task_type}'");
        let expected = match task_type {
            "none" => 0,
            "failures" => 1,
            _ => 2,
        };
        assert_eq!(database.count(&kept).await, expected, "{task_type}");
    }
    // What is not kept is not written apart either.
    assert_eq!(stored_apart(&database).await, 4);
    let waiting = enqueue(&broker, vec![new_job("none", "x")]).await;
    let cancel = howdah_proto::v1::CancelJobsRequest { ids: waiting, ..Default::default() };
    soon("an answer", jobs_client(&broker.grpc).await.cancel_jobs(cancel)).await.expect("cancel");
    assert_eq!(database.count("SELECT count(*) FROM howdah.job WHERE state = 'cancelled'").await, 1);
}

#[tokio::test]
async fn junk_in_the_size_of_a_payload_holds_up_no_other_job() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let ids = enqueue(&broker, (0..4).map(|n| new_job("j", format!("{n}"))).collect()).await;
    let client = database.connect().await;
    for (id, junk) in ids.iter().zip(["1e300", "-5", "\"x\""]) {
        let sql = format!("UPDATE howdah.ready SET options = '{{\"payload_bytes\": {junk}}}' WHERE id = {id}");
        client.batch_execute(&sql).await.expect("junk");
    }
    let mut worker = Worker::connect(&broker.grpc, "j", 10).await;
    // The first seems too large for any window: it stays where it is.
    for id in &ids[1..] {
        let job = worker.job().await;
        assert_eq!(job.id, *id);
        assert_eq!(worker.ack(&job).await.status(), SettleStatus::Ok);
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.ready").await, 1);
}

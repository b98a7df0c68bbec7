//! What reaches whom, and how often.

use std::{collections::HashSet, sync::Arc};

use howdah_proto::v1::{
    CancelJobsRequest, EnqueueJobsRequest, GetJobRequest, JobState, Nack, Outcome, Release, SettleStatus, Snooze,
    Subscribe, Window, outcome, work_request, work_response,
};
use tokio::sync::Mutex;

use crate::support::{TestBroker, Worker, ack, database, jobs_client, nack, new_job, soon, until};

async fn enqueue(broker: &TestBroker, jobs: Vec<howdah_proto::v1::NewJob>) -> Vec<i64> {
    let request = EnqueueJobsRequest { jobs, ..Default::default() };
    let answer = soon("an answer", jobs_client(&broker.grpc).await.enqueue_jobs(request)).await;
    answer.expect("enqueue").into_inner().jobs.iter().map(|j| j.id).collect()
}

#[tokio::test]
async fn a_job_is_pushed_to_a_worker_of_its_type_and_acked() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut worker = Worker::connect(&broker.grpc, "email.send", 10).await;
    let id = enqueue(&broker, vec![new_job("email.send", "hello")]).await[0];
    let job = worker.job().await;
    assert_eq!((job.id, &job.payload[..], job.attempt), (id, &b"hello"[..], 1));
    assert_eq!(worker.ack(&job).await.status(), SettleStatus::Ok);
    assert_eq!(database.count("SELECT count(*) FROM howdah.job WHERE state = 'succeeded'").await, 1);
    broker.stop().await;
}

#[tokio::test]
async fn a_job_enqueued_before_any_worker_came_waits_for_one() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let id = enqueue(&broker, vec![new_job("later", "x")]).await[0];
    let mut worker = Worker::connect(&broker.grpc, "later", 1).await;
    assert_eq!(worker.job().await.id, id);
}

#[tokio::test]
async fn jobs_enqueued_at_one_broker_reach_a_worker_of_another() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let mut worker = Worker::connect(&b.grpc, "x", 10).await;
    let ids = enqueue(&a, vec![new_job("x", "1"), new_job("x", "2")]).await;
    let got = [worker.job().await.id, worker.job().await.id];
    assert_eq!(got[..], ids[..]);
}

#[tokio::test]
async fn a_lower_priority_number_goes_first_and_equals_in_order() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let with = |priority: i32| howdah_proto::v1::NewJob { priority, ..new_job("p", "") };
    let ids = enqueue(&broker, vec![with(5), with(0), with(-1000), with(1000), with(0)]).await;
    let mut worker = Worker::connect(&broker.grpc, "p", 10).await;
    let mut got = Vec::new();
    for _ in 0..5 {
        got.push(worker.job().await.id);
    }
    assert_eq!(got, [ids[2], ids[1], ids[4], ids[0], ids[3]]);
}

#[tokio::test]
async fn a_failed_job_is_tried_again_until_its_attempts_are_used_up_and_keeps_its_errors() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut worker = Worker::connect(&broker.grpc, "fails", 1).await;
    let job = howdah_proto::v1::NewJob { max_attempts: 3, ..new_job("fails", "p") };
    let id = enqueue(&broker, vec![job]).await[0];
    for attempt in 1..=3 {
        let job = worker.job().await;
        assert_eq!((job.id, job.attempt), (id, attempt));
        worker.settle(vec![nack(&job, &format!("error {attempt}"))]).await;
        assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
    }
    let job = get(&broker, id).await;
    assert_eq!(job.state(), JobState::Dead);
    let errors: Vec<_> = job.failures.iter().map(|f| f.error.as_str()).collect();
    assert_eq!(errors, ["error 1", "error 2", "error 3"]);
    assert_eq!(&job.payload[..], b"p");
}

#[tokio::test]
async fn a_nack_without_retry_is_dead_at_once_and_a_backoff_is_scheduled() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    // Nothing leaves scheduled again: five seconds may be over before we have looked.
    let stay = "CREATE FUNCTION stay() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
                CREATE TRIGGER stay BEFORE DELETE ON howdah.scheduled FOR EACH ROW EXECUTE FUNCTION stay()";
    database.connect().await.batch_execute(stay).await.expect("trigger");
    let mut worker = Worker::connect(&broker.grpc, "f", 2).await;
    let ids = enqueue(&broker, vec![new_job("f", ""), new_job("f", "")]).await;
    for no_retry in [true, false] {
        let job = worker.job().await;
        let nack = outcome::Outcome::Nack(Nack { error: "no".into(), no_retry, ..Nack::default() });
        worker.settle(vec![Outcome { id: job.id, token: job.token, outcome: Some(nack) }]).await;
        worker.settled().await;
    }
    assert_eq!(get(&broker, ids[0]).await.state(), JobState::Dead);
    let waiting = get(&broker, ids[1]).await;
    assert_eq!(waiting.state(), JobState::Scheduled);
    let wait = waiting.run_time.unwrap().seconds - waiting.failures[0].finish_time.unwrap().seconds;
    assert!((4..=6).contains(&wait), "the default backoff is 5 s, not {wait} s");
}

#[tokio::test]
async fn a_snoozed_or_released_job_has_not_used_up_an_attempt() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut worker = Worker::connect(&broker.grpc, "s", 1).await;
    enqueue(&broker, vec![howdah_proto::v1::NewJob { max_attempts: 1, ..new_job("s", "") }]).await;
    let delay = std::time::Duration::from_millis(10).try_into().unwrap();
    for how in [outcome::Outcome::Snooze(Snooze { delay: Some(delay) }), outcome::Outcome::Release(Release {})] {
        let job = worker.job().await;
        assert_eq!(job.attempt, 1);
        worker.settle(vec![Outcome { id: job.id, token: job.token, outcome: Some(how) }]).await;
        assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
    }
    let job = worker.job().await;
    assert_eq!(job.attempt, 1);
    assert_eq!(worker.ack(&job).await.status(), SettleStatus::Ok);
}

#[tokio::test]
async fn a_delayed_job_comes_when_it_is_due_and_not_before() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut worker = Worker::connect(&broker.grpc, "d", 10).await;
    let start = |ms| howdah_proto::v1::new_job::Start::Delay(std::time::Duration::from_millis(ms).try_into().unwrap());
    let delayed = |ms| howdah_proto::v1::NewJob { start: Some(start(ms)), ..new_job("d", "") };
    let ids = enqueue(&broker, vec![delayed(3_600_000), delayed(300), delayed(0)]).await;
    assert_eq!(worker.job().await.id, ids[2]);
    let late = worker.job().await;
    assert_eq!(late.id, ids[1]);
    let sql =
        format!("SELECT (leased_at - created >= interval '0.3 s')::int::bigint FROM howdah.job WHERE id = {}", late.id);
    assert_eq!(database.count(&sql).await, 1, "it was delivered early");
    assert_eq!(get(&broker, ids[0]).await.state(), JobState::Scheduled);
}

#[tokio::test]
async fn settling_twice_with_the_same_token_is_ok_twice_and_with_another_one_changes_nothing() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut worker = Worker::connect(&broker.grpc, "t", 10).await;
    enqueue(&broker, vec![new_job("t", ""), new_job("t", "")]).await;
    let (first, second) = (worker.job().await, worker.job().await);
    assert_eq!(worker.ack(&first).await.status(), SettleStatus::Ok);
    assert_eq!(worker.ack(&first).await.status(), SettleStatus::Ok);
    let mut forged = second.clone();
    forged.token ^= 1;
    assert_eq!(worker.ack(&forged).await.status(), SettleStatus::LeaseLost);
    // A nack is remembered too, while the job waits for its next attempt.
    worker.settle(vec![nack(&second, "no")]).await;
    assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
    worker.settle(vec![nack(&second, "no")]).await;
    assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
    let again = worker.job().await;
    assert_eq!((again.id, again.attempt), (second.id, 2));
    assert_eq!(worker.ack(&again).await.status(), SettleStatus::Ok);
}

#[tokio::test]
async fn ack_and_nack_of_one_job_in_one_message_the_first_counts() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut worker = Worker::connect(&broker.grpc, "t", 10).await;
    let id = enqueue(&broker, vec![new_job("t", "")]).await[0];
    let job = worker.job().await;
    worker.settle(vec![ack(&job), nack(&job, "no")]).await;
    let mut statuses = [worker.settled().await.status(), worker.settled().await.status()];
    statuses.sort();
    assert_eq!(statuses, [SettleStatus::Ok, SettleStatus::LeaseLost]);
    assert_eq!(get(&broker, id).await.state(), JobState::Succeeded);
}

#[tokio::test]
async fn a_cancelled_job_is_taken_from_its_worker_also_on_another_broker() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let mut worker = Worker::connect(&b.grpc, "c", 1).await;
    let ids = enqueue(&a, vec![new_job("c", ""), new_job("c", "")]).await;
    let job = worker.job().await;
    let mut jobs = jobs_client(&a.grpc).await;
    let cancelled = jobs
        .cancel_jobs(CancelJobsRequest { ids: [&ids[..], &[i64::MAX]].concat(), ..Default::default() })
        .await
        .unwrap();
    assert_eq!(cancelled.into_inner().cancelled_ids, ids);
    let Some(work_response::Message::Cancel(cancel)) = worker.message().await.unwrap() else { panic!("no cancel") };
    assert_eq!((cancel.jobs[0].id, cancel.jobs[0].token), (job.id, job.token));
    assert_eq!(worker.ack(&job).await.status(), SettleStatus::LeaseLost);
    assert_eq!(get(&a, job.id).await.state(), JobState::Cancelled);
}

#[tokio::test]
async fn an_attempt_over_its_timeout_is_ended_and_an_extended_one_is_not() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut worker = Worker::connect(&broker.grpc, "slow", 2).await;
    let hour = prost_types::Duration { seconds: 3_600, nanos: 0 };
    // After a failure it waits for an hour too, so that we find it waiting.
    let retry_policy = Some(howdah_proto::v1::RetryPolicy { initial_delay: Some(hour), ..Default::default() });
    let with = |timeout| {
        let (timeout, retry_policy) = (Some(timeout), retry_policy.clone());
        howdah_proto::v1::NewJob { timeout, retry_policy, ..new_job("slow", "") }
    };
    enqueue(&broker, vec![with(hour), with(hour)]).await;
    let (first, second) = (worker.job().await, worker.job().await);
    let duration = Some(prost_types::Duration { seconds: 7_200, nanos: 0 });
    let extension = howdah_proto::v1::Extension { id: first.id, token: first.token, duration };
    worker.send(work_request::Message::Extend(howdah_proto::v1::Extend { extensions: vec![extension] })).await;
    let Some(work_response::Message::Extended(extended)) = worker.message().await.unwrap() else { panic!("no answer") };
    assert_eq!(extended.results[0].status(), SettleStatus::Ok);
    // As if an hour had passed, however long this takes us.
    let passed = "UPDATE howdah.leased SET deadline = deadline - interval '1 hour'";
    database.connect().await.batch_execute(passed).await.expect(passed);
    let Some(work_response::Message::Cancel(cancel)) = worker.message().await.unwrap() else { panic!("no cancel") };
    assert_eq!(cancel.jobs[0].id, second.id);
    assert_eq!(worker.ack(&second).await.status(), SettleStatus::LeaseLost);
    assert_eq!(worker.ack(&first).await.status(), SettleStatus::Ok);
    let ended = get(&broker, second.id).await;
    assert_eq!(ended.state(), JobState::Scheduled);
    assert!(ended.failures[0].error.contains("timeout"), "{:?}", ended.failures);
    // One whose time is really over: whether it was sent before that is the machine's affair.
    let short = enqueue(&broker, vec![with(prost_types::Duration { seconds: 0, nanos: 400_000_000 })]).await[0];
    let over = "failures::text LIKE '%timeout%'";
    let over = format!("SELECT EXISTS (SELECT FROM howdah.scheduled WHERE id = {short} AND {over})");
    until(&database, "the end of the attempt", &over).await;
}

#[tokio::test]
async fn windows_are_never_exceeded_in_jobs_or_bytes_and_can_be_resized() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    enqueue(&broker, (0..50).map(|_| new_job("w", vec![0; 1000])).collect()).await;
    let windows = vec![Window { task_type: "w".into(), jobs: 10, bytes: 3_500 }];
    let mut worker = Worker::subscribe(&broker.grpc, Subscribe { windows, ..Subscribe::default() }).await;
    // 3,500 bytes hold three jobs of 1,000; the fourth comes when one is settled.
    let mut held = vec![worker.job().await, worker.job().await, worker.job().await];
    until(&database, "a quiet queue", "SELECT count(*) = 3 FROM howdah.leased").await;
    for _ in 0..10 {
        let done = held.remove(0);
        assert_eq!(worker.ack(&done).await.status(), SettleStatus::Ok);
        held.push(worker.job().await);
        assert_eq!(worker.buffered(), 0, "a fourth came while three were held");
    }
    worker.send(work_request::Message::Window(Window { task_type: "w".into(), jobs: 5, bytes: 1 << 20 })).await;
    held.extend([worker.job().await, worker.job().await]);
    until(&database, "five leases", "SELECT count(*) = 5 FROM howdah.leased").await;
    worker.send(work_request::Message::Window(Window { task_type: "w".into(), jobs: 0, bytes: 0 })).await;
    for job in held {
        assert_eq!(worker.ack(&job).await.status(), SettleStatus::Ok);
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.leased").await, 0);
}

#[tokio::test]
async fn a_hundred_thousand_jobs_reach_a_hundred_workers_on_two_brokers_once_each() {
    const JOBS: usize = 100_000;
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let seen = Arc::new(Mutex::new(HashSet::new()));
    let mut workers = tokio::task::JoinSet::new();
    let (all_done, mut done) = tokio::sync::watch::channel(0_usize);
    for n in 0..100 {
        let grpc = if n % 2 == 0 { a.grpc.clone() } else { b.grpc.clone() };
        let (seen, all_done) = (seen.clone(), all_done.clone());
        workers.spawn(async move {
            let mut worker = Worker::connect(&grpc, "many", 100).await;
            loop {
                match worker.message().await.expect("an open stream") {
                    Some(work_response::Message::Jobs(jobs)) => {
                        worker.settle(jobs.jobs.iter().map(ack).collect()).await;
                        let mut seen = seen.lock().await;
                        for job in jobs.jobs {
                            assert!(seen.insert(job.id), "job {} came twice", job.id);
                        }
                    }
                    Some(work_response::Message::Settled(settled)) => {
                        assert!(settled.results.iter().all(|r| r.status() == SettleStatus::Ok));
                        all_done.send_modify(|n| *n += settled.results.len());
                    }
                    _ => return,
                }
            }
        });
    }
    let mut producers = tokio::task::JoinSet::new();
    for n in 0..4 {
        let mut client = jobs_client(if n % 2 == 0 { &a.grpc } else { &b.grpc }).await;
        producers.spawn(async move {
            for _ in 0..JOBS / 4 / 500 {
                let jobs = (0..500).map(|_| new_job("many", "payload")).collect();
                client.enqueue_jobs(EnqueueJobsRequest { jobs, ..Default::default() }).await.expect("enqueue");
            }
        });
    }
    while producers.join_next().await.transpose().expect("producer").is_some() {}
    let finished = done.wait_for(|n| *n >= JOBS);
    tokio::time::timeout(std::time::Duration::from_secs(300), finished).await.expect("all acked").expect("channel");
    assert_eq!(seen.lock().await.len(), JOBS);
    let acked = database
        .count("SELECT count(DISTINCT id) FROM howdah.history WHERE outcome = 'succeeded' AND attempt = 1")
        .await;
    assert_eq!(acked, JOBS as i64);
    assert_eq!(database.count("SELECT count(*) FROM howdah.job").await, JOBS as i64);
    workers.shutdown().await;
}

async fn get(broker: &TestBroker, id: i64) -> howdah_proto::v1::Job {
    let answer = jobs_client(&broker.grpc).await.get_job(GetJobRequest { id }).await.expect("the job");
    answer.into_inner().job.expect("a job")
}

#[tokio::test]
async fn a_job_that_is_cancelled_before_it_was_sent_is_not_sent() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let window = Window { task_type: "c".into(), jobs: 10, bytes: 100 };
    let mut worker = Worker::subscribe(&broker.grpc, Subscribe { windows: vec![window], ..Default::default() }).await;
    // The second fits the window but not the room that the first leaves: claimed, and kept for a while.
    let ids = enqueue(&broker, vec![new_job("c", [b'1'; 90]), new_job("c", [b'2'; 90])]).await;
    let first = worker.job().await;
    assert_eq!(first.id, ids[0]);
    let cancel = CancelJobsRequest { ids: vec![ids[1]], ..Default::default() };
    let answer = soon("an answer", jobs_client(&broker.grpc).await.cancel_jobs(cancel)).await.expect("cancel");
    assert_eq!(answer.into_inner().cancelled_ids, [ids[1]]);
    assert_eq!(worker.ack(&first).await.status(), SettleStatus::Ok);
    let third = enqueue(&broker, vec![new_job("c", [b'3'; 90])]).await;
    assert_eq!(worker.job().await.id, third[0]);
}

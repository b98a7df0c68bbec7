//! Every way to death leads to the fallback, if there is one.

use std::time::Duration;

use howdah_proto::v1::{
    EnqueueJobsRequest, JobState, NewJob, SettleStatus, TaskTypeSettings, UpdateTaskTypeRequest, work_response,
};

use super::{enqueue, fail, get, set};
use crate::support::{
    TestBroker, TestDatabase, Worker, database, jobs_client, nack, new_job, task_types_client, until,
};

fn with_fallback() -> NewJob {
    NewJob { fallback: "mail.failed".into(), priority: 7, ..new_job("mail", "the payload") }
}

/// The job arrives at the fallback's worker of another broker, with all that it had.
async fn arrives(broker: &TestBroker, worker: &mut Worker, id: i64, error: &str) {
    let job = worker.job().await;
    assert_eq!((job.id, job.task_type.as_str(), &job.payload[..]), (id, "mail.failed", &b"the payload"[..]));
    assert_eq!(job.attempt, 1, "attempts anew");
    let view = get(broker, id).await;
    assert_eq!((view.original_task_type.as_str(), view.priority), ("mail", 7));
    assert!(view.failures.last().unwrap().error.contains(error), "{:?}", view.failures);
    assert_eq!(worker.ack(&job).await.status(), SettleStatus::Ok);
    let view = get(broker, id).await;
    assert_eq!((view.state(), view.original_task_type.as_str()), (JobState::Succeeded, "mail"));
    assert!(view.failures.last().unwrap().error.contains(error), "the errors stay: {:?}", view.failures);
}

#[tokio::test]
async fn a_job_that_failed_for_good_or_too_often_goes_to_its_fallback_with_its_errors() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let mut fallback = Worker::connect(&b.grpc, "mail.failed", 10).await;
    let mut worker = Worker::connect(&a.grpc, "mail", 1).await;
    let id = enqueue(&a, vec![with_fallback()]).await[0];
    let job = worker.job().await;
    fail(&mut worker, &job, "no such address", true).await;
    // The answer was lost: the same again is OK again.
    fail(&mut worker, &job, "no such address", true).await;
    arrives(&b, &mut fallback, id, "no such address").await;

    let id = enqueue(&a, vec![NewJob { max_attempts: 2, ..with_fallback() }]).await[0];
    for attempt in 1..=2 {
        let job = worker.job().await;
        assert_eq!((job.id, job.attempt), (id, attempt));
        worker.settle(vec![nack(&job, &format!("error {attempt}"))]).await;
        assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
    }
    arrives(&b, &mut fallback, id, "error 2").await;
    assert_eq!(get(&b, id).await.failures.len(), 2);
    assert_eq!(database.count("SELECT count(*) FROM howdah.dead").await, 0);
}

#[tokio::test]
async fn a_job_over_its_timeout_goes_to_its_fallback() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let mut fallback = Worker::connect(&b.grpc, "mail.failed", 10).await;
    let mut worker = Worker::connect(&a.grpc, "mail", 1).await;
    let timeout = Some(prost_types::Duration { seconds: 3600, nanos: 0 });
    let id = enqueue(&a, vec![NewJob { max_attempts: 1, timeout, ..with_fallback() }]).await[0];
    let job = worker.job().await;
    database.connect().await.execute("UPDATE howdah.leased SET deadline = now()", &[]).await.unwrap();
    arrives(&b, &mut fallback, id, "timeout").await;
    let Some(work_response::Message::Cancel(cancel)) = worker.message().await.unwrap() else { panic!("no cancel") };
    assert_eq!(cancel.jobs[0].id, job.id);
    assert_eq!(worker.ack(&job).await.status(), SettleStatus::LeaseLost);
}

#[tokio::test]
async fn a_job_whose_worker_is_lost_goes_to_its_fallback() {
    let database = database().await;
    let grace = |c: &mut howdah_server::config::Config| c.session_grace = Duration::from_millis(1);
    let (a, b) = (TestBroker::start_with(&database, grace).await, TestBroker::start(&database).await);
    let mut fallback = Worker::connect(&b.grpc, "mail.failed", 10).await;
    let mut worker = Worker::connect(&a.grpc, "mail", 1).await;
    let id = enqueue(&a, vec![NewJob { max_attempts: 1, ..with_fallback() }]).await[0];
    worker.job().await;
    worker.vanish();
    arrives(&b, &mut fallback, id, "went away").await;
}

#[tokio::test]
async fn a_job_whose_broker_is_gone_goes_to_its_fallback() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    // A third one takes back soon what a broker leaves that is gone. It has no workers itself: with so short a
    // lease it would be gone whenever the machine is slow.
    let quick = |c: &mut howdah_server::config::Config| {
        c.broker_lease = Duration::from_secs(2);
        c.renew_interval = Duration::from_millis(500);
    };
    let _rescuer = TestBroker::start_with(&database, quick).await;
    let mut fallback = Worker::connect(&b.grpc, "mail.failed", 10).await;
    let mut worker = Worker::connect(&a.grpc, "mail", 2).await;
    let jobs = vec![NewJob { max_attempts: 1, ..with_fallback() }, NewJob { max_attempts: 1, ..new_job("mail", "") }];
    let ids = enqueue(&a, jobs).await;
    for _ in &ids {
        worker.job().await;
    }
    // As if another broker had it, and had been killed.
    let gone = "INSERT INTO howdah.broker (id, name, expires) VALUES (999999, 'gone', now() - interval '1 minute');
                UPDATE howdah.leased SET broker_id = 999999";
    database.connect().await.batch_execute(gone).await.unwrap();
    arrives(&b, &mut fallback, ids[0], "went away").await;
    until(&database, "the one without a fallback to die", "SELECT count(*) = 1 FROM howdah.dead").await;
    assert_eq!(get(&a, ids[1]).await.state(), JobState::Dead);
}

#[tokio::test]
async fn a_types_fallback_takes_the_jobs_that_name_none_and_who_fails_there_too_is_dead() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let settings = TaskTypeSettings { fallback: "of.type".into(), ..Default::default() };
    set(&broker, "mail", settings.clone()).await;
    // The fallback has a fallback of its own, for its own jobs only.
    set(&broker, "of.type", TaskTypeSettings { fallback: "mail".into(), max_attempts: 2, ..Default::default() }).await;
    let mut types = task_types_client(&broker.grpc).await;
    let shown = types.list_task_types(howdah_proto::v1::ListTaskTypesRequest::default()).await.unwrap().into_inner();
    assert_eq!(shown.task_types.iter().find(|t| t.name == "mail").unwrap().settings, Some(settings));

    let mut worker = Worker::connect(&broker.grpc, "mail", 10).await;
    let mut fallback = Worker::connect(&broker.grpc, "of.type", 10).await;
    let mut own = Worker::connect(&broker.grpc, "mail.failed", 10).await;
    let key = |job: NewJob| NewJob { key: "ann".into(), ..job };
    let ids = enqueue(&broker, vec![key(new_job("mail", "a")), with_fallback()]).await;
    for _ in &ids {
        let job = worker.job().await;
        fail(&mut worker, &job, "first", true).await;
    }
    assert_eq!(own.job().await.id, ids[1], "its own comes before its type's");
    let job = fallback.job().await;
    assert_eq!((job.id, job.max_attempts), (ids[0], 2), "attempts are those of the fallback's type");
    // The key is free, as if it were dead.
    let again = enqueue(&broker, vec![key(new_job("mail", "b"))]).await[0];
    assert_ne!(again, ids[0]);
    assert_eq!(worker.job().await.id, again);

    fail(&mut fallback, &job, "second", true).await;
    let dead = get(&broker, ids[0]).await;
    assert_eq!(
        (dead.state(), dead.task_type.as_str(), dead.original_task_type.as_str()),
        (JobState::Dead, "of.type", "mail")
    );
    let errors: Vec<_> = dead.failures.iter().map(|f| f.error.as_str()).collect();
    assert_eq!(errors, ["first", "second"]);

    set(&broker, "mail", TaskTypeSettings::default()).await;
    let id = enqueue(&broker, vec![new_job("mail", "")]).await[0];
    let job = worker.job().await;
    fail(&mut worker, &job, "no", true).await;
    assert_eq!(get(&broker, id).await.state(), JobState::Dead, "no fallback any more");
}

#[tokio::test]
async fn a_large_payload_goes_to_the_fallback_too() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut worker = Worker::connect(&broker.grpc, "mail", 1).await;
    let large = vec![b'x'; 100_000];
    let job = NewJob { fallback: "mail.failed".into(), ..new_job("mail", large.clone()) };
    let id = enqueue(&broker, vec![job]).await[0];
    let job = worker.job().await;
    fail(&mut worker, &job, "no", true).await;
    let mut fallback = Worker::connect(&broker.grpc, "mail.failed", 1).await;
    let job = fallback.job().await;
    assert_eq!((job.id, job.payload.len()), (id, large.len()));
}

#[tokio::test]
async fn junk_instead_of_a_fallback_makes_a_job_dead_as_without_one() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    for junk in ["\"mail\"", "-1", "1e300", "999999", "[]", "null", "1.5"] {
        let mut worker = Worker::connect(&broker.grpc, "junk", 1).await;
        let id = enqueue(&broker, vec![new_job("junk", "")]).await[0];
        let job = worker.job().await;
        let sql = format!("UPDATE howdah.leased SET options = '{{\"fallback\": {junk}}}'");
        database.connect().await.batch_execute(&sql).await.unwrap();
        // The broker reads options before it settles; what it cannot read it leaves to Postgres.
        let sql =
            format!("SELECT howdah.fallback_of(type_id, options)::bigint IS NULL FROM howdah.leased WHERE id = {id}");
        let none: bool = database.connect().await.query_one(&sql, &[]).await.unwrap().get(0);
        assert!(none, "{junk}");
        worker.ack(&job).await;
    }
}

#[tokio::test]
async fn a_fallback_that_is_the_type_itself_or_no_name_is_refused_and_nothing_is_stored() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    for bad in ["mail", "a b", &"x".repeat(201)] {
        let jobs = vec![NewJob { fallback: bad.into(), ..new_job("mail", "") }];
        let request = EnqueueJobsRequest { jobs, ..Default::default() };
        let error = jobs_client(&broker.grpc).await.enqueue_jobs(request).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::InvalidArgument);
        assert!(error.message().starts_with("jobs[0].fallback "), "{error}");
        let settings = Some(TaskTypeSettings { fallback: bad.into(), ..Default::default() });
        let request = UpdateTaskTypeRequest { task_type: "mail".into(), settings };
        let error = task_types_client(&broker.grpc).await.update_task_type(request).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::InvalidArgument);
        assert!(error.message().starts_with("settings.fallback "), "{error}");
    }
    assert_eq!(counts(&database).await, (0, 0));
}

async fn counts(database: &TestDatabase) -> (i64, i64) {
    let types = database.count("SELECT count(*) FROM howdah.task_type").await;
    (database.count("SELECT count(*) FROM howdah.job").await, types)
}

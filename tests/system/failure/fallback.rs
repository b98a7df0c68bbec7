//! Tests that a dead job goes to its fallback type, whatever the cause of its death.

use howdah_core::config::Config;
use howdah_proto::v1::{JobState, ListTaskTypesRequest, NewJob, SettleStatus, TaskTypeSettings};

use crate::support::*;

fn with_fallback() -> NewJob {
    new_job("mail", "the payload").fallback("mail.failed").priority(7)
}

/// Asserts that the job arrives at the worker of the fallback type, at another broker, with all its options.
async fn arrives(broker: &TestBroker, worker: &mut Worker, id: i64, error: &str) {
    let job = worker.next().await;
    assert_eq!((job.id, job.task_type.as_str(), &job.payload[..]), (id, "mail.failed", &b"the payload"[..]));
    assert_eq!(job.attempt, 1, "attempts start at 1 in the fallback");
    let view = broker.job(id).await;
    assert_eq!((view.original_task_type.as_str(), view.priority), ("mail", 7));
    assert!(view.failures.last().unwrap().error.contains(error), "{:?}", view.failures);
    worker.ack(&job).await;
    let view = broker.job(id).await;
    assert_eq!((view.state(), view.original_task_type.as_str()), (JobState::Succeeded, "mail"));
    assert!(view.failures.last().unwrap().error.contains(error), "the failures are kept: {:?}", view.failures);
}

#[tokio::test]
async fn a_job_that_failed_for_good_or_too_often_goes_to_its_fallback_with_its_errors() {
    let (a, b) = TestBroker::pair().await;
    let mut fallback = b.worker("mail.failed").await;
    let mut worker = a.worker("mail").window(1).await;
    let id = a.enqueue(with_fallback()).await;
    let job = worker.next().await;
    worker.nack(&job, "no such address").no_retry().await;
    // Repeats the nack, as a worker does after a lost result. The repeated nack must succeed too.
    worker.nack(&job, "no such address").no_retry().await;
    arrives(&b, &mut fallback, id, "no such address").await;

    let id = a.enqueue(with_fallback().max_attempts(2)).await;
    for attempt in 1..=2 {
        let job = worker.next().await;
        assert_eq!((job.id, job.attempt), (id, attempt));
        worker.nack(&job, &format!("error {attempt}")).at_once().await;
    }
    arrives(&b, &mut fallback, id, "error 2").await;
    assert_eq!(b.job(id).await.failures.len(), 2);
    assert_eq!(a.count("SELECT count(*) FROM howdah.dead").await, 0);
}

#[tokio::test]
async fn a_job_over_its_timeout_goes_to_its_fallback() {
    let (a, b) = TestBroker::pair().await;
    let mut fallback = b.worker("mail.failed").await;
    let mut worker = a.worker("mail").window(1).await;
    let id = a.enqueue(with_fallback().max_attempts(1).timeout(HOUR)).await;
    let job = worker.next().await;
    a.database.connect().await.execute("UPDATE howdah.leased SET deadline = now()", &[]).await.unwrap();
    arrives(&b, &mut fallback, id, "timeout").await;
    let cancel = worker.cancelled().await;
    assert_eq!(cancel.id, job.id);
    assert_eq!(worker.ack(&job).status().await, SettleStatus::LeaseLost);
}

#[tokio::test]
async fn a_job_whose_worker_is_lost_goes_to_its_fallback() {
    let database = database().await;
    let grace = |c: &mut Config| c.session_grace = millis(1);
    let (a, b) = (TestBroker::on_with(&database, grace).await, TestBroker::on(&database).await);
    let mut fallback = b.worker("mail.failed").await;
    let mut worker = a.worker("mail").window(1).await;
    let id = a.enqueue(with_fallback().max_attempts(1)).await;
    worker.next().await;
    worker.vanish();
    arrives(&b, &mut fallback, id, "was lost").await;
}

#[tokio::test]
async fn a_job_whose_broker_is_gone_goes_to_its_fallback() {
    let (a, b) = TestBroker::pair().await;
    // A third broker rescues the leases of dead brokers soon. No worker connects to it, because with its short lease it could
    // itself count as dead on a slow machine.
    let quick = |c: &mut Config| {
        c.broker_lease = secs(2);
        c.renew_interval = millis(500);
    };
    let _rescuer = a.another_with(quick).await;
    let mut fallback = b.worker("mail.failed").await;
    let mut worker = a.worker("mail").window(2).await;
    let ids = a.enqueue_all([with_fallback(), new_job("mail", "")].map(|job| job.max_attempts(1))).await;
    worker.take(2).await;
    // Assigns the leases to an expired broker, as if their broker had been killed.
    let gone = "INSERT INTO howdah.broker (id, name, expires) VALUES (999999, 'gone', now() - interval '1 minute');
                UPDATE howdah.leased SET broker_id = 999999";
    a.sql(gone).await;
    arrives(&b, &mut fallback, ids[0], "was lost").await;
    assert_eq!(a.wait(ids[1]).await.state(), JobState::Dead, "a lost job without a fallback");
}

#[tokio::test]
async fn jobs_without_a_fallback_go_to_the_fallback_of_their_type_and_are_dead_if_they_fail_there() {
    let broker = TestBroker::start().await;
    let settings = TaskTypeSettings { fallback: "of.type".into(), ..Default::default() };
    broker.set("mail", settings.clone()).await;
    // The fallback type has a fallback too, which does not apply to jobs that arrive from another type.
    broker.set("of.type", TaskTypeSettings { fallback: "mail".into(), max_attempts: 2, ..Default::default() }).await;
    let mut types = broker.task_types();
    let shown = types.list_task_types(ListTaskTypesRequest::default()).await.unwrap().into_inner();
    assert_eq!(shown.task_types.iter().find(|t| t.name == "mail").unwrap().settings, Some(settings));

    let mut worker = broker.worker("mail").await;
    let mut fallback = broker.worker("of.type").await;
    let mut own = broker.worker("mail.failed").await;
    let key = |job: NewJob| job.key("ann");
    let ids = broker.enqueue_all([key(new_job("mail", "a")), with_fallback()]).await;
    for _ in &ids {
        let job = worker.next().await;
        worker.nack(&job, "first").no_retry().await;
    }
    assert_eq!(own.next().await.id, ids[1], "the fallback of a job goes before the fallback of its type");
    let job = fallback.next().await;
    assert_eq!((job.id, job.max_attempts), (ids[0], 2), "the fallback type sets max_attempts");
    // While the first job runs in its fallback type, it does not hold its key, as if it were dead.
    let again = broker.enqueue(key(new_job("mail", "b"))).await;
    assert_ne!(again, ids[0]);
    assert_eq!(worker.next().await.id, again);

    fallback.nack(&job, "second").no_retry().await;
    let dead = broker.job(ids[0]).await;
    assert_eq!(
        (dead.state(), dead.task_type.as_str(), dead.original_task_type.as_str()),
        (JobState::Dead, "of.type", "mail")
    );
    let errors: Vec<_> = dead.failures.iter().map(|f| f.error.as_str()).collect();
    assert_eq!(errors, ["first", "second"]);

    broker.set("mail", TaskTypeSettings::default()).await;
    let id = broker.enqueue("mail").await;
    let job = worker.next().await;
    worker.nack(&job, "no").no_retry().await;
    assert_eq!(broker.state(id).await, JobState::Dead, "a job whose type has no fallback any more");
}

#[tokio::test]
async fn a_large_payload_goes_to_the_fallback_too() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("mail").window(1).await;
    let large = vec![b'x'; 100_000];
    let id = broker.enqueue("mail").payload(large.clone()).fallback("mail.failed").await;
    let job = worker.next().await;
    worker.nack(&job, "no").no_retry().await;
    let mut fallback = broker.worker("mail.failed").window(1).await;
    let job = fallback.next().await;
    assert_eq!((job.id, job.payload.len()), (id, large.len()));
}

#[tokio::test]
async fn an_invalid_fallback_in_the_options_counts_as_no_fallback() {
    let broker = TestBroker::start().await;
    for junk in ["\"mail\"", "-1", "1e300", "999999", "[]", "null", "1.5"] {
        let mut worker = broker.worker("junk").window(1).await;
        let id = broker.enqueue("junk").await;
        let job = worker.next().await;
        let sql = format!("UPDATE howdah.leased SET options = '{{\"fallback\": {junk}}}'");
        broker.sql(&sql).await;
        // If the broker cannot read a job's options, it asks Postgres. The SQL function must find no fallback in
        // invalid options.
        let sql =
            format!("SELECT howdah.fallback_of(type_id, options)::bigint IS NULL FROM howdah.leased WHERE id = {id}");
        let none: bool = broker.database.connect().await.query_one(&sql, &[]).await.unwrap().get(0);
        assert!(none, "{junk}");
        worker.ack(&job).await;
    }
}

#[tokio::test]
async fn a_fallback_that_is_the_type_itself_or_no_name_is_refused_and_nothing_is_stored() {
    let broker = TestBroker::start().await;
    for bad in ["mail", "a b", &"x".repeat(201)] {
        broker.enqueue("mail").fallback(bad).refused().await.names("jobs[0].fallback");
        let settings = TaskTypeSettings { fallback: bad.into(), ..Default::default() };
        broker.set("mail", settings).refused().await.names("settings.fallback");
    }
    assert_eq!(counts(&broker.database).await, (0, 0));
}

async fn counts(database: &TestDatabase) -> (i64, i64) {
    let types = database.count("SELECT count(*) FROM howdah.task_type").await;
    (database.count("SELECT count(*) FROM howdah.job").await, types)
}

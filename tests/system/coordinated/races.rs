//! Tests concurrent transactions on keys and dependents. The test holds one transaction open until the broker waits for it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use howdah_proto::v1::{
    CancelJobsRequest, EnqueueJobsRequest, JobState, KeyPolicy, NewJob, PullJobsRequest, SettleJobsRequest,
    new_job::Expiry,
};
use tokio_postgres::Client;

use crate::support::*;

fn keyed(task_type: &str, key: &str, policy: KeyPolicy, payload: &str) -> NewJob {
    new_job(task_type, payload).key(key).policy(policy)
}

fn replacing(payload: &str) -> NewJob {
    keyed("index", "doc-7", KeyPolicy::Replace, payload)
}

/// Opens a transaction that replaces the job with this key, as another broker would, and leaves it open.
async fn replace_and_wait(database: &TestDatabase, task_type: &str, key: &str, payload: &str) -> Client {
    let client = database.connect().await;
    client.batch_execute("BEGIN").await.unwrap();
    let sql = format!(
        "SELECT e.outcome::text FROM howdah.task_type t, LATERAL howdah.enqueue_jobs(ARRAY[0], ARRAY[t.id], ARRAY[0::bigint],
             ARRAY[0::smallint], ARRAY[5::smallint], ARRAY[NULL]::bigint[], ARRAY['{key}'], ARRAY[NULL]::jsonb[],
             ARRAY['{{\"key_policy\": \"replace\"}}'::jsonb], ARRAY['{payload}'::bytea], ARRAY[NULL]::bigint[],
             ARRAY[NULL]::bigint[], '{{}}', '{{}}', '{{}}', '{{}}', '{{}}') e
         WHERE t.name = '{task_type}' AND e.kind IS NULL"
    );
    assert_eq!(client.query_one(&sql, &[]).await.expect("a replace").get::<_, &str>(0), "replaced");
    client
}

/// Waits until a broker waits for a row lock, which only the test's transaction can hold. (Sessions that send notifications
/// also wait for each other, across all databases, but for another kind of lock.)
async fn until_it_waits(database: &TestDatabase) {
    let sql = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
                              AND wait_event_type = 'Lock' AND wait_event IN ('transactionid', 'tuple'))";
    until(database, "a broker that waits for the test's transaction", sql).await;
}

async fn keys(database: &TestDatabase) -> i64 {
    database.count("SELECT count(*) FROM howdah.job_key").await
}

#[tokio::test]
async fn a_successor_that_is_replaced_while_its_predecessor_ends_runs() {
    let broker = TestBroker::start().await;
    broker.enqueue(replacing("1")).await;
    let mut worker = broker.worker("index").await;
    let running = worker.next().await;
    let next = broker.enqueue(replacing("2")).await;
    let other = replace_and_wait(&broker.database, "index", "doc-7", "3").await;
    worker.ack(&running).sent().await;
    until_it_waits(&broker.database).await;
    other.batch_execute("COMMIT").await.unwrap();
    let job = worker.next().await;
    assert_eq!((job.id, &job.payload[..]), (next, &b"3"[..]));
    worker.settled().await;
    worker.ack(&job).await;
    assert_eq!(keys(&broker.database).await, 0);
}

#[tokio::test]
async fn a_key_is_free_when_a_successor_expires_while_its_predecessor_ends() {
    let broker = TestBroker::start().await;
    broker.enqueue(replacing("1")).await;
    let mut worker = broker.worker("index").await;
    let running = worker.next().await;
    let next = broker.enqueue(replacing("2")).await;
    let other = broker.database.connect().await;
    other
        .batch_execute(&format!(
            "BEGIN; UPDATE howdah.waiting SET options = options || '{{\"expire_at_us\": 1}}';
             SELECT howdah.finish_unstarted(ARRAY[{next}])"
        ))
        .await
        .unwrap();
    worker.ack(&running).sent().await;
    until_it_waits(&broker.database).await;
    other.batch_execute("COMMIT").await.unwrap();
    worker.settled().await;
    assert_eq!(broker.state(next).await, JobState::Expired);
    assert_eq!(keys(&broker.database).await, 0);
    assert!(broker.enqueue(replacing("3")).outcome().await.is_new);
}

#[tokio::test]
async fn a_child_that_is_replaced_while_its_parent_dies_or_is_cancelled_is_cancelled() {
    let broker = TestBroker::start().await;
    for cancel in [false, true] {
        let parent = broker.enqueue("parent").await;
        let child = keyed("child", "c", KeyPolicy::Replace, "1").after(&[parent]);
        let child = broker.enqueue(child).await;
        let grandchild = broker.enqueue("child").after(&[child]).await;
        let mut worker = broker.worker("parent").window(1).await;
        let job = worker.next().await;
        let other = replace_and_wait(&broker.database, "child", "c", "2").await;
        let end = async {
            if cancel {
                broker.cancel(&[parent]).await;
            } else {
                worker.nack(&job, "no").no_retry().await;
            }
        };
        let commit = async {
            until_it_waits(&broker.database).await;
            other.batch_execute("COMMIT").await.unwrap();
        };
        tokio::join!(end, commit);
        assert_eq!(broker.state(child).await, JobState::Cancelled, "parent cancelled: {cancel}");
        assert_eq!(broker.state(grandchild).await, JobState::Cancelled);
        assert_eq!(keys(&broker.database).await, 0);
    }
}

#[tokio::test]
async fn a_child_that_is_replaced_while_its_parent_succeeds_runs_as_it_is_now() {
    let broker = TestBroker::start().await;
    let parent = broker.enqueue("parent").await;
    let child = keyed("child", "c", KeyPolicy::Replace, "1").after(&[parent]);
    let child = broker.enqueue(child).await;
    let mut worker = broker.worker("parent").window(1).await;
    let job = worker.next().await;
    let other = replace_and_wait(&broker.database, "child", "c", "2").await;
    worker.ack(&job).sent().await;
    until_it_waits(&broker.database).await;
    other.batch_execute("COMMIT").await.unwrap();
    let mut children = broker.worker("child").window(1).await;
    let job = children.next().await;
    assert_eq!((job.id, &job.payload[..]), (child, &b"2"[..]));
    children.ack(&job).await;
    assert_eq!(keys(&broker.database).await, 0);
}

#[tokio::test]
async fn a_replace_that_waits_for_the_end_of_the_holder_is_a_new_job() {
    let broker = TestBroker::start().await;
    let first = broker.enqueue(replacing("1")).await;
    let mut worker = broker.worker("index").window(1).await;
    let running = worker.next().await;
    let other = broker.database.connect().await;
    // A transaction ends the running job and its key, as an ack at another broker would, and stays open.
    other
        .batch_execute(&format!(
            "BEGIN; DELETE FROM howdah.leased WHERE id = {}; DELETE FROM howdah.job_key WHERE job_id = {first}",
            running.id
        ))
        .await
        .unwrap();
    let commit = async {
        until_it_waits(&broker.database).await;
        other.batch_execute("COMMIT").await.unwrap();
    };
    let (enqueued, ()) = tokio::join!(broker.enqueue(replacing("2")).outcome(), commit);
    assert!(enqueued.is_new && enqueued.id != first, "{enqueued:?}");
    assert_eq!(keys(&broker.database).await, 1);
}

/// Enqueues jobs that replace each other under a few keys. Some of them expire or are cancelled.
async fn produce(grpc: String, seed: usize) {
    let mut client = jobs_client(&grpc).await;
    for round in 0..60 {
        let jobs = (0..6).map(|n| {
            let key = format!("k{}", (seed * 5 + round * 7 + n * 3) % 8);
            let job = keyed("storm", &key, KeyPolicy::Replace, "x");
            let expiry = Some(Expiry::ExpireAfter(Duration::from_millis(20).try_into().unwrap()));
            if (round + n) % 3 == 0 { NewJob { expiry, ..job } } else { job }
        });
        let request = EnqueueJobsRequest { jobs: jobs.collect(), request_key: String::new() };
        let enqueued = client.enqueue_jobs(request).await.expect("enqueue").into_inner().jobs;
        if round % 4 == seed % 4 {
            let ids = vec![enqueued[round % 6].id];
            client.cancel_jobs(CancelJobsRequest { ids, ..Default::default() }).await.expect("cancel");
        }
    }
}

/// Pulls and acks jobs until no job is left and the producers have stopped.
async fn work(grpc: String, produced: Arc<AtomicBool>) {
    let mut client = workers_client(&grpc).await;
    loop {
        let last = produced.load(Ordering::SeqCst);
        let pull = PullJobsRequest {
            task_types: vec!["storm".into()],
            max_jobs: 4,
            lease_duration: Some(Duration::from_secs(60).try_into().unwrap()),
            wait: Some(Duration::from_millis(100).try_into().unwrap()),
        };
        let jobs = client.pull_jobs(pull).await.expect("pull").into_inner().jobs;
        if jobs.is_empty() && last {
            return;
        }
        if !jobs.is_empty() {
            let outcomes = jobs.iter().map(ack).collect();
            client.settle_jobs(SettleJobsRequest { outcomes }).await.expect("settle");
        }
    }
}

#[tokio::test]
async fn concurrent_producers_and_workers_of_the_same_keys_lose_no_key_and_no_successor() {
    let (a, b) = TestBroker::pair().await;
    let produced = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> =
        [&a, &b, &a, &b].iter().map(|broker| tokio::spawn(work(broker.grpc.clone(), produced.clone()))).collect();
    let producers: Vec<_> = [&a, &b, &a, &b]
        .iter()
        .enumerate()
        .map(|(seed, broker)| tokio::spawn(produce(broker.grpc.clone(), seed)))
        .collect();
    for producer in producers {
        producer.await.expect("a producer");
    }
    produced.store(true, Ordering::SeqCst);
    for worker in workers {
        worker.await.expect("a worker");
    }
    let live =
        "SELECT id FROM howdah.ready UNION ALL SELECT id FROM howdah.leased UNION ALL SELECT id FROM howdah.scheduled
                UNION ALL SELECT id FROM howdah.waiting";
    let lost = format!("SELECT count(*) FROM howdah.job_key k WHERE k.job_id NOT IN ({live})");
    assert_eq!(a.count(&lost).await, 0, "keys that jobs hold which no longer exist");
    let forgotten = format!(
        "SELECT count(*) FROM howdah.waiting w WHERE (w.options ->> 'queued_behind')::bigint NOT IN ({live}) OR NOT w.options ? 'queued_behind'"
    );
    assert_eq!(a.count(&forgotten).await, 0, "waiting jobs whose predecessor no longer exists");
    // The other workers may have ended before the last jobs became ready. This worker runs the jobs that are left.
    let done = Arc::new(AtomicBool::new(false));
    let worker = tokio::spawn(work(b.grpc.clone(), done.clone()));
    for n in 0..8 {
        let key = format!("k{n}");
        let id = a.enqueue(keyed("storm", &key, KeyPolicy::Replace, "last")).await;
        a.until_state(id, JobState::Succeeded).await;
    }
    done.store(true, Ordering::SeqCst);
    worker.await.expect("the last worker");
    a.until("no held keys", "SELECT NOT EXISTS (SELECT FROM howdah.job_key)").await;
}

#[tokio::test]
async fn ten_thousand_jobs_of_one_request_with_one_key_become_one_job() {
    let broker = TestBroker::start().await;
    let mut jobs: Vec<_> = (0..10_000).map(|n| replacing(&n.to_string())).collect();
    let parent = broker.enqueue("parent").await;
    jobs[0].after = vec![parent];
    let enqueued = broker.enqueue_all(jobs).outcomes().await;
    assert!(enqueued.iter().all(|job| job.id == enqueued[0].id));
    // Only the parent and one job are stored. That job has the payload of the request's last entry and the dependency of its
    // first entry.
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job").await, 2);
    let job = broker.job(enqueued[0].id).await;
    assert_eq!((job.state(), &job.payload[..]), (JobState::Waiting, &b"9999"[..]));
}

#[tokio::test]
async fn of_several_large_payloads_for_one_key_the_last_one_is_kept() {
    let broker = TestBroker::start().await;
    let large = |n: u8| String::from_utf8(vec![b'a' + n; 5_000]).unwrap();
    let versions = (0..4).map(|n| new_job("index", large(n)).key("v").replace_if_newer(n.into()));
    let enqueued = broker.enqueue_all(versions).outcomes().await;
    assert_eq!(broker.job(enqueued[0].id).await.payload, large(3));
    assert_eq!(broker.count("SELECT count(*) FROM howdah.payload").await, 1);
    assert_eq!(broker.count("SELECT version FROM howdah.job_key").await, 3);
    let enqueued = broker.enqueue_all([replacing(&large(5)), replacing("small")]).outcomes().await;
    assert_eq!(broker.job(enqueued[1].id).await.payload, "small");
    assert_eq!(broker.count("SELECT count(*) FROM howdah.payload").await, 1);
}

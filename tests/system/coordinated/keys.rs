//! Tests keys: which job holds a key, and what an enqueue with the same key does.

use howdah_proto::v1::{EnqueueOutcome, JobState, KeyPolicy, NewJob};
use tonic::Code;

use crate::support::*;

fn keyed(policy: KeyPolicy, payload: &str) -> NewJob {
    new_job("index", payload).key("doc-7").policy(policy)
}

#[tokio::test]
async fn a_job_that_has_not_started_is_replaced_in_place() {
    let broker = TestBroker::start().await;
    let first = broker.enqueue_all([new_job("index", "before"), keyed(KeyPolicy::Keep, "old")]).await;
    let enqueued = broker.enqueue(keyed(KeyPolicy::Replace, "new")).outcome().await;
    assert_eq!((enqueued.id, enqueued.is_new, enqueued.outcome()), (first[1], false, EnqueueOutcome::Replaced));
    let mut worker = broker.worker("index").await;
    assert_eq!(worker.next().await.payload, "before");
    let job = worker.next().await;
    assert_eq!((job.id, &job.payload[..]), (first[1], &b"new"[..]));
}

#[tokio::test]
async fn a_large_payload_is_replaced_too() {
    let broker = TestBroker::start().await;
    let large = "x".repeat(5_000);
    let id = broker.enqueue(keyed(KeyPolicy::Keep, &large)).await;
    broker.enqueue(keyed(KeyPolicy::Replace, &large.replace('x', "y"))).await;
    assert_eq!(broker.job(id).await.payload, "y".repeat(5_000));
    broker.enqueue(keyed(KeyPolicy::Replace, "small")).await;
    assert_eq!(broker.job(id).await.payload, "small");
}

#[tokio::test]
async fn a_job_that_is_replaced_while_it_runs_is_run_once_more_afterwards() {
    let (a, b) = TestBroker::pair().await;
    let first = a.enqueue(keyed(KeyPolicy::Replace, "1")).await;
    let mut worker = a.worker("index").await;
    let running = worker.next().await;
    let second = b.enqueue(keyed(KeyPolicy::Replace, "2")).outcome().await;
    assert_eq!((second.is_new, second.outcome()), (true, EnqueueOutcome::Next));
    // The third enqueue replaces the second job, which waits for the running job.
    let third = a.enqueue(keyed(KeyPolicy::Replace, "3")).outcome().await;
    assert_eq!((third.id, third.outcome()), (second.id, EnqueueOutcome::Replaced));
    assert_eq!(b.state(second.id).await, JobState::Waiting);
    worker.ack(&running).await;
    let again = worker.next().await;
    assert_eq!((again.id, &again.payload[..]), (second.id, &b"3"[..]));
    worker.ack(&again).await;
    assert_eq!(a.state(first).await, JobState::Succeeded);
    assert_eq!(a.count("SELECT count(*) FROM howdah.job_key").await, 0);
}

#[tokio::test]
async fn a_successor_that_is_cancelled_leaves_the_key_to_the_next() {
    let broker = TestBroker::start().await;
    let first = broker.enqueue(keyed(KeyPolicy::Replace, "1")).await;
    let mut worker = broker.worker("index").await;
    let running = worker.next().await;
    let second = broker.enqueue(keyed(KeyPolicy::Replace, "2")).await;
    broker.cancel(&[second]).await;
    assert_eq!(broker.enqueue(keyed(KeyPolicy::Keep, "3")).await, first);
    worker.ack(&running).await;
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job_key").await, 0);
    assert!(broker.enqueue(keyed(KeyPolicy::Reject, "4")).outcome().await.is_new);
}

#[tokio::test]
async fn an_older_version_changes_nothing() {
    let broker = TestBroker::start().await;
    let version = |n, payload| new_job("index", payload).key("doc-7").replace_if_newer(n);
    let id = broker.enqueue(version(5, "five")).await;
    let enqueued = broker.enqueue_all([version(5, "again"), version(4, "four")]).outcomes().await;
    assert!(enqueued.iter().all(|job| job.id == id && job.outcome() == EnqueueOutcome::Stale));
    assert_eq!(broker.job(id).await.payload, "five");
    let enqueued = broker.enqueue(version(6, "six")).outcome().await;
    assert_eq!(enqueued.outcome(), EnqueueOutcome::Replaced);
    assert_eq!(broker.job(id).await.payload, "six");
}

#[tokio::test]
async fn versions_go_from_the_lowest_to_the_highest_number_of_64_bits() {
    let broker = TestBroker::start().await;
    let version = |n: i64| new_job("index", n.to_string()).key("doc-7").replace_if_newer(n);
    let id = broker.enqueue(version(i64::MIN)).await;
    let stale = async |n| {
        let enqueued = broker.enqueue(version(n)).outcome().await;
        assert_eq!((enqueued.id, enqueued.outcome()), (id, EnqueueOutcome::Stale), "{n}");
    };
    stale(i64::MIN).await;
    for n in [i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX] {
        let enqueued = broker.enqueue(version(n)).outcome().await;
        assert_eq!((enqueued.id, enqueued.outcome()), (id, EnqueueOutcome::Replaced), "{n}");
        assert_eq!(broker.job(id).await.payload, n.to_string());
    }
    for n in [i64::MAX, i64::MIN, 0] {
        stale(n).await;
    }
    // SQL functions accept the same key versions and refuse values outside the range.
    let sql = |key: &str, version: &str| {
        format!(
            "SELECT id, outcome::text FROM howdah.enqueue_batch('[{{\"task_type\": \"index\", \"key\": \"{key}\",
             \"key_policy\": \"replace_if_newer\", \"key_version\": {version}}}]'::jsonb)"
        )
    };
    let client = broker.database.connect().await;
    let enqueue = async |key, n: i64| {
        let row = client.query_one(&sql(key, &n.to_string()), &[]).await.expect("an outcome");
        row.get::<_, String>(1)
    };
    assert_eq!(enqueue("doc-7", i64::MAX).await, "stale");
    for (n, outcome) in [(i64::MIN, "new"), (i64::MIN, "stale"), (i64::MAX, "replaced"), (i64::MIN, "stale")] {
        assert_eq!(enqueue("doc-8", n).await, outcome, "{n}");
    }
    for outside in ["9223372036854775808", "-9223372036854775809", "1.5"] {
        let error = client.query(&sql("doc-9", outside), &[]).await.expect_err("a refused version");
        let message = error.as_db_error().expect("an error of Postgres").message().to_owned();
        let range = "-9223372036854775808 to 9223372036854775807 is allowed";
        assert_eq!(message, format!("jobs[0].key_version is {outside}; {range}"));
    }
}

#[tokio::test]
async fn a_request_with_a_rejected_key_stores_none_of_its_jobs() {
    let broker = TestBroker::start().await;
    broker.enqueue(keyed(KeyPolicy::Keep, "old")).await;
    let error = broker.enqueue_all([new_job("index", "x"), keyed(KeyPolicy::Reject, "new")]).refused().await;
    assert_eq!(error.code, Code::AlreadyExists);
    assert!(error.message.starts_with("jobs[1].key"), "{error}");
    assert_eq!(broker.count("SELECT count(*) FROM howdah.ready").await, 1);
    let free = keyed(KeyPolicy::Reject, "new").key("doc-8");
    assert!(broker.enqueue(free).outcome().await.is_new);
}

#[tokio::test]
async fn a_debounced_job_is_put_off_but_never_beyond_its_limit() {
    let broker = TestBroker::start().await;
    let debounced =
        |payload: &str, seconds| keyed(KeyPolicy::Debounce, payload).delay(secs(seconds)).key_debounce_limit(HOUR);
    let id = broker.enqueue(debounced("1", 600)).await;
    let first = broker.job(id).await.run_time.unwrap();
    let enqueued = broker.enqueue(debounced("2", 1200)).outcome().await;
    assert_eq!((enqueued.id, enqueued.outcome()), (id, EnqueueOutcome::Debounced));
    let job = broker.job(id).await;
    assert!(job.run_time.unwrap().seconds >= first.seconds + 590 && job.payload == "2", "{job:?}");
    broker.enqueue(debounced("3", 7200)).await;
    let last = broker.job(id).await;
    let limit = job.create_time.unwrap().seconds + 3600;
    assert!((limit - 1..=limit + 1).contains(&last.run_time.unwrap().seconds), "{last:?}");
}

#[tokio::test]
async fn a_key_may_be_held_for_a_time_whether_its_job_has_finished_or_not() {
    let broker = TestBroker::start().await;
    let held = |payload: &str| keyed(KeyPolicy::Keep, payload).key_hold(HOUR);
    let id = broker.enqueue(held("1")).await;
    let mut worker = broker.worker("index").await;
    let job = worker.next().await;
    worker.ack(&job).await;
    let enqueued = broker.enqueue(held("2")).outcome().await;
    assert_eq!((enqueued.id, enqueued.outcome()), (id, EnqueueOutcome::Kept));
    // An enqueue without `key_hold` also finds the job whose key is held.
    assert_eq!(broker.enqueue(keyed(KeyPolicy::Keep, "3")).await, id);
    broker.until("a held key", "UPDATE howdah.job_key SET held_until = now() RETURNING true").await;
    let next = broker.enqueue(keyed(KeyPolicy::Keep, "4")).outcome().await;
    assert!(next.is_new && next.id != id);
}

#[tokio::test]
async fn jobs_of_one_request_with_one_key_become_one() {
    let broker = TestBroker::start().await;
    let enqueued = broker.enqueue_all((0..5).map(|n| keyed(KeyPolicy::Replace, &n.to_string()))).outcomes().await;
    assert!(enqueued.iter().all(|job| job.id == enqueued[0].id));
    assert_eq!(enqueued.iter().filter(|job| job.is_new).count(), 1);
    assert_eq!(broker.job(enqueued[0].id).await.payload, "4");
}

#[tokio::test]
async fn contradicting_key_options_are_refused_with_the_name_of_the_field() {
    let broker = TestBroker::start().await;
    let cases = [
        ("key_policy", new_job("t", "").replace()),
        ("key_hold", new_job("t", "").key_hold(secs(5))),
        ("key_policy", keyed(KeyPolicy::Debounce, "")),
        ("key_version", keyed(KeyPolicy::ReplaceIfNewer, "")),
        ("key_debounce_limit", keyed(KeyPolicy::Replace, "").key_debounce_limit(secs(5))),
        ("key_policy", keyed(KeyPolicy::Keep, "").with(|job| job.key_policy = 99)),
    ];
    for (field, job) in cases {
        let error = broker.enqueue_all([new_job("t", ""), job]).refused().await;
        error.names(&format!("jobs[1].{field}"));
    }
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job").await, 0);
}

//! Tests every lock that an open transaction can hold: operations that do not need the locked rows or tables continue.

use std::{
    future::IntoFuture,
    time::{Duration, Instant},
};

use howdah_client::{NewJob, NewSchedule, Plan};
use howdah_core::config::Config;
use howdah_proto::v1::{CancelReason, JobState, KeyPolicy, LeasedJob, ReprioritizeJobsRequest, SettleStatus};
use tonic::Code;

use super::Open;
use crate::support::*;

/// Shortens the broker lease to 5 s, because a broker rescues jobs only after it has renewed its own row for that time.
pub(crate) fn rescues_soon(config: &mut Config) {
    (config.broker_lease, config.renew_interval) = (secs(5), secs(1));
}

/// Jobs in several states, which transactions of the tests lock.
pub(crate) struct Jobs {
    leased: Vec<LeasedJob>,
    ready: i64,
    _worker: Worker,
}

pub(crate) async fn jobs(broker: &TestBroker) -> Jobs {
    broker.enqueue("held").key("leased").await;
    broker.enqueue("held").limit_key("l").await;
    let mut worker = broker.worker("held").window(2).await;
    let leased = worker.take(2).await;
    let ready = broker.enqueue("held/ready").key("ready").fair_key("f").expire_after(HOUR).await;
    broker.enqueue("held").key("scheduled").delay(HOUR).await;
    broker.enqueue("held").after(&[leased[0].id]).await;
    broker.enqueue("held/ready").request_key("r").outcome().await;
    Jobs { leased, ready, _worker: worker }
}

/// Returns every table of the schema, including tables of later releases. A partitioned table stands for its
/// partitions.
pub(crate) async fn tables(broker: &TestBroker) -> Vec<String> {
    let sql = "SELECT c.oid::regclass::text FROM pg_class c
               WHERE c.relnamespace = 'howdah'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1";
    let rows = broker.database.connect().await.query(sql, &[]).await.expect("the tables");
    assert!(rows.len() > 20, "{}", rows.len());
    rows.iter().map(|row| row.get(0)).collect()
}

/// Returns statements that each acquire another lock.
pub(crate) async fn holders(broker: &TestBroker, jobs: &Jobs) -> Vec<String> {
    let tables = tables(broker).await;
    let (id, token) = (jobs.leased[0].id, jobs.leased[0].token);
    let ready = jobs.ready;
    let mut all = vec![
        "SELECT howdah.enqueue('held', 'x', key => 'theirs')".into(),
        "SELECT howdah.enqueue('held/ready', 'x', key => 'ready', key_policy => 'replace')".into(),
        "SELECT howdah.enqueue('held', 'x', key => 'leased', key_policy => 'replace')".into(),
        "SELECT howdah.enqueue('held', 'x', request_key => 'theirs')".into(),
        format!("SELECT howdah.complete({id}, {token})"),
        format!("SELECT howdah.fail({id}, {token}, 'no')"),
        format!("SELECT howdah.reprioritize({id}, 5), howdah.reprioritize({ready}, 5)"),
        format!("SELECT howdah.cancel({id}), howdah.cancel({ready})"),
        "INSERT INTO howdah.task_type (name) VALUES ('theirs')".into(),
        "SELECT howdah.enqueue('another-new-type', 'x')".into(),
    ];
    all.extend(tables.iter().map(|table| format!("SELECT FROM {table} FOR UPDATE")));
    // The operations do not write to these tables, so the tables can be locked as a whole.
    let unwritten = ["fair_share", "settings", "limit_change", "history_pruned"];
    all.extend(unwritten.map(|table| format!("LOCK TABLE howdah.{table} IN SHARE MODE")));
    // Takes the same locks as pg_dump.
    all.push(format!(
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; LOCK TABLE {} IN ACCESS SHARE MODE; TABLE howdah.ready",
        tables.join(", ")
    ));
    all
}

/// The time that each operation took.
#[derive(Default)]
pub(crate) struct Times(pub(crate) Vec<(&'static str, Duration)>);

impl Times {
    async fn measure<T>(&mut self, what: &'static str, operation: impl IntoFuture<Output = T>) -> T {
        let begun = Instant::now();
        let result = operation.await;
        self.0.push((what, begun.elapsed()));
        result
    }
}

/// Runs every operation of a broker, each on a separate task type, all concurrently. Times do not include the wait for the next
/// sweep.
pub(crate) async fn everything(broker: &TestBroker, name: &str) -> Times {
    let [plain, delayed, keyed, pulled, retried, moved, timed, planned, lost] =
        ["plain", "delayed", "keyed", "pulled", "retried", "moved", "timed", "planned", "lost"]
            .map(|part| format!("{name}/{part}"));
    let times = tokio::join!(
        streamed(broker, &plain),
        promoted(broker, &delayed),
        with_keys(broker, &keyed),
        without_stream(broker, &pulled),
        dead_and_retried(broker, &retried),
        reprioritized(broker, &moved),
        timed_out(broker, &timed),
        fired(broker, &planned),
        rescued(broker, &lost),
    );
    let (a, b, c, d, e, f, g, (), ()) = times;
    Times([a, b, c, d, e, f, g].into_iter().flat_map(|times| times.0).collect())
}

async fn streamed(broker: &TestBroker, name: &str) -> Times {
    let mut times = Times::default();
    let mut worker = times.measure("subscribe", broker.worker(name).window(10)).await;
    times.measure("enqueue", broker.enqueue(name)).await;
    times.measure("enqueue with a request key", broker.enqueue(name).request_key(name).outcome()).await;
    let jobs = times.measure("deliver", worker.take(2)).await;
    times.measure("ack", worker.ack(&jobs[0])).await;
    times.measure("nack", worker.nack(&jobs[1], "no").retry_after(HOUR)).await;
    assert_eq!(broker.state(jobs[1].id).await, JobState::Scheduled);
    times
}

async fn promoted(broker: &TestBroker, name: &str) -> Times {
    let mut times = Times::default();
    let mut worker = broker.worker(name).await;
    broker.enqueue(name).delay(millis(300)).await;
    let scheduled = times.measure("deliver after a delay", worker.next()).await;
    worker.ack(&scheduled).await;
    times
}

async fn with_keys(broker: &TestBroker, name: &str) -> Times {
    let mut times = Times::default();
    let kept = times.measure("enqueue with a key", broker.enqueue(name).key("k")).await;
    assert_eq!(broker.enqueue(name).key("k").await, kept);
    let replaced = times.measure("replace", broker.enqueue(name).key("k").policy(KeyPolicy::Replace)).await;
    assert_eq!(replaced, kept);
    let expired = broker.enqueue(name).expire_after(millis(300)).await;
    times.measure("expire", broker.until_state(expired, JobState::Expired)).await;
    assert_eq!(times.measure("cancel", broker.cancel(&[kept])).await, [kept]);
    times
}

async fn without_stream(broker: &TestBroker, name: &str) -> Times {
    let mut times = Times::default();
    let id = broker.enqueue(name).await;
    let jobs = times.measure("pull", broker.pull(name).lease(HOUR)).await;
    assert_eq!(jobs[0].id, id);
    let statuses = times.measure("settle without a stream", broker.settle(vec![ack(&jobs[0])])).await;
    assert_eq!(statuses, [SettleStatus::Ok]);
    times
}

async fn dead_and_retried(broker: &TestBroker, name: &str) -> Times {
    let mut times = Times::default();
    let id = broker.enqueue(name).max_attempts(1).await;
    let mut worker = broker.worker(name).await;
    let job = worker.next().await;
    worker.nack(&job, "no").await;
    assert_eq!(broker.state(id).await, JobState::Dead);
    assert_eq!(times.measure("retry", broker.retry(&[id])).await, [id]);
    let job = worker.next().await;
    worker.ack(&job).await;
    times
}

async fn reprioritized(broker: &TestBroker, name: &str) -> Times {
    let mut times = Times::default();
    let id = broker.enqueue(name).delay(HOUR).await;
    let request = ReprioritizeJobsRequest { ids: vec![id], priority: 7, ..Default::default() };
    let mut jobs = broker.jobs();
    let answer = times.measure("reprioritize", with_timeout("an answer", jobs.reprioritize_jobs(request))).await;
    assert_eq!(answer.expect("an answer").into_inner().reprioritized_ids, [id]);
    times
}

async fn timed_out(broker: &TestBroker, name: &str) -> Times {
    let mut times = Times::default();
    let mut worker = broker.worker(name).await;
    broker.enqueue(name).timeout(millis(500)).max_attempts(1).await;
    let job = worker.next().await;
    let cancelled = times.measure("time out", worker.cancelled()).await;
    assert_eq!((cancelled.id, cancelled.reason()), (job.id, CancelReason::Timeout));
    times
}

/// Creates a schedule, waits until it fires, and deletes it.
async fn fired(broker: &TestBroker, name: &str) {
    let client = broker.client().await;
    let mut worker = broker.worker(name).await;
    let schedule = NewSchedule::new(name, NewJob::new(name), Plan::every(secs(1)));
    with_timeout("a schedule", client.create_schedule(schedule)).await.expect("create");
    let job = worker.next().await;
    worker.ack(&job).await;
    assert!(with_timeout("an answer", client.delete_schedule(name)).await.expect("delete"));
}

/// Leases a job to a dead broker, and waits until `broker` has rescued the job and delivered it to a worker.
async fn rescued(broker: &TestBroker, name: &str) {
    let id = broker.enqueue(name).await;
    assert_eq!(broker.pull(name).lease(HOUR).await[0].id, id);
    // Assigns the lease to another broker, whose row has expired.
    let lose = "UPDATE howdah.leased SET deadline = NULL, broker_id = nextval('howdah.broker_id')";
    broker.sql(&format!("{lose} WHERE id = {id}")).await;
    let gone = "INSERT INTO howdah.broker (id, name, expires) SELECT broker_id, 'gone', now() FROM howdah.leased";
    broker.sql(&format!("{gone} WHERE id = {id}")).await;
    let mut worker = broker.worker(name).await;
    let job = worker.next().await;
    assert_eq!((job.id, job.attempt), (id, 2));
    worker.ack(&job).await;
}

#[tokio::test]
async fn while_any_one_lock_is_held_all_calls_that_do_not_need_it_succeed() {
    let broker = TestBroker::start_with(rescues_soon).await;
    let jobs = jobs(&broker).await;
    for (n, sql) in holders(&broker, &jobs).await.iter().enumerate() {
        eprintln!("held: {sql}");
        let open = Open::after(&broker.database, "psql", sql).await;
        everything(&broker, &format!("others/{n}")).await;
        open.roll_back().await;
    }
}

#[tokio::test]
async fn an_enqueue_into_a_locked_table_names_the_backend_and_succeeds_after_the_lock() {
    let broker = TestBroker::start_with(|c| c.database_timeout = secs(8)).await;
    broker.enqueue("t").await;
    let open = Open::after(&broker.database, "psql", "LOCK TABLE howdah.ready IN SHARE MODE").await;
    let refused = broker.enqueue("t").refused().await;
    assert_eq!(refused.code, Code::Aborted, "{refused}");
    let expected = format!("locked in howdah.ready by backend {} (\"psql\")", open.pid);
    assert!(refused.message.contains(&expected), "{refused}");
    open.commit().await;
    broker.enqueue("t").await;
}

/// Postgres locks all tables that a statement may write to when the statement begins. So a statement waits even if it would
/// write no row to the locked table.
#[tokio::test]
async fn a_locked_table_stops_each_statement_that_could_write_to_it_and_nothing_is_lost() {
    let broker = TestBroker::start_with(|c| c.database_timeout = secs(8)).await;
    let id = broker.enqueue("t").await;
    let mut worker = broker.worker("t").await;
    let job = worker.next().await;
    let open = Open::after(&broker.database, "psql", "LOCK TABLE howdah.request, howdah.history IN SHARE MODE").await;
    // The statement for a single job without a request key does not name the locked tables.
    broker.enqueue("other").await;
    for refused in
        [broker.enqueue("other").request_key("k").refused().await, broker.enqueue_all(["other"; 2]).refused().await]
    {
        assert_eq!(refused.code, Code::Aborted, "{refused}");
        let expected = format!("locked in howdah.request by backend {} (\"psql\")", open.pid);
        assert!(refused.message.contains(&expected), "{refused}");
    }
    assert_eq!(worker.ack(&job).status().await, SettleStatus::Unavailable);
    assert_eq!(broker.state(id).await, JobState::Leased);
    open.roll_back().await;
    broker.enqueue("other").request_key("k").outcome().await;
    worker.ack(&job).await;
    assert_eq!(broker.state(id).await, JobState::Succeeded);
}

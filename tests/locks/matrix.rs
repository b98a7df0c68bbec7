//! Whatever an open transaction holds, everything goes on that does not need it.

use std::{
    future::IntoFuture,
    time::{Duration, Instant},
};

use howdah_client::{Client, NewJob, NewSchedule, Plan};
use howdah_proto::v1::{CancelReason, JobState, KeyPolicy, LeasedJob};
use tonic::Code;

use super::Open;
use crate::support::*;

/// Jobs in several states, for transactions to lock.
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

/// Every table, whichever will come. A row of a table with partitions is locked in its partition.
async fn tables(broker: &TestBroker) -> Vec<String> {
    let sql = "SELECT c.oid::regclass::text FROM pg_class c
               WHERE c.relnamespace = 'howdah'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1";
    let rows = broker.database.connect().await.query(sql, &[]).await.expect("the tables");
    assert!(rows.len() > 20, "{}", rows.len());
    rows.iter().map(|row| row.get(0)).collect()
}

/// Each lets its transaction hold something.
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
    // No statement of the others writes to these.
    let unwritten = ["fair_share", "settings", "limit_change", "history_pruned", "schedule"];
    all.extend(unwritten.map(|table| format!("LOCK TABLE howdah.{table} IN SHARE MODE")));
    // As pg_dump does.
    all.push(format!(
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; LOCK TABLE {} IN ACCESS SHARE MODE; TABLE howdah.ready",
        tables.join(", ")
    ));
    all
}

/// How long each operation took.
#[derive(Default)]
pub(crate) struct Times(pub(crate) Vec<(&'static str, Duration)>);

impl Times {
    async fn of<T>(&mut self, what: &'static str, operation: impl IntoFuture<Output = T>) -> T {
        let begun = Instant::now();
        let result = operation.await;
        self.0.push((what, begun.elapsed()));
        result
    }
}

/// Everything that a broker does, with jobs of its own.
pub(crate) async fn everything(broker: &TestBroker, name: &str) -> Times {
    let mut times = Times::default();
    let (plain, keyed, timed) = (format!("{name}/plain"), format!("{name}/keyed"), format!("{name}/timed"));
    let mut worker = times.of("subscribe", broker.worker(&plain).window(10)).await;
    times.of("enqueue", broker.enqueue(&*plain)).await;
    times.of("enqueue with a request key", broker.enqueue(&*plain).request_key(name).outcome()).await;
    let jobs = times.of("deliver", worker.take(2)).await;
    times.of("ack", worker.ack(&jobs[0])).await;
    times.of("nack", worker.nack(&jobs[1], "no")).await;
    assert_eq!(broker.state(jobs[1].id).await, JobState::Scheduled);

    broker.enqueue(&*plain).delay(millis(300)).await;
    let scheduled = times.of("deliver after a delay", worker.next()).await;
    worker.ack(&scheduled).await;

    let kept = times.of("enqueue with a key", broker.enqueue(&*keyed).key("k")).await;
    assert_eq!(broker.enqueue(&*keyed).key("k").await, kept);
    let replaced = times.of("replace", broker.enqueue(&*keyed).key("k").policy(KeyPolicy::Replace)).await;
    assert_eq!(replaced, kept);
    let expired = broker.enqueue(&*keyed).expire_after(millis(300)).await;
    times.of("expire", broker.until_state(expired, JobState::Expired)).await;
    assert_eq!(times.of("cancel", broker.cancel(&[kept])).await, [kept]);

    let mut worker = broker.worker(&timed).await;
    broker.enqueue(&*timed).timeout(millis(500)).max_attempts(1).await;
    let job = worker.next().await;
    let cancelled = times.of("time out", worker.cancelled()).await;
    assert_eq!((cancelled.id, cancelled.reason()), (job.id, CancelReason::Timeout));
    times
}

#[tokio::test]
async fn whatever_is_held_everything_else_goes_on() {
    // The rows of brokers may be locked for as long as the test takes.
    let broker = TestBroker::start_with(|c| c.broker_lease = HOUR).await;
    let jobs = jobs(&broker).await;
    let client = soon("a connection", Client::connect(broker.grpc.clone())).await.expect("connect");
    for (n, sql) in holders(&broker, &jobs).await.iter().enumerate() {
        eprintln!("held: {sql}");
        let open = Open::after(&broker.database, "psql", sql).await;
        everything(&broker, &format!("others/{n}")).await;
        open.roll_back().await;
    }
    // A schedule fires while all rows of jobs that there are now are locked.
    let mut worker = broker.worker("planned").await;
    let schedule = NewSchedule::new("planned", NewJob::new("planned").payload("p"), Plan::every(secs(1)));
    soon("a schedule", client.create_schedule(schedule)).await.expect("create");
    let sql = "SELECT FROM howdah.ready FOR UPDATE; SELECT FROM howdah.job_key FOR UPDATE";
    let open = Open::after(&broker.database, "psql", sql).await;
    let job = worker.next().await;
    worker.ack(&job).await;
    open.roll_back().await;
}

#[tokio::test]
async fn who_needs_a_table_that_is_locked_is_told_so_and_goes_on_when_it_is_free() {
    let broker = TestBroker::start_with(|c| c.database_timeout = secs(2)).await;
    broker.enqueue("t").await;
    let open = Open::after(&broker.database, "psql", "LOCK TABLE howdah.ready IN SHARE MODE").await;
    let refused = broker.enqueue("t").refused().await;
    assert_eq!(refused.code, Code::Aborted, "{refused}");
    let expected = format!("locked in howdah.ready by backend {} (\"psql\")", open.pid);
    assert!(refused.message.contains(&expected), "{refused}");
    open.commit().await;
    broker.enqueue("t").await;
}

//! The twenty operations that tests try under each condition of the database.

use std::{panic::AssertUnwindSafe, pin::Pin, time::Duration};

use futures::FutureExt as _;
use howdah_proto::v1::{
    BulkOperation, BulkSpec, BulkState, CancelJobsRequest, ExtendJobsRequest, Extension, GetBulkRequest, GetJobRequest,
    GetStatsRequest, JobFilter, JobState, ListJobsRequest, Outcome, RetryJobsRequest, SettleJobsRequest, SettleResult,
    SettleStatus, StartBulkRequest, StatsPeriod, WaitJobsRequest,
};
use tonic::Status;

use super::arena::{Arena, key};
use crate::support::*;

/// Time after which an operation counts as waiting. Calls end earlier, because a broker answers them within
/// `database_timeout` (15 s).
const DEADLINE: Duration = Duration::from_secs(40);

/// Result of one operation under one database condition.
#[derive(Debug, Clone)]
pub(crate) enum Cell {
    Works,
    /// The operation was still running after `DEADLINE`, and no call had failed.
    Waits,
    /// Text of the error that the caller got.
    Refused(String),
}

type Attempt<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + 'a>>;

pub(crate) struct Operation {
    pub(crate) name: &'static str,
    run: for<'a> fn(&'a Arena) -> Attempt<'a>,
}

impl Operation {
    pub(crate) async fn try_once(&self, arena: &Arena, may_wait: bool) -> Cell {
        // An operation that must not wait gets more time, because otherwise a slow machine could make it count as waiting.
        let deadline = if may_wait { DEADLINE } else { PATIENCE };
        match tokio::time::timeout(deadline, (self.run)(arena)).await {
            Err(_) => Cell::Waits,
            Ok(Ok(())) => Cell::Works,
            Ok(Err(text)) => Cell::Refused(text),
        }
    }

    /// Repeats the operation until it works, after the condition has ended.
    pub(crate) async fn recover(&self, arena: &Arena) {
        eventually(self.name, async || (self.run)(arena).await.is_ok()).await;
    }
}

macro_rules! operations {
    ($($name:literal => $function:ident,)*) => { &[$(Operation { name: $name, run: |arena| Box::pin($function(arena)) },)*] };
}

pub(crate) const ALL: &[Operation] = operations![
    "enqueue" => enqueue,
    "enqueue with a key" => enqueue_keyed,
    "enqueue with a request key" => enqueue_requested,
    "enqueue by SQL" => enqueue_by_sql,
    "claim" => claim,
    "ack" => ack_one,
    "nack" => nack_one,
    "snooze" => snooze_one,
    "release" => release_one,
    "extend" => extend,
    "wait" => wait,
    "list" => list,
    "cancel" => cancel,
    "retry" => retry,
    "schedule" => schedule_fires,
    "statistics" => statistics,
    "bulk" => bulk,
    "retention" => retention,
    "second broker" => second_broker,
    "doctor" => doctor,
];

fn text(status: Status) -> String {
    Refusal::from(status).to_string()
}

fn require(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

async fn enqueue(arena: &Arena) -> Result<(), String> {
    arena.broker.enqueue("plain").answer().await.map(drop).map_err(text)
}

/// Enqueues jobs with keys that other jobs have held from the start. No new job is stored.
async fn enqueue_keyed(arena: &Arena) -> Result<(), String> {
    let jobs = (0..60).map(|n| new_job("keyed", "").key(&key(n * 50)));
    let answers = arena.broker.enqueue_all(jobs).answer().await.map_err(text)?;
    require(answers.iter().all(|job| !job.is_new), "a key that is held was given to another job")
}

async fn enqueue_requested(arena: &Arena) -> Result<(), String> {
    let answer = arena.broker.enqueue("requested").request_key("repeated").answer().await.map_err(text)?;
    require(answer.id == arena.ids["enqueue with a request key"], "a repeated request was stored again")
}

async fn enqueue_by_sql(arena: &Arena) -> Result<(), String> {
    let client = arena.broker.database.connect().await;
    let stored = client.batch_execute("SELECT howdah.enqueue('by-sql', 'x')").await;
    stored.map_err(|error| error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string))
}

async fn claim(arena: &Arena) -> Result<(), String> {
    let subscribing = arena.broker.worker("claimed").window(1);
    let mut worker = subscribing.answer().await.map_err(text)?;
    worker.next().await;
    Ok(())
}

async fn settle(arena: &Arena, outcome: Outcome) -> Result<(), String> {
    let request = SettleJobsRequest { outcomes: vec![outcome] };
    let answer = arena.broker.workers().settle_jobs(request).await.map_err(text)?;
    settled(answer.into_inner().results)
}

fn settled(results: Vec<SettleResult>) -> Result<(), String> {
    let result = results.into_iter().next().ok_or("no result")?;
    require(result.status() == SettleStatus::Ok, &format!("{:?}: {}", result.status(), result.message))
}

async fn ack_one(arena: &Arena) -> Result<(), String> {
    settle(arena, ack(arena.leased("ack"))).await
}

async fn nack_one(arena: &Arena) -> Result<(), String> {
    settle(arena, nack(arena.leased("nack"), "no route").retry_after(HOUR)).await
}

async fn snooze_one(arena: &Arena) -> Result<(), String> {
    settle(arena, snooze(arena.leased("snooze"), HOUR)).await
}

async fn release_one(arena: &Arena) -> Result<(), String> {
    settle(arena, release(arena.leased("release"))).await
}

async fn extend(arena: &Arena) -> Result<(), String> {
    let job = arena.leased("extend");
    let extension = Extension { id: job.id, token: job.token, duration: Some(wire(HOUR)) };
    let request = ExtendJobsRequest { extensions: vec![extension] };
    let answer = arena.broker.workers().extend_jobs(request).await.map_err(text)?;
    settled(answer.into_inner().results)
}

/// Waits for a leased job, acks the job, and expects the answer of the wait.
async fn wait(arena: &Arena) -> Result<(), String> {
    let job = arena.leased("wait");
    let request = WaitJobsRequest { ids: vec![job.id], timeout: Some(wire(PATIENCE)) };
    let waiting = async {
        let mut ends = arena.broker.jobs().wait_jobs(request).await?.into_inner();
        ends.message().await
    };
    let (ended, acked) = tokio::join!(waiting, settle(arena, ack(job)));
    acked?;
    require(ended.map_err(text)?.is_some(), "the caller that waits was not told")
}

async fn list(arena: &Arena) -> Result<(), String> {
    let mut jobs = arena.broker.jobs();
    let request = ListJobsRequest { task_type: "claimed".into(), ..Default::default() };
    let page = jobs.list_jobs(request).await.map_err(text)?.into_inner();
    require(!page.jobs.is_empty(), "no job is listed")?;
    let id = arena.leased("settled").id;
    jobs.get_job(GetJobRequest { id }).await.map(drop).map_err(text)
}

async fn is(arena: &Arena, id: i64, state: JobState) -> Result<(), String> {
    let answer = arena.broker.jobs().get_job(GetJobRequest { id }).await.map_err(text)?;
    let job = answer.into_inner().job.unwrap_or_default();
    require(job.state() == state, job.state().as_str_name())
}

async fn cancel(arena: &Arena) -> Result<(), String> {
    let ids = vec![arena.ids["cancel"]];
    arena
        .broker
        .jobs()
        .cancel_jobs(CancelJobsRequest { ids: ids.clone(), ..Default::default() })
        .await
        .map_err(text)?;
    is(arena, ids[0], JobState::Cancelled).await
}

async fn retry(arena: &Arena) -> Result<(), String> {
    let id = arena.ids["retry"];
    let filter = Some(JobFilter { ids: vec![id], ..Default::default() });
    arena.broker.jobs().retry_jobs(RetryJobsRequest { filter, ..Default::default() }).await.map_err(text)?;
    is(arena, id, JobState::Ready).await
}

/// Polls the database as the test's superuser, whom the database condition does not affect.
async fn until_in_database(arena: &Arena, sql: &str) -> Result<(), String> {
    arena.broker.until(sql, sql).await;
    Ok(())
}

async fn schedule_fires(arena: &Arena) -> Result<(), String> {
    let last = arena.broker.count("SELECT coalesce(max(id), 0) FROM howdah.job WHERE task_type = 'planned'").await;
    until_in_database(
        arena,
        &format!("SELECT count(*) > 0 FROM howdah.job WHERE task_type = 'planned' AND id > {last}"),
    )
    .await
}

/// Waits until the brokers have aggregated all events so far, and reads the sums with a call.
async fn statistics(arena: &Arena) -> Result<(), String> {
    let now = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    let now = arena.broker.count(now).await;
    let left = format!(
        "SELECT count(*) = 0 FROM howdah.statistics_change WHERE at <= 'epoch'::timestamptz + {now} * interval '1 us'"
    );
    until_in_database(arena, &left).await?;
    let request =
        GetStatsRequest { task_type: "claimed".into(), period: StatsPeriod::Day.into(), ..Default::default() };
    let stats = arena.broker.task_types().get_stats(request).await.map_err(text)?.into_inner().stats;
    require(stats.iter().any(|day| day.enqueued_count >= 10), "ten enqueued jobs are not in the statistics")
}

async fn bulk(arena: &Arena) -> Result<(), String> {
    let spec = BulkSpec { operation: BulkOperation::Cancel as i32, task_type: "bulk".into(), ..Default::default() };
    let request = StartBulkRequest { spec: Some(spec), ..Default::default() };
    let mut bulks = arena.broker.bulks();
    let started = bulks.start_bulk(request).await.map_err(text)?.into_inner().bulk.unwrap_or_default();
    eventually("the end of a bulk operation", async || {
        let answer = bulks.get_bulk(GetBulkRequest { id: started.id }).await;
        answer.is_ok_and(|answer| answer.into_inner().bulk.unwrap_or_default().state() == BulkState::Completed)
    })
    .await;
    until_in_database(arena, "SELECT count(*) = 0 FROM howdah.job WHERE task_type = 'bulk' AND state = 'ready'").await
}

/// Starts a second broker, which drops an old day partition of history.
async fn retention(arena: &Arena) -> Result<(), String> {
    let url = arena.url.clone();
    let start = TestBroker::on_with(&arena.broker.database, |config| config.database_url = url);
    let serve = async {
        // `TestBroker` panics if the broker cannot start; the text of the panic is the reason.
        let _broker = AssertUnwindSafe(start).catch_unwind().await.map_err(|refused| {
            refused.downcast::<String>().map_or_else(|_| "the start was refused".into(), |text| *text)
        })?;
        std::future::pending().await
    };
    let old = "SELECT to_regclass('howdah.' || to_char((now() AT TIME ZONE 'UTC')::date - 40, '\"history_\"YYYYMMDD')) IS NULL";
    tokio::select! {
        dropped = until_in_database(arena, old) => dropped,
        refused = serve => refused,
    }
}

async fn second_broker(arena: &Arena) -> Result<(), String> {
    let args = ["serve", "--database-url", &arena.url, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];
    let mut program = Program::noted(&args, &[]);
    let ready = program.stdout.next_line().await;
    let line = ready.ok().flatten();
    require(line.is_some_and(|line| line.contains("grpc=")), &program.last_words())
}

/// Runs `howdah doctor`, which must examine the database within its deadline, with or without findings.
async fn doctor(arena: &Arena) -> Result<(), String> {
    let (status, _, stderr) = run(&arena.doctor(), b"").await;
    require(matches!(status.code(), Some(0 | 1)), &stderr)
}

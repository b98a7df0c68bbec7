//! A worker program in any language drains waiting jobs, which shows the cost of its client per job.

use std::{
    os::unix::process::ExitStatusExt as _,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tokio::time::sleep;

use super::Bench;
use crate::{
    environment::{Database, WorkerProgram},
    error::{Error, Result},
    load::{Faults, Trial},
    report::{Bar, Row, megabytes, rounded},
};

const JOBS: u64 = 200_000;
/// Fraction of the jobs before the measurement, while programs start and JIT compilers warm up.
const WARM_UP: f64 = 0.25;
/// Concurrent handlers of the worker.
const CONCURRENCY: &str = "200";
/// Interval at which finished jobs are counted. The query costs Postgres time, but not the worker.
const POLL: Duration = Duration::from_millis(250);
/// The workload fails if the worker finishes no job for this long.
const STALLED: Duration = Duration::from_secs(60);

const DONE: &str = "SELECT count(*) FROM howdah.history h JOIN howdah.task_type t ON t.id = h.type_id \
                    WHERE t.name = $1 AND h.outcome = 'succeeded'";
const AGAIN: &str = "SELECT coalesce(sum(h.attempt - 1), 0)::bigint FROM howdah.history h \
                     JOIN howdah.task_type t ON t.id = h.type_id WHERE t.name = $1";

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let command = bench.args.client.command().unwrap_or_default().to_owned();
    let environment = bench.environment().await?;
    let (plan, jobs) = (bench.plan(1), bench.args.jobs(JOBS));
    let mut trial = Trial::new(&environment, plan.clone())?;
    trial.preload(jobs, &Bar::new("client: enqueueing", jobs as f64)).await?;
    drop(trial);
    environment.settle_down().await;

    let (database, task_type) = (environment.database()?, plan.types[0].as_str());
    let server = environment.brokers[0].as_str();
    let variables =
        [("HOWDAH_SERVER", server), ("HOWDAH_BENCH_TYPE", task_type), ("HOWDAH_BENCH_CONCURRENCY", CONCURRENCY)];
    let mut program = WorkerProgram::start(&command, &variables)?;
    let mut drain = Drain { database, task_type, bar: Bar::new("client", jobs as f64), done: 0 };
    drain.until(&mut program, (jobs as f64 * WARM_UP) as u64).await?;
    let (began, first, before) = (Instant::now(), drain.done, program.usage());
    drain.until(&mut program, jobs).await?;
    let (seconds, measured, used) = (began.elapsed().as_secs_f64(), jobs.saturating_sub(first), program.usage());
    let status = program.stop().await?;
    // SIGTERM kills the shell around the worker, so this status is also a success.
    if !status.success() && status.signal() != Some(Signal::TERM.as_raw()) {
        return Err(Error::Process(format!("the worker did not stop cleanly after SIGTERM: {status}")));
    }

    let mut row = Row::new("client", command, measured as f64 / seconds.max(1e-9));
    row.fact("jobs", measured);
    row.fact("seconds", rounded(seconds, 3));
    row.fact("client_cpu_us", rounded((used.cpu - before.cpu) * 1e6 / measured.max(1) as f64, 2));
    row.fact("client_rss_mb", rounded(megabytes(used.resident), 1));
    row.fact("payload", plan.payload);
    let duplicated = u64::try_from(database.number(AGAIN, &[&task_type]).await?).unwrap_or_default();
    row.faults = Faults { lost: jobs.saturating_sub(drain.done), duplicated, unexpected: 0 };
    bench.tear_down(environment).await?;
    Ok(vec![row])
}

/// Progress of the worker.
struct Drain<'a> {
    database: &'a Database,
    task_type: &'a str,
    bar: Bar,
    done: u64,
}

impl Drain<'_> {
    /// Waits until this many jobs have finished.
    async fn until(&mut self, program: &mut WorkerProgram, jobs: u64) -> Result<()> {
        let mut moved = Instant::now();
        loop {
            let done = u64::try_from(self.database.number(DONE, &[&self.task_type]).await?).unwrap_or_default();
            self.bar.at(done as f64);
            if done > self.done {
                (self.done, moved) = (done, Instant::now());
            }
            if done >= jobs {
                return Ok(());
            }
            program.check()?;
            if moved.elapsed() > STALLED {
                return Err(Error::Process(format!(
                    "the worker finished no job for {STALLED:?}; {done} of {jobs} jobs are finished"
                )));
            }
            sleep(POLL).await;
        }
    }
}

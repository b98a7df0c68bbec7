//! Measures the cost of one job per call at fixed rates, in an open loop. For comparison, each row has the floor: the time of two
//! plain commits per job at the same rate on the same Postgres.

use std::{
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use super::{Bench, steady::row};
use crate::{
    environment::{Database, Environment},
    error::{Error, Result},
    load::{Micros, Slow, Trial},
    report::{Bar, Row, rounded},
    yardstick::add_pair_times,
};

const SECONDS: u64 = 20;
/// Jobs per second.
const RATES: [u32; 5] = [10, 100, 1_000, 5_000, 20_000];

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut slowest = bench.args.slowest.as_deref().map(Slowest::create).transpose()?;
    let rates = if bench.args.rates.is_empty() { RATES.to_vec() } else { bench.args.rates.clone() };
    for rate in rates {
        rows.push(at_rate(bench, f64::from(rate), slowest.as_mut()).await?);
    }
    Ok(rows)
}

async fn at_rate(bench: &mut Bench, rate: f64, slowest: Option<&mut Slowest>) -> Result<Row> {
    let (case, time) = (format!("{rate}/s"), bench.args.time(SECONDS));
    let environment = bench.environment().await?;
    let plan = bench.plan(1);
    let mut trial = Trial::new(&environment, plan)?;
    trial.connect_workers().await?;
    let counter = counter(bench, &environment).await?;
    let bar = Bar::new(format!("rates {case}"), time.as_secs_f64());
    let warm_up = (time / 10).max(Duration::from_secs(1));
    let (began, seconds) = (Instant::now(), (warm_up + time).as_secs_f64());
    let sent = trial.call_at(rate, seconds).await?;
    trial.warm_up(warm_up).await?;
    if slowest.is_some() {
        trial.tally.keep_slowest();
    }
    let before = commits(counter.as_ref(), &environment).await?;
    let span = trial.measure((began + warm_up + time).saturating_duration_since(Instant::now()), &bar).await?;
    let after = commits(counter.as_ref(), &environment).await?;
    trial.finish().await?;
    trial.dismiss().await?;
    if let Some(slowest) = slowest {
        slowest.write(&case, trial.tally.take_slowest(), environment.database.as_ref()).await?;
    }
    let jobs = span.jobs.max(1) as f64;
    let switches = span.used.switches;
    let mut row = row(&trial, "rates", case, span);
    row.faults = trial.tally.faults(0);
    row.fact("rate", rate);
    row.fact("sent", sent);
    percentiles(&mut row, "answer", &trial.tally.answers.take());
    percentiles(&mut row, "caller", &trial.tally.delays.take());
    let commits = before.zip(after).map(|(before, after)| (after - before) as f64);
    row.known("commits_per_job", commits.map(|commits| rounded(commits / jobs, 2)));
    for (name, switches) in ["broker_switches_per_job", "postgres_switches_per_job"].into_iter().zip(switches) {
        row.known(name, switches.map(|switches| rounded(switches as f64 / jobs, 1)));
    }
    drop(trial);
    add_pair_times(&mut row, &environment, rate, time).await?;
    bench.tear_down(environment).await?;
    Ok(row)
}

/// Connects to another database of the same Postgres, to count the commits of the brokers' database without adding to them.
async fn counter(bench: &Bench, environment: &Environment) -> Result<Option<Database>> {
    match (&environment.database, bench.setting.database_url()) {
        (Some(_), Some(url)) => Database::connect(url).await.map(Some),
        _ => Ok(None),
    }
}

async fn commits(counter: Option<&Database>, environment: &Environment) -> Result<Option<i64>> {
    match (counter, &environment.database) {
        (Some(counter), Some(database)) => counter.commits(database.name()).await.map(Some),
        _ => Ok(None),
    }
}

/// Adds latency percentiles to a row.
fn percentiles(row: &mut Row, prefix: &str, micros: &Micros) {
    for (name, percentile) in [("p50", 50.0), ("p99", 99.0), ("p999", 99.9)] {
        row.fact(&format!("{prefix}_{name}_ms"), rounded(micros.value_at_percentile(percentile) as f64 / 1e3, 3));
    }
}

struct Slowest {
    file: File,
    path: PathBuf,
}

impl Slowest {
    fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(failed(path))?;
        let mut slowest = Self { file, path: path.to_owned() };
        slowest.line("case,job,due,began_ms,answered_ms,picked_up_ms")?;
        Ok(slowest)
    }

    async fn write(&mut self, case: &str, jobs: Vec<Slow>, database: Option<&Database>) -> Result<()> {
        for job in jobs {
            let began = match database {
                Some(database) => began(database, job.id).await?,
                None => None,
            };
            // The clocks of this program and of Postgres may differ slightly, so a start before the due time counts as 0.
            let began = began.map(|began| began.duration_since(job.due).unwrap_or_default());
            let due = humantime::format_rfc3339_micros(job.due);
            let [began, answered, picked_up] = [began, job.answered, Some(job.picked_up)]
                .map(|took| took.map(|took| format!("{:.3}", took.as_secs_f64() * 1e3)).unwrap_or_default());
            self.line(&format!("{case},{},{due},{began},{answered},{picked_up}", job.id))?;
        }
        Ok(())
    }

    fn line(&mut self, line: &str) -> Result<()> {
        writeln!(self.file, "{line}").map_err(failed(&self.path))
    }
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    move |error| Error::Output { operation: format!("cannot write {}", path.display()), error }
}

/// Returns when the transaction that stored the job began; `None` if the job has no history row.
async fn began(database: &Database, id: i64) -> Result<Option<SystemTime>> {
    let sql = "SELECT coalesce((SELECT (extract(epoch FROM created) * 1000000)::bigint FROM howdah.history WHERE id = $1), 0)";
    let micros = database.number(sql, &[&id]).await?;
    Ok((micros > 0).then(|| SystemTime::UNIX_EPOCH + Duration::from_micros(micros as u64)))
}

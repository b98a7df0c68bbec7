//! Measures the cost of tools for operators: the same cycle with traces, with open pages, and without aggregation of statistics.

use std::sync::Arc;

use super::{
    Bench,
    comparison::{Case, Comparison},
};
use crate::{
    environment::{Environment, Special},
    error::{Error, Result},
    load::{PageStats, Pages, Plan, Receiver},
    report::{Row, rounded},
};

const ROUNDS: u32 = 7;
/// Seconds per case, over all rounds.
const SECONDS: u64 = 35;
/// Fraction of jobs with exported spans.
const SAMPLED: f64 = 0.01;
/// Number of open pages.
const PAGES: usize = 20;
/// Number of changes per aggregation call.
const CHANGES: i64 = 20_000;

/// Activity during the cycle.
enum Beside {
    /// The default: statistics are counted and aggregated.
    Nothing,
    /// Statistics are counted but not aggregated.
    NoSums,
    Spans(Receiver),
    Pages {
        stats: Arc<PageStats>,
        open: Option<Pages>,
    },
    /// The default, with brokers started from the program of `--beside`.
    OtherProgram,
}

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let receiver = Receiver::start().await?;
    let set = vec![format!("otlp_endpoint={}", receiver.endpoint), format!("otlp_sample_ratio={SAMPLED}")];
    let mut all = vec![(Beside::Nothing, Special::default())];
    // Skip this case on an existing database: an interrupted run would leave aggregation stopped there.
    if bench.args.database_url.is_none() {
        all.push((Beside::NoSums, Special::default()));
    }
    all.push((Beside::Spans(receiver), Special::set(set)));
    all.push((Beside::Pages { stats: PageStats::new()?, open: None }, Special::default()));
    all.extend(bench.args.beside.clone().map(|program| (Beside::OtherProgram, Special::program(program))));
    let mut cases = Vec::new();
    for (case, special) in all {
        cases.push((case, bench.setting.special(bench.args.brokers as usize, special).await?));
    }
    let (plan, demand, time) = (bench.plan(1), bench.closed(), bench.args.time(SECONDS));
    let comparison = Comparison { workload: "operate", rounds: bench.args.rounds(ROUNDS), plan, demand, time };
    let rows = comparison.measure(&mut cases).await?;
    for (_, environment) in cases {
        bench.tear_down(environment).await?;
    }
    Ok(rows)
}

impl Case for Beside {
    fn name(&self) -> String {
        match self {
            Self::Nothing => "plain".into(),
            Self::NoSums => "no sums of statistics".into(),
            Self::Spans(_) => format!("spans of {} % of jobs", SAMPLED * 100.0),
            Self::Pages { .. } => format!("{PAGES} open pages"),
            Self::OtherProgram => "other program".into(),
        }
    }

    async fn begin(&mut self, plan: &Plan, environment: &Environment) -> Result<()> {
        match self {
            Self::NoSums => hold_sums(environment).await,
            Self::Pages { stats, open } => {
                let task_type = plan.types.first().map_or("", String::as_str);
                *open = Some(Pages::open(PAGES, environment.http(0)?, task_type, stats));
                Ok(())
            }
            Self::Nothing | Self::Spans(_) | Self::OtherProgram => Ok(()),
        }
    }

    async fn end(&mut self, environment: &Environment) -> Result<()> {
        match self {
            Self::NoSums => catch_up(environment).await,
            Self::Pages { open, .. } => {
                *open = None;
                Ok(())
            }
            Self::Nothing | Self::Spans(_) | Self::OtherProgram => Ok(()),
        }
    }

    fn describe(&self, row: &mut Row) -> Result<()> {
        match self {
            Self::Spans(receiver) => {
                row.fact("spans", receiver.spans());
                if receiver.spans() == 0 {
                    return Err(Error::Process("no span was received, so the result is meaningless".into()));
                }
            }
            Self::Pages { stats, .. } => {
                stats.check()?;
                row.fact("views", stats.views());
                row.fact("view_p50_ms", rounded(stats.percentile_ms(50.0), 2));
                row.fact("view_p99_ms", rounded(stats.percentile_ms(99.0), 2));
                row.fact("live_figures", stats.figures());
            }
            Self::Nothing | Self::NoSums | Self::OtherProgram => {}
        }
        Ok(())
    }
}

/// Stops the brokers' aggregation of statistics by setting the time of its last run to infinity.
async fn hold_sums(environment: &Environment) -> Result<()> {
    let held = "UPDATE howdah.statistics_sum SET summed = 'infinity'";
    environment.database()?.execute(held, "cannot stop the aggregation of statistics").await
}

/// Aggregates the accumulated statistics, so that no slice of another case pays for it.
async fn catch_up(environment: &Environment) -> Result<()> {
    let database = environment.database()?;
    let freed = "UPDATE howdah.statistics_sum SET summed = '-infinity'";
    database.execute(freed, "cannot restart the aggregation of statistics").await?;
    loop {
        let sum = "SELECT coalesce(howdah.sum_statistics($1::bigint::integer, interval '0'), -1)";
        // The function returns NULL while a broker aggregates. Retry until it returns a number.
        let taken = database.number(sum, &[&CHANGES]).await?;
        if (0..CHANGES).contains(&taken) {
            return Ok(());
        }
    }
}

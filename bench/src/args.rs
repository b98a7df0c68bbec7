//! The arguments of `howdah bench`.

// Doc comments on arguments are printed by `--help`, which would show backticks literally.
#![allow(clippy::doc_markdown)]

use std::{path::PathBuf, sync::LazyLock, time::Duration};

use clap::{ValueEnum, builder::PossibleValue};

use crate::load::{STAMP_BYTES, WorkerKind};

/// Arguments of `howdah bench`. Without `database_url` and `server`, the benchmark starts all it needs and removes it afterwards.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Workloads to measure, in this order; all: each of them [default: cycle drain rates single]
    #[arg(value_name = "NAME")]
    names: Vec<Name>,
    /// Measure each case for this many seconds [default: 60 for cycle, idle, backlog and brokers, 20 for others]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// Size of a payload, in bytes
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = payload)]
    pub(crate) payload: usize,
    /// Jobs per enqueue request
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) batch: u32,
    /// Number of streams that enqueue
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) producers: u32,
    /// Number of streams that run jobs
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) workers: u32,
    /// Maximum number of jobs that a worker holds at once
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) window: u32,
    /// Maximum number of unsettled jobs in a closed loop [default: half of the capacity of all windows, as when workers keep up]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) in_flight: Option<u32>,
    /// Number of brokers to start, for workloads that do not set it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) brokers: u32,
    /// Number of jobs to enqueue, for workloads with a fixed number [default: drain 500000, backlog 5000000, pinned 1000000 per
    /// round, tenants 500000 to take out per round]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    jobs: Option<u64>,
    /// Number of tenants, for the workload tenants
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) tenants: u32,
    /// Jobs per second, for the workload rates; repeatable [default: 10, 100, 1000, 5000, 20000]
    #[arg(long = "rate", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rates: Vec<u32>,
    /// Write the hundred slowest jobs of each case to this file as CSV, for the workload rates: the due time, and the ms from
    /// then until the enqueue transaction began, the call was answered, and the handler began
    #[arg(long, value_name = "FILE")]
    pub(crate) slowest: Option<PathBuf>,
    /// Workers
    #[arg(long, value_name = "CLIENT", default_value = "raw")]
    pub(crate) client: WorkerKind,
    /// Start the brokers from this howdah program, such as an older version, instead of the running one
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) program: Option<PathBuf>,
    /// Number of rounds, odd, for the workload tenants
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = odd)]
    pub(crate) rounds: u32,
    /// Seconds of each measurement of the yardstick (Postgres alone, without a broker) [default: 5, or --seconds if that is less]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3_600))]
    yardstick_seconds: Option<u64>,
    /// Configuration key for the brokers that are started, such as pool_size=4; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Use this Postgres instead of a private one, without TLS; the schema must be howdah. No environment variable sets it, so that
    /// a benchmark does not use a database by accident
    #[arg(long, value_name = "URL")]
    pub(crate) database_url: Option<String>,
    /// Print one JSON object per line after each workload and its yardstick, instead of a table at the end
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a self-contained HTML page with plots
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Workload {
    /// Producers and workers together, in a closed loop
    Cycle,
    /// Workers connect and run 500,000 jobs that are ready
    Drain,
    /// One job per call, from 1, 16 and 256 callers
    Single,
    /// One worker of the Rust client with 16, 64 and 256 handlers that take 1 ms each, while many jobs are ready
    Slots,
    /// Cost of brokers and Postgres while 0, 100 and 10,000 workers wait for jobs
    Idle,
    /// One job per call at 10 to 20,000/s, in an open loop, compared with two plain commits per job
    Rates,
    /// Cycle alone, then while 5 million jobs of the same type are ready
    Backlog,
    /// Cycle alone, then while a transaction holds a snapshot, which stops VACUUM: three rounds of a million jobs
    Pinned,
    /// 1, 2 and 3 brokers on one database
    Brokers,
    /// 1,000 tenants with fair keys, compared with one table per tenant on the same Postgres: only enqueues, only workers, and
    /// both at once; five rounds
    Tenants,
}

#[derive(Clone, Copy, Debug)]
enum Name {
    One(Workload),
    All,
}

impl ValueEnum for Name {
    fn value_variants<'a>() -> &'a [Self] {
        static NAMES: LazyLock<Vec<Name>> =
            LazyLock::new(|| Workload::value_variants().iter().copied().map(Name::One).chain([Name::All]).collect());
        &NAMES
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::One(workload) => workload.to_possible_value(),
            Self::All => Some(PossibleValue::new("all").help("Each of them")),
        }
    }
}

impl Args {
    /// Returns the workloads to run, in order.
    pub(crate) fn workloads(&self) -> Vec<Workload> {
        if self.names.is_empty() {
            return vec![Workload::Cycle, Workload::Drain, Workload::Rates, Workload::Single];
        }
        let named = self.names.iter().flat_map(|name| match name {
            Name::One(workload) => std::slice::from_ref(workload),
            Name::All => Workload::value_variants(),
        });
        named.copied().collect()
    }

    /// Duration of a case.
    pub(crate) fn time(&self, default: u64) -> Duration {
        Duration::from_secs(self.seconds.unwrap_or(default))
    }

    pub(crate) fn jobs(&self, default: u64) -> u64 {
        self.jobs.unwrap_or(default)
    }

    /// Duration of each yardstick measurement.
    pub(crate) fn yardstick_time(&self) -> Duration {
        let default = self.seconds.map_or(5, |seconds| seconds.min(5));
        Duration::from_secs(self.yardstick_seconds.unwrap_or(default))
    }
}

/// Parses the number of rounds, which must be odd to have a median round.
fn odd(text: &str) -> std::result::Result<u32, String> {
    match text.parse() {
        Ok(rounds) if rounds % 2 == 1 && rounds < 100 => Ok(rounds),
        _ => Err("must be an odd number from 1 to 99".into()),
    }
}

/// Parses the payload size, which must be at least the size of a stamp and at most the default limit of brokers.
fn payload(text: &str) -> std::result::Result<usize, String> {
    const MOST: usize = 1 << 20;
    let bytes: usize = text.parse().map_err(|_| "not a number".to_owned())?;
    if (STAMP_BYTES..=MOST).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(format!("{bytes} is not {STAMP_BYTES} to {MOST}: a payload begins with a time of {STAMP_BYTES} bytes"))
    }
}

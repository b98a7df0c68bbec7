//! The arguments of `howdah bench`.

// The comments on arguments are the text of `--help`, where backticks are in the way.
#![allow(clippy::doc_markdown)]

use std::{path::PathBuf, time::Duration};

use clap::ValueEnum;

use crate::{
    error::{Error, Result},
    load::{STAMP_BYTES, WorkerKind},
    workload::Workload,
};

/// The arguments of `howdah bench`. Without `database_url` and `server`, everything needed is started, and removed
/// afterwards.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Measure these workloads, in this order; all: each of them [default: cycle drain latency single]
    #[arg(value_name = "NAME")]
    names: Vec<Name>,
    /// Measure each case for this many seconds [default: 60 for cycle, backlog and brokers, 20 for others]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// Size of a payload, in bytes
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = payload)]
    pub(crate) payload: usize,
    /// Jobs per enqueue request
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) batch: u32,
    /// Streams that enqueue
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) producers: u32,
    /// Streams that run jobs
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) workers: u32,
    /// Most jobs that a worker holds at once
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) window: u32,
    /// Keep at most this many jobs unsettled in a closed loop [default: half of the capacity of all windows, as when
    /// workers keep up]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) in_flight: Option<u32>,
    /// Start this many brokers, for workloads that do not set a number
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) brokers: u32,
    /// Enqueue this many jobs, for workloads with a fixed number [default: drain 500000, backlog 5000000, pinned
    /// 1000000 per round, tenants 500000 to take out per round]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    jobs: Option<u64>,
    /// Tenants, for the workload tenants
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) tenants: u32,
    /// Jobs a second, for the workload rates; repeatable [default: 10, 100, 1000, 5000, 20000]
    #[arg(long = "rate", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rates: Vec<u32>,
    /// Write the slowest hundred jobs of each case to this file, as CSV, for the workload rates: when each was due, and in
    /// ms from then: when the transaction that stored it began, when its call was answered, when its handler began
    #[arg(long, value_name = "FILE")]
    pub(crate) slowest: Option<PathBuf>,
    /// The workers. raw: a stream written by hand, the least that a worker can cost; rust: the Rust client crate;
    /// else: a command, for the workload client. It gets HOWDAH_SERVER, HOWDAH_BENCH_TYPE and
    /// HOWDAH_BENCH_CONCURRENCY, acks each job of the type, and stops cleanly on SIGTERM
    #[arg(long, value_name = "raw|rust|CMD", default_value = "raw", value_parser = WorkerChoice::parse)]
    pub(crate) client: WorkerChoice,
    /// Start the brokers from this howdah program instead of this one, such as that of an older version
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) program: Option<PathBuf>,
    /// Measure brokers of this other howdah program too, for the workload operate
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) beside: Option<PathBuf>,
    /// Compare in this many rounds, an odd number, for workloads whose cases take turns [default: tenants 5, operate and
    /// stores 7, security 11]
    #[arg(long, value_name = "N", value_parser = odd)]
    rounds: Option<u32>,
    /// Measure the yardstick for this many seconds each time [default: 5, or --seconds if that is less]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3_600))]
    yardstick_seconds: Option<u64>,
    /// Set a key of the configuration of the brokers that are started, such as pool_size=4; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Use this Postgres instead of a private one, without TLS; the schema must be howdah. Only this flag counts, no
    /// variable, so that a benchmark does not find a database by accident
    #[arg(long, value_name = "URL")]
    pub(crate) database_url: Option<String>,
    /// Print one JSON object per line when a workload and the yardstick after it are done, instead of a table at the end
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page with plots; it needs no other files
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

/// Who works.
#[derive(Clone, Debug)]
pub(crate) enum WorkerChoice {
    Kind(WorkerKind),
    Command(String),
}

impl WorkerChoice {
    fn parse(text: &str) -> std::result::Result<Self, String> {
        match text.trim() {
            "" => Err("is empty".into()),
            "raw" => Ok(Self::Kind(WorkerKind::Raw)),
            "rust" => Ok(Self::Kind(WorkerKind::Rust)),
            command => Ok(Self::Command(command.to_owned())),
        }
    }

    /// What workers of this process are.
    pub(crate) fn kind(&self) -> WorkerKind {
        match self {
            Self::Kind(kind) => *kind,
            Self::Command(_) => WorkerKind::default(),
        }
    }

    /// The command, if it is one.
    pub(crate) fn command(&self) -> Option<&str> {
        match self {
            Self::Kind(_) => None,
            Self::Command(command) => Some(command),
        }
    }
}

/// A workload, or all of them.
#[derive(Clone, Copy, Debug)]
enum Name {
    One(Workload),
    All,
}

impl ValueEnum for Name {
    fn value_variants<'a>() -> &'a [Self] {
        use Workload as W;
        const ALL: [Name; 20] = [
            Name::One(W::Cycle),
            Name::One(W::Drain),
            Name::One(W::Latency),
            Name::One(W::Single),
            Name::One(W::Slots),
            Name::One(W::Idle),
            Name::One(W::Rates),
            Name::One(W::Backlog),
            Name::One(W::Pinned),
            Name::One(W::Streams),
            Name::One(W::Payload),
            Name::One(W::Types),
            Name::One(W::Brokers),
            Name::One(W::Security),
            Name::One(W::Flood),
            Name::One(W::Operate),
            Name::One(W::Tenants),
            Name::One(W::Stores),
            Name::One(W::Client),
            Name::All,
        ];
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        match self {
            Self::One(workload) => workload.to_possible_value(),
            Self::All => Some(clap::builder::PossibleValue::new("all").help("Each of them")),
        }
    }
}

impl Args {
    /// The workloads, in order.
    pub(crate) fn workloads(&self) -> Result<Vec<Workload>> {
        let named = self.names.iter().flat_map(|name| match name {
            Name::One(workload) => std::slice::from_ref(workload),
            // A program of somebody's is not among all of ours.
            Name::All => &Workload::value_variants()[..Workload::value_variants().len() - 1],
        });
        let named: Vec<Workload> = named.copied().collect();
        match self.client.command() {
            None if named.contains(&Workload::Client) => {
                Err(Error::Usage("client measures a worker of yours: name its program, --client CMD".into()))
            }
            None if named.is_empty() => Ok(vec![Workload::Cycle, Workload::Drain, Workload::Latency, Workload::Single]),
            None => Ok(named),
            Some(_) if named.iter().all(|workload| *workload == Workload::Client) => Ok(vec![Workload::Client]),
            Some(command) => Err(Error::Usage(format!(
                "--client {command:?} is neither raw nor rust, so it is a program: only the workload client runs one"
            ))),
        }
    }

    /// How long a case is measured.
    pub(crate) fn time(&self, default: u64) -> Duration {
        Duration::from_secs(self.seconds.unwrap_or(default))
    }

    /// How many jobs there are.
    pub(crate) fn jobs(&self, default: u64) -> u64 {
        self.jobs.unwrap_or(default)
    }

    /// How often the cases of a workload take turns.
    pub(crate) fn rounds(&self, default: u32) -> u32 {
        self.rounds.unwrap_or(default)
    }

    /// How long the yardstick is measured.
    pub(crate) fn yardstick_time(&self) -> Duration {
        let default = self.seconds.map_or(5, |seconds| seconds.min(5));
        Duration::from_secs(self.yardstick_seconds.unwrap_or(default))
    }
}

/// Checks the number of rounds: odd, so that one of them is the median.
fn odd(text: &str) -> std::result::Result<u32, String> {
    match text.parse() {
        Ok(rounds) if rounds % 2 == 1 && rounds < 100 => Ok(rounds),
        _ => Err("has to be an odd number from 1 to 99".into()),
    }
}

/// Checks the payload size: at least a stamp, at most a broker's default limit.
fn payload(text: &str) -> std::result::Result<usize, String> {
    const MOST: usize = 1 << 20;
    let bytes: usize = text.parse().map_err(|_| "not a number".to_owned())?;
    if (STAMP_BYTES..=MOST).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(format!("{bytes} is not in {STAMP_BYTES}..={MOST}: a payload carries a stamp of {STAMP_BYTES} bytes"))
    }
}

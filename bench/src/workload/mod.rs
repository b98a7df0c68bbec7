//! The workloads, one per file. Each takes the bench, creates environments and trials, and returns one row per case.

mod backlog;
mod brokers;
mod client;
mod comparison; // the base of workloads that compare cases
mod cycle;
mod drain;
mod flood;
mod idle;
mod latency;
mod operate;
mod payload;
mod pinned;
mod rates;
mod security;
mod single;
mod slots;
mod stores;
mod steady; // the base of most workloads
mod streams;
mod tenants;
mod types;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use clap::ValueEnum as _;

use crate::{
    args::Args,
    environment::{Environment, Setting},
    error::{Error, Result},
    load::{Demand, Plan},
    report::Row,
};

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Workload {
    /// Producers and workers together, in a closed loop
    Cycle,
    /// Workers drain 500,000 waiting jobs
    Drain,
    /// Jobs at fixed rates, in an open loop: 100/s, 1,000/s, and half the rate of cycle
    Latency,
    /// One job per call, from 1, 16 and 256 callers
    Single,
    /// A worker of the Rust client with 16, 64 and 256 one-millisecond handlers, on a full queue
    Slots,
    /// Cost of brokers and Postgres while 0, 100 and 10,000 workers wait for jobs
    Idle,
    /// One job per call at 10 to 20,000/s, in an open loop, compared with two plain commits per job
    Rates,
    /// Cycle alone, then with 5 million waiting jobs of the same type
    Backlog,
    /// Cycle alone, then with a held snapshot: three rounds of a million jobs
    Pinned,
    /// 1,000 and 10,000 connected workers, of which one in a hundred gets jobs
    Streams,
    /// Payloads of 64 B, 1 KiB and 64 KiB
    Payload,
    /// 1, 100 and 10,000 task types
    Types,
    /// 1, 2 and 3 brokers on one database
    Brokers,
    /// Cycle plain, with tokens, and with TLS and tokens, in turn: eleven rounds
    Security,
    /// A steady load alone, and during a flood by another principal: three rounds
    Flood,
    /// Cycle plain, without aggregation of statistics, with spans, and with 20 open pages, in turn: seven rounds
    Operate,
    /// 1,000 tenants with fair keys, compared with one table per tenant on the same Postgres: in, out, and both at once; five
    /// rounds
    Tenants,
    /// Cycle with one store, with two stores in separate Postgres servers, and with one of two stores unavailable, in turn: seven
    /// rounds
    Stores,
    /// A worker in any language drains 200,000 jobs; its command is set with --client
    Client,
}

impl Workload {
    /// Checks whether the workload can run with these brokers and this database.
    pub(crate) fn check(self, servers: &[String], database_url: Option<&str>) -> Result<()> {
        let (needs_database, brokers) = match self {
            Self::Backlog | Self::Pinned | Self::Tenants | Self::Client => (true, 1),
            Self::Brokers => (false, brokers::MOST),
            _ => (false, 1),
        };
        let name = self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        if self == Self::Stores && database_url.is_some() {
            return Err(Error::Usage(format!("{name} starts a Postgres for each store: leave out --database-url")));
        }
        if servers.is_empty() {
            return Ok(());
        }
        if matches!(self, Self::Security | Self::Flood | Self::Operate | Self::Stores) {
            return Err(Error::Usage(format!("{name} starts its own brokers: leave out --server")));
        }
        if needs_database && database_url.is_none() {
            return Err(Error::Usage(format!(
                "{name} queries the database: set --database-url in addition to --server"
            )));
        }
        if servers.len() < brokers {
            return Err(Error::Usage(format!("{name} needs {brokers} brokers: set --server for each")));
        }
        Ok(())
    }

    /// `max_connections` that the workload needs of Postgres, if more than the default.
    pub(crate) fn max_connections(self) -> Option<u32> {
        (self == Self::Tenants).then_some(tenants::MAX_CONNECTIONS)
    }

    /// Runs the workload. Returns one row per case.
    pub(crate) async fn run(self, bench: &mut Bench) -> Result<Vec<Row>> {
        match self {
            Self::Cycle => cycle::run(bench).await,
            Self::Drain => drain::run(bench).await,
            Self::Latency => latency::run(bench).await,
            Self::Single => single::run(bench).await,
            Self::Slots => slots::run(bench).await,
            Self::Idle => idle::run(bench).await,
            Self::Rates => rates::run(bench).await,
            Self::Backlog => backlog::run(bench).await,
            Self::Pinned => pinned::run(bench).await,
            Self::Streams => streams::run(bench).await,
            Self::Payload => payload::run(bench).await,
            Self::Types => types::run(bench).await,
            Self::Brokers => brokers::run(bench).await,
            Self::Security => security::run(bench).await,
            Self::Flood => flood::run(bench).await,
            Self::Operate => operate::run(bench).await,
            Self::Tenants => tenants::run(bench).await,
            Self::Stores => stores::run(bench).await,
            Self::Client => client::run(bench).await,
        }
    }
}

/// State shared by all workloads of a run.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) args: Args,
    pub(crate) setting: Setting,
    /// Rate of `cycle`, if it has run.
    cycle_rate: Option<f64>,
    /// Part of the names of task types, so that the names differ between runs on the same database.
    tag: u64,
    plans: u32,
}

impl Bench {
    pub(crate) fn new(args: Args, setting: Setting) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { args, setting, cycle_rate: None, tag: now.as_millis() as u64, plans: 0 }
    }

    /// Creates an environment with brokers; pass it to [`tear_down`](Self::tear_down) afterwards.
    async fn environment(&mut self) -> Result<Environment> {
        let given = self.setting.given_brokers();
        let brokers = if given > 0 { given } else { self.args.brokers as usize };
        self.setting.environment(brokers).await
    }

    async fn tear_down(&self, environment: Environment) -> Result<()> {
        self.setting.tear_down(environment).await
    }

    /// Creates a plan from the arguments, with new task types.
    fn plan(&mut self, types: usize) -> Plan {
        self.plans += 1;
        let name = format!("bench.{:x}.{}", self.tag, self.plans);
        let types = (0..types).map(|number| if number == 0 { name.clone() } else { format!("{name}.{number}") });
        let (workers, window) = (self.args.workers as usize, self.args.window as usize);
        Plan {
            types: types.collect::<Vec<_>>().into(),
            tenants: 0,
            payload: self.args.payload,
            batch: self.args.batch as usize,
            workers,
            window,
            types_per_worker: 1_000,
            one_type_a_request: false,
            in_flight: self.args.in_flight.map_or((workers * window).div_ceil(2), |jobs| jobs as usize),
            kind: self.args.client.kind(),
            handler: Duration::ZERO,
            streams_per_connection: 100,
        }
    }

    /// Creates a closed loop from the arguments.
    fn closed(&self) -> Demand {
        Demand::Closed { producers: self.args.producers as usize }
    }
}

/// First task type of a plan, as its only one.
fn only_type(plan: &Plan) -> Arc<[String]> {
    plan.types.iter().take(1).cloned().collect()
}

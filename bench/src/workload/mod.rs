//! The workloads, each in a file. Each takes the bench, creates environments and trials, and returns a row for each
//! case.

mod backlog;
mod brokers;
mod client;
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
mod turns; // the base of those that compare
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
    /// 500,000 jobs wait; workers drain them
    Drain,
    /// Jobs at fixed rates, in an open loop: 100/s, 1,000/s, half of what cycle does
    Latency,
    /// One job per call, from 1, 16 and 256 callers
    Single,
    /// A worker of the Rust client with 16, 64 and 256 handlers of a millisecond, on a full queue
    Slots,
    /// What brokers and Postgres cost while 0, 100 and 10,000 workers wait for jobs
    Idle,
    /// One job per call at 10 to 20,000/s, in an open loop, beside two commits a job
    Rates,
    /// Cycle alone, then on top of 5 million waiting jobs of the same type
    Backlog,
    /// Cycle alone, then while a snapshot is held: three rounds of a million jobs
    Pinned,
    /// 1,000 and 10,000 connected workers, of whom one in a hundred gets jobs
    Streams,
    /// Payloads of 64 B, 1 KiB and 64 KiB
    Payload,
    /// 1, 100 and 10,000 task types
    Types,
    /// 1, 2 and 3 brokers on one database
    Brokers,
    /// Cycle plain, with tokens, and with TLS and tokens, in turn: eleven rounds
    Security,
    /// A steady load alone, and beside a principal that floods: three rounds
    Flood,
    /// Cycle plain, without sums of statistics, with spans, and with 20 open pages, in turn: seven rounds
    Operate,
    /// 1,000 tenants with fair keys, beside the same Postgres with a table a tenant: in, out, both at once; five rounds
    Tenants,
    /// Cycle with one store, with two, each in a Postgres of its own, and with one of two away, in turn: seven rounds
    Stores,
    /// A worker in any language drains 200,000 jobs: name its program with --client
    Client,
}

impl Workload {
    /// Checks whether it can be measured with these brokers and this database.
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
            return Err(Error::Usage(format!("{name} queries the database: set its --database-url beside --server")));
        }
        if servers.len() < brokers {
            return Err(Error::Usage(format!("{name} needs {brokers} brokers: name them all with --server")));
        }
        Ok(())
    }

    /// How many connections Postgres has to allow, if more than usual.
    pub(crate) fn max_connections(self) -> Option<u32> {
        (self == Self::Tenants).then_some(tenants::MAX_CONNECTIONS)
    }

    /// Measures it. Returns a row for each case.
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

/// The state that all workloads of a run share.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) args: Args,
    pub(crate) setting: Setting,
    /// The rate of `cycle`, if it ran.
    cycle_rate: Option<f64>,
    /// Part of the names of task types, because a database that is not ours may have those of an earlier run.
    tag: u64,
    plans: u32,
}

impl Bench {
    pub(crate) fn new(args: Args, setting: Setting) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { args, setting, cycle_rate: None, tag: now.as_millis() as u64, plans: 0 }
    }

    /// Brokers on a database; [`leave`](Self::leave) it afterwards.
    async fn environment(&mut self) -> Result<Environment> {
        let given = self.setting.given_brokers();
        let brokers = if given > 0 { given } else { self.args.brokers as usize };
        self.setting.environment(brokers).await
    }

    async fn leave(&self, environment: Environment) -> Result<()> {
        self.setting.leave(environment).await
    }

    /// A plan by the arguments, with new task types.
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

    /// A closed loop by the arguments.
    fn closed(&self) -> Demand {
        Demand::Closed { producers: self.args.producers as usize }
    }
}

/// The only task type of a plan.
fn only_type(plan: &Plan) -> Arc<[String]> {
    plan.types.iter().take(1).cloned().collect()
}

//! The workloads. Each takes the bench, creates environments and trials, and returns one row per case.

mod backlog; // also pinned
mod drain; // also slots
mod idle;
mod rates;
mod steady; // cycle, single, brokers, and the base of others
mod tenants;

use std::time::{Duration, SystemTime};

use clap::ValueEnum as _;

use crate::{
    args::{Args, Workload},
    environment::{Environment, Setting},
    error::{Error, Result},
    load::{Demand, Plan},
    report::Row,
};

impl Workload {
    /// Checks whether the workload can run with these brokers and this database.
    pub(crate) fn check(self, servers: &[String], database_url: Option<&str>) -> Result<()> {
        let (needs_database, brokers) = match self {
            Self::Backlog | Self::Pinned | Self::Tenants => (true, 1),
            Self::Brokers => (false, steady::MOST_BROKERS),
            _ => (false, 1),
        };
        let name = self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        if servers.is_empty() {
            return Ok(());
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

    /// `max_connections` that Postgres needs for the workload, if more than the default.
    pub(crate) fn max_connections(self) -> Option<u32> {
        (self == Self::Tenants).then_some(tenants::MAX_CONNECTIONS)
    }

    /// Runs the workload. Returns one row per case.
    pub(crate) async fn run(self, bench: &mut Bench) -> Result<Vec<Row>> {
        match self {
            Self::Cycle => steady::cycle(bench).await,
            Self::Drain => drain::drain(bench).await,
            Self::Single => steady::single(bench).await,
            Self::Slots => drain::slots(bench).await,
            Self::Idle => idle::run(bench).await,
            Self::Rates => rates::run(bench).await,
            Self::Backlog => backlog::backlog(bench).await,
            Self::Pinned => backlog::pinned(bench).await,
            Self::Brokers => steady::brokers(bench).await,
            Self::Tenants => tenants::run(bench).await,
        }
    }
}

/// State shared by all workloads of a run.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) args: Args,
    pub(crate) setting: Setting,
    /// Part of task type names, taken from the clock, so that the names differ between runs on the same database.
    tag: u64,
    plans: u32,
}

impl Bench {
    pub(crate) fn new(args: Args, setting: Setting) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { args, setting, tag: now.as_millis() as u64, plans: 0 }
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
            in_flight: self.args.in_flight.map_or((workers * window).div_ceil(2), |jobs| jobs as usize),
            kind: self.args.client,
            handler: Duration::ZERO,
            streams_per_connection: 100,
        }
    }

    /// Creates a closed loop from the arguments.
    fn closed(&self) -> Demand {
        Demand::Closed { producers: self.args.producers as usize }
    }
}

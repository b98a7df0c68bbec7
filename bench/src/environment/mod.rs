//! The environment of a benchmark: a Postgres, broker processes, and measurements of both.

mod child; // a `howdah` process that we started
mod database; // statements and counters of Postgres
mod gauge; // memory and processor time of processes
mod guard; // tokens and TLS
mod pgbench; // Postgres's own load generator
mod stores; // of a broker that has several
mod setting; // a private Postgres, or one that runs already
mod worker_program; // a worker in any language

pub use self::child::Launcher;
pub(crate) use self::{
    database::Database,
    gauge::Mark,
    guard::Guard,
    pgbench::{Pgbench, Script},
    setting::{Setting, SettingOptions, Special},
    stores::StorePlace,
    worker_program::WorkerProgram,
};

use howdah_client::{Client, ClientBuilder};
use tempfile::NamedTempFile;

use self::{child::Child, guard::Files};
use crate::{
    error::{Error, Result},
    load::Flooder,
};

/// Brokers on a database, for one workload.
#[derive(Debug)]
pub(crate) struct Environment {
    /// `None`: only the brokers' addresses are known.
    pub(crate) database: Option<Database>,
    /// Those of the brokers' other stores.
    other_databases: Vec<Database>,
    /// Addresses for gRPC.
    pub(crate) brokers: Vec<String>,
    /// How they are connected to.
    client: ClientBuilder,
    children: Vec<Child>,
    /// What the brokers read, if they ask for something. It is removed with this.
    guard: Option<Files>,
    /// Where they read their stores, if they have several.
    stores: Option<NamedTempFile>,
    /// Whether we drop the database.
    is_private: bool,
    /// Whether Postgres runs on this machine, so that its processes can be measured.
    is_local: bool,
}

impl Environment {
    /// The database, for workloads that need it.
    pub(crate) fn database(&self) -> Result<&Database> {
        self.database
            .as_ref()
            .ok_or_else(|| Error::Usage("this workload queries the database: set --database-url".into()))
    }

    /// The databases of all stores that are there.
    pub(crate) fn databases(&self) -> impl Iterator<Item = &Database> {
        self.database.iter().chain(&self.other_databases)
    }

    /// A connection to the n-th broker, in turn.
    pub(crate) async fn client(&self, number: usize) -> Result<Client> {
        let broker = self.brokers[number % self.brokers.len()].as_str();
        Ok(self.client.clone().endpoint(broker).connect().await?)
    }

    /// How one connects that floods these brokers, if they know it.
    pub(crate) fn flooder(&self) -> Option<Flooder> {
        self.guard.as_ref()?.flooder().cloned()
    }

    /// Process ids of the brokers that we started.
    pub(crate) fn broker_pids(&self) -> impl Iterator<Item = u32> {
        self.children.iter().filter_map(Child::pid)
    }

    /// Where the n-th broker that we started serves HTTP, in turn.
    pub(crate) fn http(&self, number: usize) -> Result<&str> {
        let none = || Error::Process("no broker was started".into());
        self.children.get(number % self.children.len().max(1)).ok_or_else(none)?.field("http")
    }

    /// Whether whole tables may be emptied.
    pub(crate) fn is_private(&self) -> bool {
        self.is_private
    }

    /// Writes out dirty pages of earlier work, so that they do not slow down the next. Needs a superuser.
    pub(crate) async fn settle_down(&self) {
        for database in self.databases() {
            let _ = database.execute("CHECKPOINT", "CHECKPOINT").await;
        }
    }
}

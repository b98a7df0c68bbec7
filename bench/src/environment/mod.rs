//! The environment of a benchmark: a Postgres, broker processes, and their measurement.

mod child; // a `howdah` process that this one started
mod database; // statements and counters of Postgres
mod gauge; // memory and processor time of processes
mod guard; // tokens and TLS
mod pgbench; // Postgres's own load generator
mod stores; // configuration of brokers with several stores
mod setting; // a private or an existing Postgres
mod worker_program; // a worker in any language

pub use self::child::Launcher;
pub(crate) use self::{
    database::Database,
    gauge::Mark,
    guard::Guard,
    pgbench::{Pgbench, Script},
    setting::{Setting, SettingOptions, Special},
    stores::StoreServer,
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
    /// Database of the brokers; of the first store, if they have several. `None` with `--server` and without `--database-url`.
    pub(crate) database: Option<Database>,
    /// Databases of the brokers' other stores.
    other_databases: Vec<Database>,
    /// gRPC addresses.
    pub(crate) brokers: Vec<String>,
    /// Client settings for these brokers.
    client: ClientBuilder,
    children: Vec<Child>,
    /// Token and certificate files of the brokers, removed when dropped.
    guard: Option<Files>,
    /// Configuration file with the stores, if there are several.
    stores: Option<NamedTempFile>,
    /// Whether the database is dropped at the end.
    is_private: bool,
    /// Whether Postgres runs on this machine, so that its processes can be measured.
    is_local: bool,
}

impl Environment {
    /// The database. Fails if it is unknown.
    pub(crate) fn database(&self) -> Result<&Database> {
        self.database
            .as_ref()
            .ok_or_else(|| Error::Usage("this workload queries the database: set --database-url".into()))
    }

    /// Databases of all available stores.
    pub(crate) fn databases(&self) -> impl Iterator<Item = &Database> {
        self.database.iter().chain(&self.other_databases)
    }

    /// Connects to the n-th broker, modulo their number.
    pub(crate) async fn client(&self, number: usize) -> Result<Client> {
        let broker = self.brokers[number % self.brokers.len()].as_str();
        Ok(self.client.clone().endpoint(broker).connect().await?)
    }

    /// Settings of the flooding client, if the brokers have limits.
    pub(crate) fn flooder(&self) -> Option<Flooder> {
        self.guard.as_ref()?.flooder().cloned()
    }

    /// Process ids of the brokers that this process started.
    pub(crate) fn broker_pids(&self) -> impl Iterator<Item = u32> {
        self.children.iter().filter_map(Child::pid)
    }

    /// HTTP address of the n-th started broker, modulo their number.
    pub(crate) fn http(&self, number: usize) -> Result<&str> {
        let none = || Error::Process("no broker was started".into());
        self.children.get(number % self.children.len().max(1)).ok_or_else(none)?.field("http")
    }

    /// Whether the database is private, so that its tables may be truncated.
    pub(crate) fn is_private(&self) -> bool {
        self.is_private
    }

    /// Runs `CHECKPOINT`, so that dirty pages of earlier work do not slow down the next case. Needs a superuser.
    pub(crate) async fn settle_down(&self) {
        for database in self.databases() {
            let _ = database.execute("CHECKPOINT", "CHECKPOINT").await;
        }
    }
}

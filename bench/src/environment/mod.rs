//! The environment of a benchmark: a Postgres, broker processes, and their resource counters.

mod child; // a `howdah` process that this one started
mod database; // statements and counters of Postgres
mod gauge; // memory and processor time of processes
mod pgbench; // Postgres's own load generator
mod setting; // a private or an existing Postgres

pub use self::child::Launcher;
pub(crate) use self::{
    database::Database,
    gauge::Mark,
    pgbench::{Pgbench, Script},
    setting::{Setting, SettingOptions},
};

use howdah_client::{Client, ClientBuilder};

use self::child::Child;
use crate::error::{Error, Result};

/// Brokers on a database, for one workload.
#[derive(Debug)]
pub(crate) struct Environment {
    /// Database of the brokers. `None` if `--server` is given without `--database-url`.
    pub(crate) database: Option<Database>,
    /// gRPC addresses.
    pub(crate) brokers: Vec<String>,
    /// Client settings for these brokers.
    client: ClientBuilder,
    children: Vec<Child>,
    is_private: bool,
    /// Whether Postgres runs on this machine, so that its processes can be measured.
    is_local: bool,
}

impl Environment {
    /// Returns the database. Fails if `--server` was given without `--database-url`.
    pub(crate) fn database(&self) -> Result<&Database> {
        self.database
            .as_ref()
            .ok_or_else(|| Error::Usage("this workload queries the database: set --database-url".into()))
    }

    /// Connects to broker `number`, modulo the number of brokers.
    pub(crate) async fn client(&self, number: usize) -> Result<Client> {
        let broker = self.brokers[number % self.brokers.len()].as_str();
        Ok(self.client.clone().endpoint(broker).connect().await?)
    }

    /// Process ids of the brokers that this process started.
    pub(crate) fn broker_pids(&self) -> impl Iterator<Item = u32> {
        self.children.iter().filter_map(Child::pid)
    }

    /// Whether only this benchmark uses the database, so that its tables may be truncated.
    pub(crate) fn is_private(&self) -> bool {
        self.is_private
    }

    /// Runs `CHECKPOINT`, so that dirty pages of earlier work do not slow down the next case. Needs a superuser.
    pub(crate) async fn settle_down(&self) {
        if let Some(database) = &self.database {
            let _ = database.execute("CHECKPOINT", "CHECKPOINT").await;
        }
    }
}

//! Where it happens: a Postgres, brokers on it as processes of their own, and what can be read off both.

mod child; // a `howdah` that we started
mod database; // statements and counters of Postgres
mod gauge; // memory and processor time of processes
mod setting; // private, or what is running already

pub use self::child::Launcher;
pub(crate) use self::{
    database::Database,
    gauge::Mark,
    setting::{Setting, SettingOptions},
};

use howdah_client::Client;

use self::child::Child;
use crate::error::{Error, Result};

/// Brokers on a database, for one workload.
#[derive(Debug)]
pub(crate) struct Environment {
    /// `None`: only the brokers' addresses are known.
    pub(crate) database: Option<Database>,
    /// Addresses for gRPC.
    pub(crate) brokers: Vec<String>,
    children: Vec<Child>,
    /// The database is ours to drop.
    is_private: bool,
    /// Postgres runs on this machine, where its processes can be looked at.
    is_local: bool,
}

impl Environment {
    /// The database, for workloads that cannot do without.
    pub(crate) fn database(&self) -> Result<&Database> {
        self.database.as_ref().ok_or_else(|| Error::Usage("this workload looks at the database: give its URL".into()))
    }

    /// A connection to the n-th broker, counted round and round.
    pub(crate) async fn client(&self, number: usize) -> Result<Client> {
        Ok(Client::connect(self.brokers[number % self.brokers.len()].as_str()).await?)
    }

    /// Process ids of the brokers that we started.
    pub(crate) fn broker_pids(&self) -> impl Iterator<Item = u32> {
        self.children.iter().filter_map(Child::pid)
    }

    /// Whether whole tables may be emptied.
    pub(crate) fn is_private(&self) -> bool {
        self.is_private
    }

    /// Writes out what earlier work left dirty, so that it does not burden what comes next. Only a
    /// superuser may.
    pub(crate) async fn settle_down(&self) {
        if let Some(database) = &self.database {
            let _ = database.execute("CHECKPOINT", "CHECKPOINT").await;
        }
    }
}

//! The environment of a benchmark: a Postgres, broker processes, and their resource counters.

mod child; // a `howdah` process that this one started
mod database; // statements and counters of Postgres
mod gauge; // memory and processor time of processes
mod pgbench; // Postgres's own load generator

use std::path::PathBuf;

use howdah_client::{Client, ClientBuilder};

use self::child::Child;
use crate::error::{Error, Result};

pub use self::child::Launcher;
pub(crate) use self::{
    database::Database,
    gauge::{Mark, Used},
    pgbench::{Pgbench, Script},
};

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
    /// Whether only this benchmark uses the database, so that its tables may be truncated.
    pub(crate) is_private: bool,
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

    /// Runs `CHECKPOINT`, so that dirty pages of earlier work do not slow down the next case. Needs a superuser.
    pub(crate) async fn settle_down(&self) {
        if let Some(database) = &self.database {
            let _ = database.execute("CHECKPOINT", "CHECKPOINT").await;
        }
    }
}

#[derive(Debug)]
pub(crate) struct SettingOptions {
    /// Addresses of existing brokers.
    pub(crate) servers: Vec<String>,
    /// Settings for client connections to the brokers.
    pub(crate) client: ClientBuilder,
    /// URL of an existing Postgres.
    pub(crate) database_url: Option<String>,
    /// `max_connections` for a private Postgres, if the default is too low.
    pub(crate) max_connections: Option<u32>,
    /// `--set` flags for the brokers to start.
    pub(crate) set: Vec<String>,
    /// Program to start brokers from, instead of the running one.
    pub(crate) program: Option<PathBuf>,
    /// Starts `howdah` processes.
    pub(crate) launcher: Launcher,
}

/// The Postgres of a run, private or existing, and the options of its brokers.
#[derive(Debug)]
pub(crate) struct Setting {
    options: SettingOptions,
    /// The `howdah dev` process that runs the private Postgres. Its broker is not used.
    dev: Option<Child>,
    /// URL of a database that exists for the whole run. `None` if `--server` is given without `--database-url`.
    url: Option<String>,
    databases: u32,
}

/// Log filter of the private Postgres: errors, and downloads, because these take a while.
const LOG: &str = "error,howdah_cli::postgres::fetch=info";

impl Setting {
    /// Starts a private Postgres unless one was given.
    pub(crate) async fn start(options: SettingOptions) -> Result<Self> {
        let (mut dev, mut url) = (None, options.database_url.clone());
        if options.servers.is_empty() && url.is_none() {
            let (child, at) = private(options.launcher, options.max_connections).await?;
            (dev, url) = (Some(child), Some(at));
        }
        Ok(Self { options, dev, url, databases: 0 })
    }

    /// Number of existing brokers; 0 if the benchmark starts them.
    pub(crate) fn given_brokers(&self) -> usize {
        self.options.servers.len()
    }

    pub(crate) fn database_url(&self) -> Option<&str> {
        self.url.as_deref()
    }

    /// Creates an environment with brokers for a workload. With a private Postgres, it gets a new database, so that no workload
    /// sees the data of another.
    pub(crate) async fn environment(&mut self, brokers: usize) -> Result<Environment> {
        let is_private = self.dev.is_some();
        let url = self.database().await?;
        let given = self.options.servers.iter().take(brokers).cloned().collect();
        let mut environment = Environment {
            database: None,
            brokers: given,
            client: self.options.client.clone(),
            children: Vec::new(),
            is_private,
            is_local: is_private,
        };
        if let Some(url) = &url {
            if self.options.servers.is_empty() {
                for _ in 0..brokers {
                    let child = self.broker(url).await?;
                    environment.brokers.push(child.field("grpc")?.to_owned());
                    environment.children.push(child);
                }
            }
            environment.database = Some(Database::connect(url).await?);
        }
        environment.settle_down().await;
        Ok(environment)
    }

    /// Returns the URL of the database for a workload: a new database on a private Postgres, or else the existing database.
    /// `None` if `--server` is given without `--database-url`.
    async fn database(&mut self) -> Result<Option<String>> {
        let Some(url) = self.url.as_deref().filter(|_| self.dev.is_some()) else { return Ok(self.url.clone()) };
        let name = format!("bench_{}", self.databases + 1);
        let admin = Database::connect(url).await?;
        admin.execute(&format!("CREATE DATABASE {name}"), "CREATE DATABASE").await?;
        let url = on_database(url, &name)?;
        self.databases += 1;
        Ok(Some(url))
    }

    /// Stops the brokers of an environment, and drops its database if it is private.
    pub(crate) async fn tear_down(&self, environment: Environment) -> Result<()> {
        for child in environment.children {
            child.stop().await;
        }
        if let Some(database) = environment.database.filter(|_| environment.is_private) {
            let drop = format!("DROP DATABASE {} WITH (FORCE)", database.name());
            let admin = Database::connect(&on_database(database.url(), "postgres")?).await?;
            admin.execute(&drop, "DROP DATABASE").await?;
        }
        Ok(())
    }

    /// Stops the private Postgres.
    pub(crate) async fn stop(self) {
        if let Some(dev) = self.dev {
            dev.stop().await;
        }
    }

    async fn broker(&self, url: &str) -> Result<Child> {
        let mut args: Vec<String> =
            ["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log", "error"].map(str::to_owned).into();
        for set in &self.options.set {
            args.extend(["--set".to_owned(), set.clone()]);
        }
        // Pass the URL in the environment and not as a flag, because other users can see flags, and the URL may contain a
        // password.
        let env = [("HOWDAH_DATABASE_URL", url)];
        Child::start(self.options.launcher, self.options.program.as_deref(), &args, &env).await
    }
}

/// Starts a private Postgres. Returns its process, and the URL of its database.
async fn private(launcher: Launcher, max_connections: Option<u32>) -> Result<(Child, String)> {
    let args = ["dev", "--ephemeral", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log", LOG];
    let mut args: Vec<String> = args.map(str::to_owned).into();
    if let Some(most) = max_connections {
        args.extend(["--max-connections".to_owned(), most.to_string()]);
    }
    let child = Child::start(launcher, None, &args, &[]).await?;
    let url = child.field("postgres")?.to_owned();
    Ok((child, url))
}

/// Returns the URL of another database on the same Postgres.
fn on_database(url: &str, name: &str) -> Result<String> {
    let (path, options) = url.split_once('?').map_or((url, None), |(path, options)| (path, Some(options)));
    let (server, _) = path.rsplit_once('/').ok_or_else(|| {
        Error::Process("bug: the URL of the database in the ready line of howdah dev has no path".into())
    })?;
    Ok(options.map_or_else(|| format!("{server}/{name}"), |options| format!("{server}/{name}?{options}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_database_of_a_url_is_replaced() {
        let on = |url| on_database(url, "b").unwrap();
        assert_eq!(on("postgres://howdah@/howdah?host=%2Ftmp%2Fx"), "postgres://howdah@/b?host=%2Ftmp%2Fx");
        assert_eq!(on("postgres://u@h:1/a"), "postgres://u@h:1/b");
    }
}

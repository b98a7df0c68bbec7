//! The setting of a whole run: a private Postgres with a fresh database per workload, or an existing Postgres and existing brokers.

use std::path::PathBuf;

use howdah_client::ClientBuilder;
use tempfile::NamedTempFile;

use super::{
    Child, Database, Environment, Guard, Launcher,
    guard::Files,
    stores::{self, StoreServer},
};
use crate::error::{Error, Result};

#[derive(Debug)]
pub(crate) struct SettingOptions {
    /// Addresses of existing brokers.
    pub(crate) servers: Vec<String>,
    /// Client settings for the brokers.
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

/// Options of the brokers of one environment, in addition to those of the whole run.
#[derive(Debug, Default)]
pub(crate) struct Special {
    /// Tokens and TLS.
    guard: Option<Files>,
    /// Additional `--set` flags.
    set: Vec<String>,
    /// Program to start the brokers from, instead of the default.
    program: Option<PathBuf>,
    /// Stores of the brokers, if there are several.
    stores: &'static [StoreServer],
}

impl Special {
    /// Options for brokers with additional `--set` flags.
    pub(crate) fn set(set: Vec<String>) -> Self {
        Self { set, ..Self::default() }
    }

    /// Options for brokers that serve these stores.
    pub(crate) fn stores(stores: &'static [StoreServer]) -> Self {
        Self { stores, ..Self::default() }
    }

    /// Options for brokers that are started from another program.
    pub(crate) fn program(program: PathBuf) -> Self {
        Self { program: Some(program), ..Self::default() }
    }
}

/// A private or an existing Postgres.
#[derive(Debug)]
pub(crate) struct Setting {
    options: SettingOptions,
    /// The `howdah dev` process that runs the private Postgres. Its broker is not used.
    dev: Option<Child>,
    /// URL of a database that exists for the whole run. `None` with `--server` and without `--database-url`.
    url: Option<String>,
    /// A second private Postgres for brokers with several stores, with its URL.
    second: Option<(Child, String)>,
    databases: u32,
}

/// Log filter of the private Postgres: errors, and downloads, because these take a while.
const LOG: &str = "error,howdah_cli::postgres::fetch=info";

impl Setting {
    /// Starts a private Postgres unless one was given.
    pub(crate) async fn start(options: SettingOptions) -> Result<Self> {
        let (mut dev, mut url) = (None, options.database_url.clone());
        if options.servers.is_empty() && url.is_none() {
            let (child, at) = private(&options.launcher, options.max_connections).await?;
            (dev, url) = (Some(child), Some(at));
        }
        Ok(Self { options, dev, url, second: None, databases: 0 })
    }

    /// Number of existing brokers; 0 if the benchmark starts them.
    pub(crate) fn given_brokers(&self) -> usize {
        self.options.servers.len()
    }

    /// URL of a database that exists for the whole run. `None` with `--server` and without `--database-url`.
    pub(crate) fn database_url(&self) -> Option<&str> {
        self.url.as_deref()
    }

    /// URLs of both private Postgres servers, if started.
    pub(crate) fn both(&self) -> [Option<&str>; 2] {
        [self.url.as_deref(), self.second.as_ref().map(|(_, url)| url.as_str())]
    }

    /// Creates an environment with brokers for a workload. With a private Postgres, it gets a new database, so that no workload
    /// sees the data of another.
    pub(crate) async fn environment(&mut self, brokers: usize) -> Result<Environment> {
        self.special(brokers, Special::default()).await
    }

    /// Creates an environment whose brokers require tokens or TLS.
    pub(crate) async fn guarded(&mut self, brokers: usize, guard: Guard) -> Result<Environment> {
        let guard = Some(Files::make(guard, &self.options.launcher)?);
        self.special(brokers, Special { guard, ..Special::default() }).await
    }

    /// Creates an environment with special options.
    pub(crate) async fn special(&mut self, brokers: usize, special: Special) -> Result<Environment> {
        let is_private = self.dev.is_some();
        let mut urls = Vec::new();
        for server in if special.stores.is_empty() { &[StoreServer::First] } else { special.stores } {
            urls.push(self.store(*server).await?);
        }
        let stores = if special.stores.is_empty() { None } else { Some(stores::file(&urls)?) };
        let mut urls = urls.into_iter().flatten();
        let url = urls.next();
        let given = self.options.servers.iter().take(brokers).cloned().collect();
        let mut environment = Environment {
            database: None,
            other_databases: Vec::new(),
            brokers: given,
            client: special.guard.as_ref().map_or_else(|| self.options.client.clone(), Files::client),
            children: Vec::new(),
            guard: None,
            stores,
            is_private,
            is_local: is_private,
        };
        if let Some(url) = &url {
            if self.options.servers.is_empty() {
                for _ in 0..brokers {
                    let child = self.broker(url, environment.stores.as_ref(), &special).await?;
                    let grpc = child.field("grpc")?;
                    let address = special.guard.as_ref().map_or_else(|| grpc.to_owned(), |files| files.address(grpc));
                    environment.brokers.push(address);
                    environment.children.push(child);
                }
            }
            environment.database = Some(Database::connect(url).await?);
        }
        for url in urls {
            environment.other_databases.push(Database::connect(&url).await?);
        }
        environment.guard = special.guard;
        environment.settle_down().await;
        Ok(environment)
    }

    /// Creates a database for a store; `None` for an unavailable store.
    async fn store(&mut self, server: StoreServer) -> Result<Option<String>> {
        if server == StoreServer::Second && self.second.is_none() {
            self.second = Some(private(&self.options.launcher, self.options.max_connections).await?);
        }
        let [first, second] = self.both();
        let url = match server {
            StoreServer::First => first,
            StoreServer::Second => second,
            StoreServer::Unavailable => None,
        };
        let Some(url) = url.filter(|_| self.dev.is_some()) else { return Ok(url.map(str::to_owned)) };
        let name = format!("bench_{}", self.databases + 1);
        let admin = Database::connect(url).await?;
        admin.execute(&format!("CREATE DATABASE {name}"), "CREATE DATABASE").await?;
        let url = on_database(url, &name)?;
        self.databases += 1;
        Ok(Some(url))
    }

    /// Stops the brokers of an environment, and drops its databases if they are private.
    pub(crate) async fn tear_down(&self, environment: Environment) -> Result<()> {
        for child in environment.children {
            child.stop().await;
        }
        if environment.is_private {
            for database in environment.database.into_iter().chain(environment.other_databases) {
                let drop = format!("DROP DATABASE {} WITH (FORCE)", database.name());
                let admin = Database::connect(&on_database(database.url(), "postgres")?).await?;
                admin.execute(&drop, "DROP DATABASE").await?;
            }
        }
        Ok(())
    }

    /// Stops the private Postgres servers.
    pub(crate) async fn stop(self) {
        for dev in self.dev.into_iter().chain(self.second.map(|(dev, _)| dev)) {
            dev.stop().await;
        }
    }

    async fn broker(&self, url: &str, stores: Option<&NamedTempFile>, special: &Special) -> Result<Child> {
        let mut args: Vec<String> =
            ["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log", "error"].map(str::to_owned).into();
        for set in self.options.set.iter().chain(&special.set) {
            args.extend(["--set".to_owned(), set.clone()]);
        }
        args.extend(special.guard.as_ref().map(Files::args).unwrap_or_default());
        // Pass the URL by the environment and not as a flag, because other users can see flags, and the URL may contain a
        // password.
        let mut env = vec![("HOWDAH_DATABASE_URL", url)];
        if let Some(file) = stores {
            args.extend(["--config".to_owned(), file.path().display().to_string()]);
            env.clear();
        }
        let program = special.program.as_ref().or(self.options.program.as_ref());
        Child::start(&self.options.launcher, program.map(PathBuf::as_path), &args, &env).await
    }
}

/// Starts a private Postgres. Returns it with its URL.
async fn private(launcher: &Launcher, max_connections: Option<u32>) -> Result<(Child, String)> {
    let args = ["dev", "--ephemeral", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log", LOG];
    let mut args: Vec<String> = args.map(str::to_owned).into();
    if let Some(most) = max_connections {
        args.extend(["--max-connections".to_owned(), most.to_string()]);
    }
    let child = Child::start(launcher, None, &args, &[]).await?;
    let url = child.field("postgres")?.to_owned();
    Ok((child, url))
}

/// URL of another database on the same Postgres.
fn on_database(url: &str, name: &str) -> Result<String> {
    let (environment, options) =
        url.split_once('?').map_or((url, None), |(environment, options)| (environment, Some(options)));
    let (server, _) = environment.rsplit_once('/').ok_or_else(|| {
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

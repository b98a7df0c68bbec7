//! The setting of a whole run: a private Postgres with a fresh database for each workload, or a Postgres and brokers
//! that run already.

use std::path::PathBuf;

use howdah_client::ClientBuilder;
use tempfile::NamedTempFile;

use super::{
    Child, Database, Environment, Guard, Launcher,
    guard::Files,
    stores::{self, StorePlace},
};
use crate::error::{Error, Result};

/// The options of a setting.
#[derive(Debug)]
pub(crate) struct SettingOptions {
    /// Brokers that run already.
    pub(crate) servers: Vec<String>,
    /// How they are connected to.
    pub(crate) client: ClientBuilder,
    /// A Postgres that runs already.
    pub(crate) database_url: Option<String>,
    /// Connections that a private Postgres has to allow, if more than usual.
    pub(crate) max_connections: Option<u32>,
    /// The `--set` flags of the brokers that we start.
    pub(crate) set: Vec<String>,
    /// Another program than this one to start them from.
    pub(crate) program: Option<PathBuf>,
    /// How to start them.
    pub(crate) launcher: Launcher,
}

/// What the brokers of an environment have that others do not.
#[derive(Debug, Default)]
pub(crate) struct Special {
    /// Tokens and TLS.
    guard: Option<Files>,
    /// Settings, besides those of all brokers.
    set: Vec<String>,
    /// Another program than that of all brokers.
    program: Option<PathBuf>,
    /// Several stores.
    stores: &'static [StorePlace],
}

impl Special {
    /// More settings.
    pub(crate) fn set(set: Vec<String>) -> Self {
        Self { set, ..Self::default() }
    }

    /// These stores.
    pub(crate) fn stores(stores: &'static [StorePlace]) -> Self {
        Self { stores, ..Self::default() }
    }

    /// Another program than that of all brokers.
    pub(crate) fn program(program: PathBuf) -> Self {
        Self { program: Some(program), ..Self::default() }
    }
}

/// A private Postgres, or one that runs already.
#[derive(Debug)]
pub(crate) struct Setting {
    options: SettingOptions,
    /// The `howdah dev` of the private Postgres. Its own broker is not used.
    dev: Option<Child>,
    /// The URL of a database that always exists.
    url: Option<String>,
    /// A second private Postgres, for brokers with several stores, and its URL.
    second: Option<(Child, String)>,
    databases: u32,
}

/// The log filter of the private Postgres: errors, and downloads, which take a while.
const LOG: &str = "error,howdah_cli::postgres::fetch=info";

impl Setting {
    /// Starts a private Postgres, unless another one was given.
    pub(crate) async fn start(options: SettingOptions) -> Result<Self> {
        let (mut dev, mut url) = (None, options.database_url.clone());
        if options.servers.is_empty() && url.is_none() {
            let (child, at) = private(&options.launcher, options.max_connections).await?;
            (dev, url) = (Some(child), Some(at));
        }
        Ok(Self { options, dev, url, second: None, databases: 0 })
    }

    /// The number of brokers that were given; 0: they are started.
    pub(crate) fn given_brokers(&self) -> usize {
        self.options.servers.len()
    }

    /// The URL of Postgres, if it is known.
    pub(crate) fn database_url(&self) -> Option<&str> {
        self.url.as_deref()
    }

    /// The URLs of both private Postgres, as far as they were started.
    pub(crate) fn both(&self) -> [Option<&str>; 2] {
        [self.url.as_deref(), self.second.as_ref().map(|(_, url)| url.as_str())]
    }

    /// Brokers for a workload. If Postgres is ours, they get a database of their own, so that no workload meets the
    /// data of another one.
    pub(crate) async fn environment(&mut self, brokers: usize) -> Result<Environment> {
        self.special(brokers, Special::default()).await
    }

    /// The same, with brokers that ask for something.
    pub(crate) async fn guarded(&mut self, brokers: usize, guard: Guard) -> Result<Environment> {
        let guard = Some(Files::make(guard, &self.options.launcher)?);
        self.special(brokers, Special { guard, ..Special::default() }).await
    }

    /// The same, with brokers that have something special.
    pub(crate) async fn special(&mut self, brokers: usize, special: Special) -> Result<Environment> {
        let is_private = self.dev.is_some();
        let mut urls = Vec::new();
        for place in if special.stores.is_empty() { &[StorePlace::First] } else { special.stores } {
            urls.push(self.store(*place).await?);
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

    /// A database for a store; `None`: it is away.
    async fn store(&mut self, place: StorePlace) -> Result<Option<String>> {
        if place == StorePlace::Second && self.second.is_none() {
            self.second = Some(private(&self.options.launcher, self.options.max_connections).await?);
        }
        let [first, second] = self.both();
        let server = match place {
            StorePlace::First => first,
            StorePlace::Second => second,
            StorePlace::Away => None,
        };
        let Some(url) = server.filter(|_| self.dev.is_some()) else { return Ok(server.map(str::to_owned)) };
        let name = format!("bench_{}", self.databases + 1);
        let admin = Database::connect(url).await?;
        admin.execute(&format!("CREATE DATABASE {name}"), "CREATE DATABASE").await?;
        let url = on_database(url, &name)?;
        self.databases += 1;
        Ok(Some(url))
    }

    /// Stops the brokers that were started for a workload, and drops their databases.
    pub(crate) async fn leave(&self, environment: Environment) -> Result<()> {
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

    /// Stops Postgres, if it is ours.
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
        // Not as a flag: other users see those, and there may be a password in it.
        let mut env = vec![("HOWDAH_DATABASE_URL", url)];
        if let Some(file) = stores {
            args.extend(["--config".to_owned(), file.path().display().to_string()]);
            env.clear();
        }
        let program = special.program.as_ref().or(self.options.program.as_ref());
        Child::start(&self.options.launcher, program.map(PathBuf::as_path), &args, &env).await
    }
}

/// A private Postgres, and its URL.
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

/// The URL of another database of the same Postgres.
fn on_database(url: &str, name: &str) -> Result<String> {
    let (environment, options) =
        url.split_once('?').map_or((url, None), |(environment, options)| (environment, Some(options)));
    let (server, _) =
        environment.rsplit_once('/').ok_or_else(|| Error::Process("howdah dev gave no database URL".into()))?;
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

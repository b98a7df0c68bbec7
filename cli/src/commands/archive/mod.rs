//! `howdah archive`: finished jobs as files. These commands access the database and the files directly, without a broker.

mod forget;
mod list;
mod now;
mod off;
mod restore;
mod verify;

use std::time::Duration;

use howdah_core::config::Settings;
use howdah_engine::{archive::ArchiveError, store::Store};

use super::{
    broker_args::{ConfigArgs, DatabaseArgs, flag, with_database},
    context::{Global, start_logging},
    failure::Failure,
};

/// The commands for the archive.
#[derive(Debug, clap::Subcommand)]
#[allow(clippy::large_enum_variant)] // one value per process
pub(super) enum Command {
    Now(now::Args),
    List(list::Args),
    Verify(verify::Args),
    Restore(restore::Args),
    Forget(forget::Args),
    Off(off::Args),
}

pub(super) fn run(command: Command, global: &Global) -> Result<(), Failure> {
    match command {
        Command::Now(args) => now::run(&args, global),
        Command::List(args) => list::run(&args, global),
        Command::Verify(args) => verify::run(&args, global),
        Command::Restore(args) => restore::run(&args, global),
        Command::Forget(args) => forget::run(&args, global),
        Command::Off(args) => off::run(&args, global),
    }
}

/// Minimum interval between the progress messages of `forget` and `restore`.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Flags that locate the database and the configuration.
#[derive(Debug, clap::Args)]
pub(super) struct Where {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

impl Where {
    /// Opens the database. Must be called within the Tokio runtime.
    pub(super) fn open(&self, global: &Global, url: Option<&String>) -> Result<(Settings, Store), Failure> {
        let flags = self.database.flags().into_iter().chain(flag("archive_url", url)).collect();
        let settings = with_database(self.config.load(global, flags)?)?;
        start_logging(&settings.log, "warn")?;
        let store = Store::new(&settings.broker).map_err(Failure::usage)?;
        Ok((settings, store))
    }
}

/// The configured archive URL, or else the URL that brokers use.
async fn url_of(settings: &Settings, store: &Store) -> Result<String, Failure> {
    let url = match &settings.broker.archive_url {
        Some(url) => Some(url.clone()),
        None => store.archive_target().await?,
    };
    url.ok_or_else(|| {
        Failure::usage("no archive given: set --url, HOWDAH_ARCHIVE_URL, or archive_url in the configuration file")
    })
}

impl From<ArchiveError> for Failure {
    fn from(error: ArchiveError) -> Self {
        match error {
            ArchiveError::Store(error) => error.into(),
            other => Self::failed(other.to_string()),
        }
    }
}

impl From<howdah_archive::Error> for Failure {
    fn from(error: howdah_archive::Error) -> Self {
        Self::failed(error.to_string())
    }
}

//! `howdah archive`: finished jobs as files. These commands access the database and the files directly, without a broker.

mod days; // archives, lists and verifies days
mod forget;
mod restore;

use std::time::Duration;

use howdah_core::config::Settings;
use howdah_engine::{archive::ArchiveError, store::Store};

use super::{
    broker_args::{ConfigArgs, DatabaseArgs, flag, with_database},
    context::{Global, block_on, start_logging},
    failure::Failure,
    output::{Output, note},
};

subcommands! { |args, global|
    Now(days::NowArgs) => days::now(&args, global),
    List(days::ListArgs) => days::list(&args, global),
    Verify(days::VerifyArgs) => days::verify(&args, global),
    Restore(restore::Args) => restore::run(&args, global),
    Forget(forget::Args) => forget::run(&args, global),
    Off(OffArgs) => off(&args, global),
}

/// Let brokers drop days that are not archived
///
/// Once a broker has started with an archive_url, no broker of this database drops an unarchived day, whatever its own
/// settings. This command lifts that rule. Remove archive_url from all brokers first: a broker that starts with an archive_url
/// sets the rule again. Existing files stay.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct OffArgs {
    #[command(flatten)]
    at: Where,
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
        let store = Store::for_command(&settings.broker).map_err(Failure::usage)?;
        Ok((settings, store))
    }
}

fn off(args: &OffArgs, global: &Global) -> Result<(), Failure> {
    block_on(async {
        let (_, store) = args.at.open(global, None)?;
        let mut output = Output::new();
        match store.clear_archive_target(&global.actor("howdah archive off")).await? {
            Some(url) => output.line(format_args!("brokers may now drop days that are not archived in {url}"))?,
            None => note("the archive is already off"),
        }
        output.flush()
    })
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

//! `howdah store add`: adds a store to a configuration file, and makes the broker serve it.

use std::{fs, path::PathBuf};

use howdah_server::config::{self, Flag};

use super::reload;
use crate::{
    commands::{context::Global, failure::Failure, output::note},
    secrets,
};

/// Add a store to the broker's configuration file, and serve it without a restart
///
/// Appends a table [[stores]] to the file, and makes the broker at --server read its configuration again, as `howdah store reload`
/// does. The broker migrates the database and serves it at once. If several brokers serve the stores, change the file of each of
/// them.
///
/// With a NAME that contains `*`, each database of the server whose name matches is a store, also databases that are created later.
/// The connection string then names any database of the server.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah store add mail --database-url-file /run/secrets/mail_url --config /etc/howdah.toml
  howdah store add 'app_*' --database-url postgres://howdah@db.internal/postgres --config /etc/howdah.toml")]
pub(in crate::commands) struct Args {
    /// Name of the store: 1 to 63 characters of a-z 0-9 - _, beginning with a letter; or a pattern for database names with one `*`
    #[arg(value_name = "NAME")]
    name: String,
    /// Connection string of the database, without a password, because it is written to the file
    #[arg(
        long,
        value_name = "URL",
        required_unless_present = "database_url_file",
        conflicts_with = "database_url_file"
    )]
    database_url: Option<String>,
    /// File with the connection string, as the broker sees it
    #[arg(long, value_name = "FILE")]
    database_url_file: Option<String>,
    /// The configuration file of the broker
    #[arg(long, value_name = "FILE", env = "HOWDAH_CONFIG")]
    config: PathBuf,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let text = fs::read_to_string(&args.config).map_err(|error| of_file(args, &error.to_string()))?;
    let (key, value) = match (&args.database_url, &args.database_url_file) {
        (Some(url), _) => ("database_url", url),
        (None, Some(file)) => ("database_url_file", file),
        (None, None) => return Err(Failure::usage("no database given: use --database-url or --database-url-file")),
    };
    let table = format!("[[stores]]\nname = {}\n{key} = {}\n", quoted(&args.name), quoted(value));
    let text = format!("{}\n\n{table}", text.trim_end());
    // A second file is checked and then takes the place of the first one, so that the broker never reads an invalid file.
    let new = args.config.with_extension("new");
    fs::write(&new, &text).map_err(|error| of_file(args, &error.to_string()))?;
    let flags: Vec<Flag> = Vec::new();
    if let Err(error) = config::load(Some(new.clone()), &secrets::environment(), flags) {
        let _ = fs::remove_file(&new);
        return Err(Failure::usage(error.to_string()));
    }
    let renamed = fs::metadata(&args.config).and_then(|old| fs::set_permissions(&new, old.permissions()));
    renamed.and_then(|()| fs::rename(&new, &args.config)).map_err(|error| of_file(args, &error.to_string()))?;
    note(format!("added store {} to {}", args.name, args.config.display()));
    let reloaded = reload::run(&reload::Args { json: false }, global)?;
    if !args.name.contains('*') && !reloaded.added.contains(&args.name) {
        return Err(Failure::failed(format!(
            "the broker has not added store {}: it reads another configuration file than {}",
            args.name,
            args.config.display()
        )));
    }
    Ok(())
}

fn of_file(args: &Args, problem: &str) -> Failure {
    Failure::usage(format!("configuration file {}: {problem}", args.config.display()))
}

/// Returns the text as a string of TOML, which has the escapes of JSON.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

//! `howdah store add` and `reload`: makes the broker serve the stores that its configuration names.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, chown},
    path::PathBuf,
    process,
};

use howdah_client::proto::ReloadStoresResponse;
use howdah_core::config::{self, redacted};

use crate::{
    commands::{
        context::Global,
        failure::Failure,
        output::{self, note},
    },
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
pub(in crate::commands) struct AddArgs {
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

/// Add and remove stores of the broker, as its configuration now says
///
/// The broker at --server reads its configuration again: its file, and the file that HOWDAH_STORES_FILE names. The broker
/// migrates and serves new stores. A store that is no longer configured must be closed (`howdah store drain`) or unreachable.
/// Jobs that run are not affected. The first store, and the settings of the other stores, change only with a restart. SIGHUP
/// does the same.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah store reload
  howdah --server http://broker2.internal:7432 store reload")]
pub(in crate::commands) struct ReloadArgs {
    /// Print the result as one JSON object: the message ReloadStoresResponse
    #[arg(long)]
    json: bool,
}

pub(super) fn add(args: &AddArgs, global: &Global) -> Result<(), Failure> {
    let text = fs::read_to_string(&args.config).map_err(|error| of_file(args, &error.to_string()))?;
    let (key, value) = match (&args.database_url, &args.database_url_file) {
        (Some(url), _) => ("database_url", url),
        (None, Some(file)) => ("database_url_file", file),
        (None, None) => return Err(Failure::usage("no database given: use --database-url or --database-url-file")),
    };
    let table = format!("[[stores]]\nname = {}\n{key} = {}\n", quoted(&args.name), quoted(value));
    if args.database_url.as_ref().is_some_and(|url| redacted(url) != *url) {
        return Err(Failure::usage(
            "--database-url has a password: put the URL into a file, and use --database-url-file",
        ));
    }
    replace(args, &format!("{}\n\n{table}", text.trim_end()))?;
    let reloaded = match reload(&ReloadArgs { json: false }, global) {
        Ok(reloaded) => reloaded,
        Err(failure) => {
            replace(args, &text)?;
            return Err(failure);
        }
    };
    note(format!("added store {} to {}", args.name, args.config.display()));
    if !args.name.contains('*') && !reloaded.added.contains(&args.name) {
        return Err(Failure::failed(format!(
            "the broker has not added store {}: it reads another configuration file than {}",
            args.name,
            args.config.display()
        )));
    }
    Ok(())
}

/// Replaces the configuration file. The new text is checked first, so that a broker never reads an invalid file. The new file has
/// the owner and the permissions of the old one, because it may contain connection strings.
fn replace(args: &AddArgs, text: &str) -> Result<(), Failure> {
    let of = |error: io::Error| of_file(args, &error.to_string());
    let path = fs::canonicalize(&args.config).map_err(of)?;
    let old = fs::metadata(&path).map_err(of)?;
    let new = path.with_extension(format!("{}.new", process::id()));
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
    let replaced = written
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| chown(&new, Some(old.uid()), Some(old.gid())))
        .and_then(|()| fs::set_permissions(&new, old.permissions()))
        .map_err(of)
        .and_then(|()| {
            let loaded = config::load(Some(new.clone()), &secrets::environment(), Vec::new());
            loaded.map(drop).map_err(|error| Failure::usage(error.to_string()))
        })
        .and_then(|()| fs::rename(&new, &path).map_err(of));
    if replaced.is_err() {
        let _ = fs::remove_file(&new);
    }
    replaced
}

fn of_file(args: &AddArgs, problem: &str) -> Failure {
    Failure::usage(format!("configuration file {}: {problem}", args.config.display()))
}

/// Returns the text as a string of TOML, which has the escapes of JSON.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

pub(super) fn reload(args: &ReloadArgs, global: &Global) -> Result<ReloadStoresResponse, Failure> {
    global.with_client(async |client| {
        let reloaded = client.reload_stores().await?;
        if args.json {
            return output::message("ReloadStoresResponse", &reloaded).map(|()| reloaded);
        }
        for name in &reloaded.added {
            note(format!("added store {name}"));
        }
        for name in &reloaded.removed {
            note(format!("removed store {name}"));
        }
        for name in &reloaded.changed {
            note(format!("the settings of store {name} have changed; restart the broker to apply them"));
        }
        for name in &reloaded.skipped {
            note(format!("skipped {name}, which matches a pattern and cannot be served; `howdah store list` says why"));
        }
        if reloaded == ReloadStoresResponse::default() {
            note("the stores have not changed");
        }
        Ok(reloaded)
    })
}

//! Configuration flags. The configuration loader checks their values together with the values of files and variables.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, parser::ValueSource};
use howdah_core::config::{self, Flag, Setting, Settings};

use super::{context::Global, failure::Failure};
use crate::secrets;

/// Heading of these flags in the help.
const HEADING: &str = "Configuration";

/// Flags for the configuration file, and for single keys.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = HEADING)]
pub(super) struct ConfigArgs {
    /// Read this configuration file (TOML); `howdah config` prints an example [env: HOWDAH_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set a configuration key, such as limits.message_bytes='32 MiB'; repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
    #[command(flatten)]
    schema: SettingFlags<2>,
}

/// Flags for several stores, instead of the single database of `DatabaseArgs`.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = HEADING)]
pub(super) struct StoreArgs {
    /// Serve this store (name and Postgres URL) instead of --database-url; repeat the flag to serve several stores with one
    /// broker. In a file: [[stores]] [env: HOWDAH_STORES]
    ///
    /// Flags are visible to other users of this machine. Prefer the variable, with one store per line, or the variable with the
    /// suffix _FILE, which names a file.
    #[arg(long = "store", value_name = "NAME=URL")]
    stores: Vec<String>,
}

impl StoreArgs {
    pub(super) fn flags(&self) -> Vec<Flag> {
        self.stores.iter().filter_map(|pair| flag("store", Some(pair))).collect()
    }
}

/// Flags of a group of settings. The configuration provides their help texts, so that each setting is described only once.
#[derive(Clone, Debug, Default)]
pub(super) struct SettingFlags<const OF: usize>(Vec<Flag>);

/// Flags with the database URLs.
pub(super) type DatabaseArgs = SettingFlags<0>;
/// Flags of the common settings of a broker.
pub(super) type BrokerArgs = SettingFlags<1>;

/// Setting keys of each flag group, with the value name that the help shows. A switch has an empty value name.
const FLAGS: [&[(&str, &str)]; 3] = [
    &[("database_url", "URL"), ("listen_database_url", "URL")],
    &[
        ("listen", "ADDR"),
        ("http", "ADDR"),
        ("http_host", "NAME,..."),
        ("http_enqueue", ""),
        ("page", "MODE"),
        ("page_prefix", "PATH"),
        ("tls_cert", "FILE"),
        ("tls_key", "FILE"),
        ("tls_client_ca", "FILE"),
        ("tls_client_crl", "FILE"),
        ("insecure", ""),
        ("auth", "MODES"),
        ("auth_token_file", "FILE"),
        ("auth_jwt_file", "FILE"),
        ("otlp_endpoint", "URL"),
        ("name", "NAME"),
        ("pool_size", "N"),
        ("threads", "N"),
        ("wake", "MODE"),
        ("poll_interval", "DURATION"),
        ("session_grace", "DURATION"),
        ("drain_deadline", "DURATION"),
        ("history_days", "N"),
        ("audit_days", "N"),
        ("archive_url", "URL"),
        ("archive_payloads", "WHAT"),
        ("archive_share", "PART"),
        ("archive_days", "N"),
        ("max_attempts", "N"),
    ],
    &[("schema", "NAME")],
];

/// Addition to the help of a flag with a secret.
const SECRET: &str =
    "Other users of this machine can see flags: set the variable instead, or its variant with the suffix _FILE";

fn flag_of(setting: &Setting, value_name: &'static str) -> Arg {
    let default = setting.default_value().map(|default| format!(" [default: {default}]")).unwrap_or_default();
    let help = format!("{} [env: {}]{default}", setting.about, setting.variable());
    let arg = Arg::new(setting.key).long(setting.key.replace('_', "-")).help_heading(HEADING);
    let arg = match value_name {
        "" => arg.action(ArgAction::SetTrue).help(help.replace(" [default: false]", "")),
        value_name => arg.value_name(value_name).help(help.clone()),
    };
    if setting.is_secret() { arg.long_help(format!("{help}. {SECRET}")) } else { arg }
}

impl<const OF: usize> clap::Args for SettingFlags<OF> {
    fn augment_args(command: Command) -> Command {
        let known = FLAGS[OF].iter().filter_map(|(key, value_name)| Some((Setting::by_key(key)?, *value_name)));
        known.fold(command, |command, (setting, value_name)| command.arg(flag_of(setting, value_name)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<const OF: usize> clap::FromArgMatches for SettingFlags<OF> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for (key, value_name) in FLAGS[OF] {
            // Ignores environment variables: the value may be from the variable of a global client flag with the same id, such
            // as HOWDAH_TLS_CLIENT_CERT.
            let given = matches.value_source(key) == Some(ValueSource::CommandLine);
            let value = match *value_name {
                _ if !given => None,
                "" => matches.get_flag(key).then(|| "true".to_owned()),
                _ => matches.get_one::<String>(key).cloned(),
            };
            self.0.extend(flag(key, value.as_ref()));
        }
        Ok(())
    }
}

impl<const OF: usize> SettingFlags<OF> {
    pub(super) fn flags(&self) -> Vec<Flag> {
        self.0.clone()
    }
}

impl ConfigArgs {
    /// Loads the settings from the configuration flags, the extra `flags`, environment variables, the configuration file and
    /// the defaults.
    pub(super) fn load(&self, global: &Global, flags: Vec<Flag>) -> Result<Settings, Failure> {
        let (file, flags) = self.sources(global, flags);
        Ok(config::load(file, &secrets::environment(), flags)?)
    }

    /// Returns the configuration file, and all flags with the extra `flags`.
    pub(super) fn sources(&self, global: &Global, flags: Vec<Flag>) -> (Option<PathBuf>, Vec<Flag>) {
        let generic = self.set.iter().map(|(key, value)| Flag {
            flag: format!("--set {key}"),
            key: key.clone(),
            value: value.clone(),
        });
        let own = [flag("log", global.filter()), flag("log_format", global.log_format.as_ref())];
        let flags = generic.chain(own.into_iter().flatten()).chain(self.schema.flags()).chain(flags).collect();
        (self.config.clone(), flags)
    }
}

/// Returns the flag that sets a configuration key to `value`; `None` without a value.
pub(super) fn flag(key: &str, value: Option<&String>) -> Option<Flag> {
    let flag = format!("--{}", key.replace('_', "-"));
    value.map(|value| Flag { flag, key: key.into(), value: value.clone() })
}

/// Returns the settings, or an error unless they name exactly one database.
pub(super) fn with_database(settings: Settings) -> Result<Settings, Failure> {
    let settings = with_databases(settings)?;
    match &settings.broker.stores[..] {
        [] | [_] => Ok(settings),
        stores => {
            let names: Vec<&str> = stores.iter().map(|store| store.name.as_str()).collect();
            Err(Failure::usage(format!(
                "this command works on one store, and {} are configured ({}): select one with --database-url",
                stores.len(),
                names.join(", ")
            )))
        }
    }
}

/// Returns the settings, or an error if they name no database.
pub(super) fn with_databases(settings: Settings) -> Result<Settings, Failure> {
    if settings.broker.database_url.is_empty() && settings.broker.stores.is_empty() {
        return Err(Failure::usage(
            "no database given: set --database-url, HOWDAH_DATABASE_URL, HOWDAH_DATABASE_URL_FILE, or database_url in \
             the configuration file (`howdah dev` starts its own database)",
        ));
    }
    Ok(settings)
}

/// Parses `KEY=VALUE`.
pub(super) fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("an = is missing: write KEY=VALUE")?;
    if key.is_empty() {
        return Err("the KEY before = is missing: write KEY=VALUE".into());
    }
    Ok((key.trim().to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_of_a_setting_has_its_help_from_the_configuration() {
        for (key, value_name) in FLAGS.into_iter().flatten() {
            let setting = Setting::by_key(key).expect(key);
            let help = flag_of(setting, value_name).get_help().expect(key).to_string();
            assert!(help.starts_with(setting.about) && help.contains(&setting.variable()), "{key}: {help}");
        }
    }
}

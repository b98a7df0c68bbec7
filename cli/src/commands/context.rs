//! What all commands share: the global flags, the runtime, the client.

use std::{future::Future, path::PathBuf};

use clap::{ArgMatches, parser::ValueSource};
use howdah_client::{Client, ClientBuilder, Error};
use tokio::runtime::Builder;

use super::{failure::Failure, tls_args::TlsArgs};
use howdah_server::logging::{self, Format};

/// The address at which `howdah dev` listens.
const DEFAULT_SERVER: &str = "http://127.0.0.1:7432";
/// The variable with a token. There is no flag for it: other users of a machine see flags.
const TOKEN: &str = "HOWDAH_TOKEN";

/// Values of `--log-format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// Text, for people.
    Text,
    /// JSON, one object per line.
    Json,
}

impl From<LogFormat> for Format {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Auto => Self::Auto,
            LogFormat::Text => Self::Text,
            LogFormat::Json => Self::Json,
        }
    }
}

/// Flags of every command, before or after its name.
#[derive(Debug, clap::Args)]
pub(super) struct Global {
    /// Use the broker at this address, host:port or a URL; of several, separated by commas, use the first that answers
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "HOWDAH_SERVER",
        hide_env_values = true,
        default_value = DEFAULT_SERVER,
        help_heading = "Global options"
    )]
    pub(super) server: String,
    #[command(flatten)]
    pub(super) tls: TlsArgs,
    /// Send the token in this file, for a broker that asks for one; or set HOWDAH_TOKEN to the token itself
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "HOWDAH_TOKEN_FILE",
        hide_env_values = true,
        help_heading = "Global options"
    )]
    pub(super) token_file: Option<PathBuf>,
    /// Work on this store alone, of a broker that serves several; without it, the broker chooses, or all stores answer
    #[arg(long, global = true, value_name = "NAME", env = "HOWDAH_IN_STORE", help_heading = "Global options")]
    pub(super) in_store: Option<String>,
    /// Send the token over http:// to other machines too, where everybody on the way can read it
    #[arg(
        id = "insecure",
        long = "insecure",
        global = true,
        env = "HOWDAH_CLIENT_INSECURE",
        hide_env_values = true,
        value_parser = clap::builder::FalseyValueParser::new(),
        action = clap::ArgAction::SetTrue,
        help_heading = "Global options"
    )]
    insecure_token: bool,
    /// Whether --server was given as a flag: a benchmark must not find a broker through a variable.
    #[arg(skip)]
    pub(super) server_is_flag: bool,
    /// The reason of a command that changes something (`reason`).
    #[arg(skip)]
    pub(super) reason: Option<String>,
    /// Log from this level on: off, error, warn, info, debug, trace; or target=level pairs
    #[arg(
        long,
        global = true,
        value_name = "FILTER",
        env = "HOWDAH_LOG",
        hide_env_values = true,
        help_heading = "Global options"
    )]
    pub(super) log: Option<String>,
    /// Log to stderr in this format: text, json, or auto (text on a terminal, otherwise JSON)
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        env = "HOWDAH_LOG_FORMAT",
        hide_env_values = true,
        hide_possible_values = true,
        help_heading = "Global options"
    )]
    pub(super) log_format: Option<LogFormat>,
}

impl Global {
    /// Notes whether --server was given as a flag, and the reason of the command.
    pub(super) fn note_source(&mut self, matches: &ArgMatches) {
        // A global flag may stand before the command, or after it.
        let given = |matches: &ArgMatches| matches.value_source("server") == Some(ValueSource::CommandLine);
        self.reason = super::reason::given(matches);
        self.server_is_flag = given(matches) || matches.subcommand().is_some_and(|(_, matches)| given(matches));
    }

    /// Starts logging for a command that reads no configuration file.
    pub(super) fn start_logging(&self, default_filter: &str) -> Result<(), Failure> {
        let format = self.log_format.unwrap_or_default().into();
        start_logging(&logging::Options { filter: self.filter().cloned(), format }, default_filter)
    }

    /// The log filter, if one was given.
    pub(super) fn filter(&self) -> Option<&String> {
        self.log.as_ref().filter(|filter| !filter.is_empty())
    }

    /// A client of the broker. Fails if the broker does not answer.
    pub(super) async fn connect(&self) -> Result<Client, Failure> {
        self.connect_with(|builder| builder).await
    }

    /// The same, with settings of its own.
    pub(super) async fn connect_with(
        &self,
        settings: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Result<Client, Failure> {
        // An empty variable is one that is not set.
        let server = if self.server.is_empty() { DEFAULT_SERVER } else { &self.server };
        let client = settings(self.builder()?).endpoint(server).connect().await.map_err(failure)?;
        let client = match self.in_store.as_deref().filter(|name| !name.is_empty()) {
            Some(name) => client.in_store(name).map_err(failure)?,
            None => client,
        };
        Ok(self.reason.as_deref().map_or_else(|| client.clone(), |reason| client.with_reason(reason)))
    }

    /// A client that connects at its first call, with settings of its own: brokers may start later. Needs a runtime.
    pub(super) fn connect_lazy(
        &self,
        settings: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Result<Client, Failure> {
        let server = if self.server.is_empty() { DEFAULT_SERVER } else { &self.server };
        settings(self.builder()?).endpoint(server).connect_lazy().map_err(failure)
    }

    /// A client with the certificates and the token that were given, without an address.
    pub(super) fn builder(&self) -> Result<ClientBuilder, Failure> {
        self.with_credential(self.tls.apply(Client::builder())?).map_err(failure)
    }

    fn with_credential(&self, builder: ClientBuilder) -> howdah_client::Result<ClientBuilder> {
        let builder = if self.insecure_token { builder.insecure_token() } else { builder };
        if let Some(path) = self.token_file.as_ref().filter(|path| !path.as_os_str().is_empty()) {
            return builder.token_file(path);
        }
        match std::env::var(TOKEN) {
            Ok(token) if !token.is_empty() => builder.token(token.trim()),
            _ => Ok(builder),
        }
    }

    /// Runs a command that needs a client.
    pub(super) fn with_client<F>(&self, command: impl FnOnce(Client) -> F) -> Result<(), Failure>
    where
        F: Future<Output = Result<(), Failure>>,
    {
        self.start_logging("warn")?;
        block_on(async { command(self.connect().await?).await })
    }
}

/// An error of the client, with what the user gave.
fn failure(error: Error) -> Failure {
    let Error::Invalid { field, message } = error else { return error.into() };
    Failure::usage(match &field[..] {
        "tls" => message,
        "token" => format!("{TOKEN} {message}"),
        "token_file" => format!("--token-file {message}"),
        _ => format!("--server {message}"),
    })
}

/// Starts logging as the configuration says.
pub(super) fn start_logging(options: &logging::Options, default_filter: &str) -> Result<(), Failure> {
    logging::init(options, default_filter).map_err(|problem| Failure::usage(format!("--log {problem}")))
}

/// Runs a command's future. Blocking calls that go on afterwards, such as a read of a terminal, are abandoned.
pub(super) fn block_on(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    run_on(&mut Builder::new_multi_thread(), command)
}

/// The same for a broker, on so many threads.
pub(super) fn block_on_threads(
    threads: usize,
    command: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    run_on(Builder::new_multi_thread().worker_threads(threads), command)
}

fn run_on(runtime: &mut Builder, command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = runtime.enable_all().build().map_err(|error| Failure::failed(format!("cannot start: {error}")))?;
    let result = runtime.block_on(command);
    runtime.shutdown_background();
    result
}

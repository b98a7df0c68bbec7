//! Global flags, the Tokio runtime and the client, for all commands.

use std::{future::Future, path::PathBuf};

use clap::{ArgMatches, builder::FalseyValueParser, parser::ValueSource};
use howdah_client::{Client, ClientBuilder, Error};
use howdah_core::logging::{self, Format};
use howdah_engine::store::Actor;
use tokio::runtime::Builder;

use super::{failure::Failure, tls_args::TlsArgs};
use crate::secrets;

/// Default address of `howdah dev`.
const DEFAULT_SERVER: &str = "http://127.0.0.1:7432";
/// Environment variable with a token. It has no flag, because flags are visible to other users of the machine.
const TOKEN: &str = "HOWDAH_TOKEN";

/// Flags of all commands, accepted before and after the command name.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Global options")]
pub(super) struct Global {
    /// Use the broker at this address, host:port or a URL; with several addresses, separated by commas, use the first that
    /// answers
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "HOWDAH_SERVER",
        hide_env_values = true,
        default_value = DEFAULT_SERVER
    )]
    pub(super) server: String,
    #[command(flatten)]
    pub(super) tls: TlsArgs,
    /// Send the token in this file, for brokers that require tokens; alternatively set HOWDAH_TOKEN to the token itself
    #[arg(long, global = true, value_name = "FILE", env = "HOWDAH_TOKEN_FILE", hide_env_values = true)]
    pub(super) token_file: Option<PathBuf>,
    /// Use only this store, if the broker serves several [default: the broker selects the store, or all stores answer]
    #[arg(long, global = true, value_name = "NAME", env = "HOWDAH_IN_STORE")]
    pub(super) in_store: Option<String>,
    /// Send the token over http:// to other machines, although others on the network can read it
    #[arg(long, global = true, env = "HOWDAH_CLIENT_INSECURE", hide_env_values = true, value_parser = FalseyValueParser::new())]
    insecure: bool,
    /// Whether --server was given as a flag, not by its variable. `howdah bench` ignores the variable.
    #[arg(skip)]
    pub(super) server_is_flag: bool,
    /// Reason for a change, for the audit log (`reason`).
    #[arg(skip)]
    pub(super) reason: Option<String>,
    /// Minimum log level: off, error, warn, info, debug, trace; or target=level pairs
    #[arg(long, global = true, value_name = "FILTER", env = "HOWDAH_LOG", hide_env_values = true)]
    pub(super) log: Option<String>,
    /// Log to stderr in this format: text, json, or auto (text on a terminal, otherwise JSON)
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        env = "HOWDAH_LOG_FORMAT",
        hide_env_values = true,
        hide_possible_values = true,
        value_parser = ["auto", "text", "json"]
    )]
    pub(super) log_format: Option<String>,
}

impl Global {
    /// Records whether --server was given as a flag, and the value of --reason.
    pub(super) fn note_source(&mut self, matches: &ArgMatches) {
        // A global flag may stand before or after the command.
        let given = |matches: &ArgMatches| matches.value_source("server") == Some(ValueSource::CommandLine);
        self.reason = super::reason::given(matches);
        self.server_is_flag = given(matches) || matches.subcommand().is_some_and(|(_, matches)| given(matches));
    }

    /// Starts logging for a command that reads no configuration file.
    pub(super) fn start_logging(&self, default_filter: &str) -> Result<(), Failure> {
        let format = match self.log_format.as_deref() {
            Some("text") => Format::Text,
            Some("json") => Format::Json,
            _ => Format::Auto,
        };
        start_logging(&logging::Options { filter: self.filter().cloned(), format }, default_filter)
    }

    /// Log filter, if given.
    pub(super) fn filter(&self) -> Option<&String> {
        self.log.as_ref().filter(|filter| !filter.is_empty())
    }

    /// Connects to the broker. Fails if the broker does not answer.
    pub(super) async fn connect(&self) -> Result<Client, Failure> {
        self.connect_with(|builder| builder).await
    }

    /// Connects to the broker with additional client settings. Fails if the broker does not answer.
    pub(super) async fn connect_with(
        &self,
        settings: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Result<Client, Failure> {
        // An empty variable counts as unset.
        let server = if self.server.is_empty() { DEFAULT_SERVER } else { &self.server };
        let client = settings(self.builder()?).endpoint(server).connect().await.map_err(failure)?;
        let client = match self.in_store.as_deref().filter(|name| !name.is_empty()) {
            Some(name) => client.in_store(name).map_err(failure)?,
            None => client,
        };
        Ok(self.reason.as_deref().map_or_else(|| client.clone(), |reason| client.with_reason(reason)))
    }

    /// Creates a client with additional settings. It connects at its first call, so brokers may start later. Needs a Tokio
    /// runtime.
    pub(super) fn connect_lazy(
        &self,
        settings: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Result<Client, Failure> {
        let server = if self.server.is_empty() { DEFAULT_SERVER } else { &self.server };
        settings(self.builder()?).endpoint(server).connect_lazy().map_err(failure)
    }

    /// Creates a client builder with the given certificates and token, without an address.
    pub(super) fn builder(&self) -> Result<ClientBuilder, Failure> {
        self.with_credential(self.tls.apply(Client::builder())?).map_err(failure)
    }

    fn with_credential(&self, builder: ClientBuilder) -> howdah_client::Result<ClientBuilder> {
        let builder = if self.insecure { builder.insecure_token() } else { builder };
        if let Some(path) = self.token_file.as_ref().filter(|path| !path.as_os_str().is_empty()) {
            return builder.token_file(path);
        }
        match secrets::var(TOKEN) {
            Some(token) if !token.is_empty() => builder.token(token.trim()),
            _ => Ok(builder),
        }
    }

    /// The actor for the audit log of a command that writes to the database without a broker.
    pub(super) fn actor(&self, command: &'static str) -> Actor {
        Actor { reason: self.reason.clone().unwrap_or_default(), ..Actor::of_session(command) }
    }

    /// Runs a command that needs a client.
    pub(super) fn with_client<F, T>(&self, command: impl FnOnce(Client) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        self.start_logging("warn")?;
        block_on(async { command(self.connect().await?).await })
    }
}

/// Converts an error of the client, and names the flag or variable at fault.
fn failure(error: Error) -> Failure {
    let Error::Invalid { field, message } = error else { return error.into() };
    Failure::usage(match &field[..] {
        "tls" => message,
        "token" => format!("{TOKEN} {message}"),
        "token_file" => format!("--token-file {message}"),
        _ => format!("--server {message}"),
    })
}

/// Starts logging with the configured options.
pub(super) fn start_logging(options: &logging::Options, default_filter: &str) -> Result<(), Failure> {
    logging::init(options, default_filter).map_err(|problem| Failure::usage(format!("--log {problem}")))
}

/// Runs the future of a command. Abandons blocking calls that are still running at its end, such as a read from a terminal.
pub(super) fn block_on<T>(command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    run_on(&mut Builder::new_multi_thread(), command)
}

/// Runs the future of a broker on this many threads.
pub(super) fn block_on_threads<T>(
    threads: usize,
    command: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    run_on(Builder::new_multi_thread().worker_threads(threads), command)
}

fn run_on<T>(runtime: &mut Builder, command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = runtime.enable_all().build().map_err(|error| Failure::failed(format!("cannot start: {error}")))?;
    let result = runtime.block_on(command);
    runtime.shutdown_background();
    result
}

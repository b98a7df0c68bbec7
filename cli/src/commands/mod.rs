//! Command line. Each command has a file with its arguments and a function `run`.

// Comments on arguments are the text of `--help`, in which most backticks would be noise.
#![allow(clippy::doc_markdown)]

/// Defines the enum `Command` of subcommands, and the function `run`, which runs one. Each line has the name of a subcommand, its
/// arguments and its call. `|args, global|` names the parameters of the calls.
macro_rules! subcommands {
    (|$args:ident, $global:ident| $($(#[$meta:meta])* $name:ident($type:ty) => $call:expr,)*) => {
        #[derive(Debug, clap::Subcommand)]
        #[allow(clippy::large_enum_variant)] // only one value exists
        pub(in crate::commands) enum Command {
            $($(#[$meta])* $name($type),)*
        }

        pub(in crate::commands) fn run(command: Command, $global: &Global) -> Result<(), Failure> {
            match command {
                $(Command::$name($args) => $call,)*
            }
        }
    };
}

mod broker_args; // configuration flags
mod conditions; // flags for conditions on jobs
mod context; // global flags, logging, runtime, client
mod failure; // exit codes and error messages
mod field_errors; // errors about fields, with flags in place of field names
mod input; // payloads, connection strings and confirmations
mod job_flags; // flags for the options of a job
mod output; // stdout, which the reader may close
mod reason; // the flag --reason of commands that make changes
mod signals; // the first signal stops gracefully, the second one immediately
mod table; // aligned columns
mod task_type; // checks that a task type exists
mod text; // formats times, durations, payloads and texts
mod tls_args; // certificates for https://
mod values; // parses ids, times and durations
mod wrong_use; // error messages for wrong command lines

// The commands.
#[cfg(feature = "archive")]
mod archive;
mod audit;
mod bench;
mod bulk;
mod completions;
mod config;
mod dev;
mod dev_credentials;
mod doctor;
mod enqueue;
mod errors;
mod explain;
mod health;
#[cfg(feature = "archive")]
mod history;
mod import;
mod job;
mod jobs;
mod keda;
mod limit;
mod migrate;
mod reprioritize;
mod rerun;
mod schedule;
mod search;
mod selection; // cancel, retry, discard, release
mod serve;
mod settings;
mod stats;
mod store;
mod token;
pub mod top;
mod type_move;
mod type_settings;
mod types;
mod wait;
#[cfg(not(feature = "archive"))]
mod without_archive;
mod work;
mod workers;
#[cfg(not(feature = "archive"))]
use without_archive::{self as archive, self as history};

#[cfg(test)]
mod tests;

use std::process::ExitCode;

use clap::{Arg, CommandFactory as _, FromArgMatches as _, Parser};

use self::{context::Global, failure::Failure};

/// A streaming job broker on PostgreSQL: enqueue jobs, push them to workers, keep their results.
#[derive(Debug, Parser)]
#[command(
    name = "howdah",
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "\
Two minutes:
  howdah dev                                        # a broker with a private Postgres
  echo hello | howdah enqueue greet -               # in another terminal: enqueue a job
  howdah work greet --exec 'tr a-z A-Z' --drain     # run it
  howdah jobs greet                                 # see the result

Exit status: 0 success, 1 failure, 2 wrong usage or configuration, 65 the broker refused the input,
69 the broker or database does not answer, 77 the broker rejected the credential, 130 and 143 interrupted by a signal."
)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

subcommands! { |args, global|
    Dev(dev::Args) => dev::run(args, global),
    Serve(serve::Args) => serve::run(&args, global),
    Migrate(migrate::Args) => migrate::run(&args, global),
    Config(config::Args) => config::run(&args, global),
    Doctor(doctor::Args) => doctor::run(&args, global),
    Health(health::Args) => health::run(&args, global),
    Enqueue(enqueue::Args) => enqueue::run(args, global),
    Work(work::Args) => work::run(&args, global),
    Workers(workers::Args) => workers::run(&args, global),
    Job(job::Args) => job::run(&args, global),
    Explain(explain::Args) => explain::run(&args, global),
    Jobs(jobs::Args) => jobs::run(&args, global),
    Search(search::Args) => search::run(&args, global),
    History(history::Args) => history::run(&args, global),
    Types(types::Args) => types::run(&args, global),
    Stats(stats::Args) => stats::run(&args, global),
    /// Show or change the settings of a task type, or move it to another store
    #[command(subcommand)]
    Type(type_settings::Command) => type_settings::run(args, global),
    Settings(settings::Args) => settings::run(args, global),
    /// List, pause and resume limit keys
    #[command(subcommand)]
    Limit(limit::Command) => limit::run(args, global),
    Wait(wait::Args) => wait::run(&args, global),
    Cancel(selection::CancelArgs) => selection::cancel(&args, global),
    Errors(errors::Args) => errors::run(&args, global),
    Retry(selection::RetryArgs) => selection::retry(&args, global),
    Rerun(rerun::Args) => rerun::run(&args, global),
    Discard(selection::DiscardArgs) => selection::discard(&args, global),
    Release(selection::ReleaseArgs) => selection::release(&args, global),
    Reprioritize(reprioritize::Args) => reprioritize::run(&args, global),
    /// Change many jobs in the background: preview, start, pause, resume, cancel, list, show
    #[command(subcommand)]
    Bulk(bulk::Command) => bulk::run(args, global),
    /// Create and manage schedules, which enqueue jobs at planned times
    #[command(subcommand)]
    Schedule(schedule::Command) => schedule::run(args, global),
    /// Import jobs from another system
    #[command(subcommand)]
    Import(import::Command) => import::run(args, global),
    /// List, add, close and open stores, which are the databases of a broker
    #[command(subcommand)]
    Store(store::Command) => store::run(args, global),
    /// Create, list and revoke tokens, for brokers that require credentials
    #[command(subcommand)]
    Token(token::Command) => token::run(args, global),
    Audit(audit::Args) => audit::run(&args, global),
    /// Keep finished jobs as files: archive, list and verify days
    #[cfg_attr(feature = "archive", command(subcommand))]
    Archive(archive::Command) => archive::run(args, global),
    Top(top::Args) => top::run(&args, global),
    Keda(keda::Args) => keda::run(&args, global),
    Bench(bench::Args) => bench::run(args, global),
    Completions(completions::Args) => completions::run(&args),
}

/// Commands that do not connect to a broker and therefore do not use `--server`.
const WITHOUT_SERVER: &[&str] = &["dev", "serve", "migrate", "config", "doctor", "health", "completions", "archive"];

/// Ids of the global flags of commands that connect to a broker.
const OF_CLIENTS: [&str; 5] = ["server", "tls_ca", "tls_cert", "tls_key", "token_file"];

/// Builds the command line. The help of each command shows only the flags that the command uses.
fn command() -> clap::Command {
    // A hidden flag replaces each unused global flag. The command accepts and ignores it, for scripts that pass the same flags
    // to all commands.
    let hide = |command: clap::Command| {
        let flags: Vec<_> = command.get_arguments().map(|arg| arg.get_id().clone()).collect();
        // `serve` and `dev` define their own flag --tls-cert, which stays visible.
        let hidden = OF_CLIENTS.into_iter().filter(|id| !flags.iter().any(|flag| flag == id));
        let arg =
            |id: &'static str| Arg::new(id).long(id.replace('_', "-")).value_name("VALUE").help("Not used").hide(true);
        command.args(hidden.map(arg).collect::<Vec<_>>())
    };
    // Subcommands of the commands in `WITHOUT_SERVER`, such as `archive list`, do not connect to a broker either.
    let hide_all = |command: clap::Command| hide(command).mut_subcommands(hide);
    let all = values::take_negative(reason::add_to(Cli::command()));
    WITHOUT_SERVER.iter().fold(all, |command, name| command.mut_subcommand(name, hide_all))
}

/// Parses the arguments and runs the command.
pub fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    let matches = command().try_get_matches_from(&words).unwrap_or_else(|error| {
        let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        wrong_use::improved(error, command(), &words).exit()
    });
    let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    cli.global.note_source(&matches);
    match run(cli.command, &cli.global) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.with_flag_names(&command(), &matches).with_advice(reason::advice(&matches)).report(),
    }
}

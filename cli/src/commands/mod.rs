//! Command line. Each command has a file with its arguments and a function `run`.

// Comments on arguments are the text of `--help`, in which most backticks would be noise.
#![allow(clippy::doc_markdown)]

mod broker_args; // configuration flags
mod confirm; // prompts for confirmation before a change
mod context; // global flags, logging, runtime, client
mod dsn; // connection strings from a variable or a file
mod failure; // exit codes and error messages
mod field_errors; // errors about fields, with flags in place of field names
mod input; // payloads from the argument, a file or stdin
mod job_flags; // flags for the options of a job
mod reason; // the flag --reason of commands that make changes
mod output; // stdout, which the reader may close
mod retry_args; // flags of a retry policy
mod storage; // health of the storage
mod signals; // the first signal stops gracefully, the second one immediately
mod table; // aligned columns
mod tls_args; // certificates for https://
mod text; // formats times, durations, payloads and texts
mod selection; // jobs by id or by type
mod task_type; // checks that a task type exists
mod values; // parses ids, times and durations
mod wrong_use; // error messages for wrong command lines

// The commands.
#[cfg(feature = "archive")]
mod archive;
mod audit;
mod bench;
mod bulk;
mod cancel;
mod completions;
mod conditions;
mod config;
mod dev;
mod dev_files;
mod dev_tls;
mod dev_token;
mod discard;
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
mod limit_args;
mod migrate;
mod release;
mod reprioritize;
mod rerun;
mod retry;
mod schedule;
mod search;
mod serve;
mod settings;
mod stats;
mod store;
mod token;
pub mod top;
mod type_move;
mod type_set;
mod type_show;
mod types;
mod wait;
#[cfg(not(feature = "archive"))]
mod without_archive;
mod work;
mod workers;
#[cfg(not(feature = "archive"))]
use without_archive::{self as archive, self as history};

#[cfg(test)]
mod reference; // generates the tables of docs/reference, and tests that they are current

use std::process::ExitCode;

use clap::{Arg, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

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

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)] // only one value exists
enum Command {
    Dev(dev::Args),
    Serve(serve::Args),
    Migrate(migrate::Args),
    Config(config::Args),
    Doctor(doctor::Args),
    Health(health::Args),
    Enqueue(enqueue::Args),
    Work(work::Args),
    Workers(workers::Args),
    Job(job::Args),
    Explain(explain::Args),
    Jobs(jobs::Args),
    Search(search::Args),
    History(history::Args),
    Types(types::Args),
    Stats(stats::Args),
    /// Show or change the settings of a task type, or move it to another store
    #[command(subcommand)]
    Type(TypeCommand),
    Settings(settings::Args),
    /// List, pause and resume limit keys
    #[command(subcommand)]
    Limit(limit::Command),
    Wait(wait::Args),
    Cancel(cancel::Args),
    Errors(errors::Args),
    Retry(retry::Args),
    Rerun(rerun::Args),
    Discard(discard::Args),
    Release(release::Args),
    Reprioritize(reprioritize::Args),
    /// Change many jobs in the background: preview, start, pause, resume, cancel, list, show
    #[command(subcommand)]
    Bulk(bulk::Command),
    /// Create and manage schedules, which enqueue jobs at planned times
    #[command(subcommand)]
    Schedule(schedule::Command),
    /// Import jobs from another system
    #[command(subcommand)]
    Import(import::Command),
    /// List, add, close and open stores, which are the databases of a broker
    #[command(subcommand)]
    Store(store::Command),
    /// Create, list and revoke tokens, for brokers that require credentials
    #[command(subcommand)]
    Token(token::Command),
    Audit(audit::Args),
    /// Keep finished jobs as files: archive, list and verify days
    #[cfg_attr(feature = "archive", command(subcommand))]
    Archive(archive::Command),
    Top(top::Args),
    Keda(keda::Args),
    Bench(bench::Args),
    Completions(completions::Args),
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)] // only one value exists
enum TypeCommand {
    Set(type_set::Args),
    Show(type_show::Args),
    Move(type_move::Args),
}

/// Commands that do not connect to a broker and therefore do not use `--server`.
const WITHOUT_SERVER: &[&str] = &["dev", "serve", "migrate", "config", "doctor", "health", "completions", "archive"];

/// Global flags of commands that connect to a broker: id and name.
const OF_CLIENTS: [(&str, &str); 5] = [
    ("server", "server"),
    ("tls_ca", "tls-ca"),
    ("tls_cert", "tls-cert"),
    ("tls_key", "tls-key"),
    ("token_file", "token-file"),
];

/// Builds the command line. The help of each command shows only the flags that the command uses.
fn command() -> clap::Command {
    // A hidden flag replaces each unused global flag. The command accepts and ignores it, for scripts that pass the same flags
    // to all commands.
    let hide = |command: clap::Command| {
        let flags: Vec<_> = command.get_arguments().map(|arg| arg.get_id().clone()).collect();
        // `serve` and `dev` define their own flag --tls-cert, which stays visible.
        let hidden = OF_CLIENTS.into_iter().filter(|(id, _)| !flags.iter().any(|flag| flag == id));
        let arg = |(id, long)| Arg::new(id).long(long).value_name("VALUE").help("Not used").hide(true);
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
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.with_flag_names(&command(), &matches).with_advice(reason::advice(&matches)).report(),
    }
}

fn run(Cli { global, command }: Cli) -> Result<(), Failure> {
    match command {
        Command::Dev(args) => dev::run(args, &global),
        Command::Serve(args) => serve::run(&args, &global),
        Command::Migrate(args) => migrate::run(&args, &global),
        Command::Config(args) => config::run(&args, &global),
        Command::Doctor(args) => doctor::run(&args, &global),
        Command::Health(args) => health::run(&args, &global),
        Command::Enqueue(args) => enqueue::run(args, &global),
        Command::Work(args) => work::run(&args, &global),
        Command::Workers(args) => workers::run(&args, &global),
        Command::Job(args) => job::run(&args, &global),
        Command::Explain(args) => explain::run(&args, &global),
        Command::Jobs(args) => jobs::run(&args, &global),
        Command::Search(args) => search::run(&args, &global),
        Command::History(args) => history::run(&args, &global),
        Command::Types(args) => types::run(&args, &global),
        Command::Stats(args) => stats::run(&args, &global),
        Command::Type(TypeCommand::Set(args)) => type_set::run(&args, &global),
        Command::Type(TypeCommand::Show(args)) => type_show::run(&args, &global),
        Command::Store(command) => store::run(command, &global),
        Command::Type(TypeCommand::Move(args)) => type_move::run(&args, &global),
        Command::Token(command) => token::run(command, &global),
        Command::Audit(args) => audit::run(&args, &global),
        Command::Archive(command) => archive::run(command, &global),
        Command::Top(args) => top::run(&args, &global),
        Command::Settings(args) => settings::run(args, &global),
        Command::Reprioritize(args) => reprioritize::run(&args, &global),
        Command::Bulk(command) => bulk::run(command, &global),
        Command::Limit(command) => limit::run(command, &global),
        Command::Wait(args) => wait::run(&args, &global),
        Command::Cancel(args) => cancel::run(args, &global),
        Command::Errors(args) => errors::run(&args, &global),
        Command::Retry(args) => retry::run(&args, &global),
        Command::Rerun(args) => rerun::run(&args, &global),
        Command::Discard(args) => discard::run(args, &global),
        Command::Release(args) => release::run(&args, &global),
        Command::Schedule(command) => schedule::run(command, &global),
        Command::Import(command) => import::run(&command, &global),
        Command::Keda(args) => keda::run(&args, &global),
        Command::Bench(args) => bench::run(args, &global),
        Command::Completions(args) => completions::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn every_command_and_every_flag_has_a_help_text() {
        fn check(command: &clap::Command) {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {}", command.get_name(), argument.get_id());
            }
            command.get_subcommands().for_each(check);
        }
        check(&command());
    }

    #[test]
    fn help_shows_the_server_only_for_commands_that_use_it() {
        for name in ["dev", "serve", "migrate", "config", "completions", "enqueue", "work", "types"] {
            let mut command = command();
            command.build();
            let help = command.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            assert_eq!(help.contains("--server"), !WITHOUT_SERVER.contains(&name), "{name}");
            assert_eq!(help.contains("--tls-ca "), !WITHOUT_SERVER.contains(&name), "{name}");
            assert_eq!(help.contains("HOWDAH_TLS_CLIENT_KEY"), !WITHOUT_SERVER.contains(&name), "{name}");
            assert!(help.contains("--log-format"), "{name}");
        }
    }

    #[test]
    fn global_flags_may_stand_before_or_after_the_command() {
        for arguments in [["howdah", "--server", "x:1", "types"], ["howdah", "types", "--server", "x:1"]] {
            let cli = Cli::from_arg_matches(&command().get_matches_from(arguments)).unwrap();
            assert_eq!(cli.global.server, "x:1");
        }
        let arguments = ["howdah", "--server", "x:1", "config", "--log", "warn", "--server", "y:1"];
        let cli = Cli::from_arg_matches(&command().get_matches_from(arguments)).unwrap();
        assert_eq!(cli.global.log.as_deref(), Some("warn"), "the other global flags still work");
    }
}

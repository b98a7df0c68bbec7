//! Tests of the command line as a whole.

mod reference; // generates the tables of docs/reference, and tests that they are current

use clap::FromArgMatches as _;

use super::{Cli, WITHOUT_SERVER, command};

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

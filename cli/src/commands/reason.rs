//! Flag `--reason` of commands that make changes.

use clap::{Arg, ArgMatches, Command};

const NAME: &str = "reason";

/// Commands whose changes are recorded in the audit log.
const CHANGING: [&str; 34] = [
    "cancel",
    "retry",
    "rerun",
    "release",
    "discard",
    "reprioritize",
    "bulk start",
    "bulk pause",
    "bulk resume",
    "bulk cancel",
    "archive restore",
    "archive forget",
    "archive off",
    "type set",
    "type move",
    "settings set",
    "settings reset",
    "limit set",
    "limit unset",
    "limit pause",
    "limit resume",
    "schedule create",
    "schedule update",
    "schedule pause",
    "schedule resume",
    "schedule delete",
    "schedule run",
    "store add",
    "store reload",
    "store drain",
    "store open",
    "token create",
    "token revoke",
    "top",
];

/// Adds `--reason` to each command in `CHANGING`.
pub(super) fn add_to(command: Command) -> Command {
    within(command, "")
}

fn within(command: Command, outer: &str) -> Command {
    command.mut_subcommands(|inner| {
        let path = format!("{outer} {}", inner.get_name());
        let inner = within(inner, &path);
        if !CHANGING.contains(&path.trim_start()) {
            return inner;
        }
        let help = "Reason for the change, recorded in the audit log (howdah audit)";
        inner.arg(Arg::new(NAME).long(NAME).value_name("TEXT").help(help))
    })
}

/// Returns advice for repeating a command if it is unknown whether the last call took effect. `None` for commands that change
/// nothing, or whose message already has the advice.
pub(super) fn advice(matches: &ArgMatches) -> Option<&'static str> {
    let (at, path) = innermost(matches);
    match path.trim_start() {
        // The message has the position for --resume.
        "enqueue" if at.get_flag("lines") => None,
        "enqueue" if at.contains_id("request_key") => {
            Some("repeating the command is safe, because the same --request-key stores no job twice within 24 hours")
        }
        "enqueue" => Some(
            "check with `howdah jobs` before you repeat the command; with --request-key a repeat stores no job twice",
        ),
        path if CHANGING.contains(&path) => Some("`howdah audit` lists the changes that were made"),
        _ => None,
    }
}

/// Returns the value of `--reason`.
pub(super) fn given(matches: &ArgMatches) -> Option<String> {
    innermost(matches).0.try_get_one::<String>(NAME).ok().flatten().cloned()
}

/// Returns the arguments of the innermost subcommand, and the path to it, such as ` limit pause`.
fn innermost(mut matches: &ArgMatches) -> (&ArgMatches, String) {
    let mut path = String::new();
    while let Some((name, inner)) = matches.subcommand() {
        path = format!("{path} {name}");
        matches = inner;
    }
    (matches, path)
}

#[cfg(test)]
mod tests {
    use clap::Command;

    #[test]
    fn every_command_that_changes_something_takes_a_reason() {
        fn count(command: &Command) -> usize {
            let own = command.get_arguments().filter(|arg| arg.get_id() == super::NAME).count();
            own + command.get_subcommands().map(count).sum::<usize>()
        }
        let is_built = |name: &&&str| cfg!(feature = "archive") || !name.starts_with("archive ");
        assert_eq!(count(&crate::commands::command()), super::CHANGING.iter().filter(is_built).count());
    }

    #[test]
    fn a_command_that_changes_something_advises_what_to_do_if_its_effect_is_unknown() {
        let advice = |line: &str| super::advice(&crate::commands::command().get_matches_from(line.split(' ')));
        let advises = |line: &str, text: &str| advice(line).is_some_and(|advice| advice.contains(text));
        assert!(advises("howdah enqueue t x", "check with `howdah jobs`"));
        assert!(advises("howdah enqueue t x --request-key k", "is safe"));
        for line in ["limit pause t k", "limit set t k --max-running 1", "limit unset t k", "store reload"] {
            assert!(advises(&format!("howdah {line}"), "howdah audit"), "{line}");
        }
        assert_eq!(advice("howdah enqueue t --lines"), None);
        assert_eq!(advice("howdah jobs t"), None);
    }

    #[test]
    fn the_reason_is_found_behind_each_command() {
        let given = |arguments: &[&str]| super::given(&crate::commands::command().get_matches_from(arguments));
        assert_eq!(given(&["howdah", "cancel", "1", "--reason", "spam"]).as_deref(), Some("spam"));
        assert_eq!(given(&["howdah", "limit", "pause", "t", "k", "--reason", "x"]).as_deref(), Some("x"));
        assert_eq!(given(&["howdah", "limit", "unset", "t", "k", "--reason", "y"]).as_deref(), Some("y"));
        assert_eq!(given(&["howdah", "store", "reload", "--reason", "z"]).as_deref(), Some("z"));
        assert_eq!(given(&["howdah", "types"]), None);
    }
}

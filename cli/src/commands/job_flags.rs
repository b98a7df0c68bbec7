//! Flags for the options of a job, one per row of `howdah_core::job::options`. The name of a flag is the name of the option,
//! with dashes instead of dots and underscores.

use clap::{Arg, ArgAction, ArgMatches, Command};
use howdah_client::{NewJob, proto};
use howdah_core::job::options::{JobOption, OPTIONS, OptionKind};
use howdah_proto::json::{WordError, from_words};

use super::{failure::Failure, values};

/// Given flags, as pairs of option and value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct JobFlags {
    given: Vec<(String, String)>,
}

/// Options that apply to one job alone. Options that refer to other jobs of the same request have no flags.
fn options() -> impl Iterator<Item = &'static JobOption> {
    OPTIONS.iter().filter(|option| !option.is_of_request())
}

/// Returns the flag of an option: `key-policy` for `key_policy`, `retry-max-delay` for `retry_policy.max_delay`.
pub(super) fn flag_name(option: &str) -> String {
    match option {
        // A flag for a list adds one element, so its name is singular.
        "headers" => "header".to_owned(),
        "next_stages" => "next-stage".to_owned(),
        "tags" => "tag".to_owned(),
        name => name.replace("retry_policy.", "retry_").replace('_', "-"),
    }
}

fn flag(option: &JobOption) -> Arg {
    let name = flag_name(option.name);
    let mut help = format!("{}: {}", option.about, option.kind);
    if option.kind.is_repeated() {
        help.push_str("; repeatable");
    }
    let arg = Arg::new(option.name)
        .long(name)
        .value_name(option.kind.value_name())
        .help(help)
        .help_heading(option.group.heading())
        .allow_negative_numbers(true)
        .action(if option.kind.is_repeated() { ArgAction::Append } else { ArgAction::Set });
    match option.kind {
        OptionKind::Integer(..) => arg.allow_hyphen_values(true).value_parser(whole),
        OptionKind::Jobs => arg.allow_negative_numbers(true).value_delimiter(',').value_parser(job),
        OptionKind::Duration(..) => arg.allow_hyphen_values(true).value_parser(duration),
        OptionKind::Durations(..) => arg.allow_hyphen_values(true).value_delimiter(',').value_parser(duration),
        OptionKind::Time => arg.allow_hyphen_values(true).value_parser(time),
        OptionKind::Word(words) => {
            arg.value_parser(clap::builder::PossibleValuesParser::new(words)).hide_possible_values(true)
        }
        OptionKind::TaskTypes(_) => arg.value_delimiter(','),
        _ => arg,
    }
}

/// Checks a duration and returns it unchanged. Also accepts the format of the protocol, such as 1.5s.
fn duration(given: &str) -> Result<String, String> {
    let is_of_protocol =
        given.strip_suffix('s').and_then(|seconds| seconds.parse::<f64>().ok()).is_some_and(|s| s >= 0.0);
    if is_of_protocol { Ok(given.to_owned()) } else { values::duration(given).map(|_| given.to_owned()) }
}

/// Checks a whole number and returns it unchanged. The broker checks its bounds.
fn whole(given: &str) -> Result<String, String> {
    given.parse::<i64>().map(|_| given.to_owned()).map_err(|_| "it is not a whole number".into())
}

/// Checks the id of a job and returns it unchanged.
fn job(given: &str) -> Result<String, String> {
    values::id(given).map(|_| given.to_owned())
}

/// Checks a time and returns it unchanged.
fn time(given: &str) -> Result<String, String> {
    values::time(given).map(|_| given.to_owned())
}

impl clap::Args for JobFlags {
    fn augment_args(command: Command) -> Command {
        options().fold(command, |command, option| command.arg(flag(option)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for JobFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for option in options() {
            for value in matches.get_many::<String>(option.name).into_iter().flatten() {
                self.given.push(match (option.kind, value.split_once('=')) {
                    (OptionKind::Headers, Some((name, value))) => (format!("{}.{name}", option.name), value.to_owned()),
                    _ => (option.name.to_owned(), value.clone()),
                });
            }
        }
        Ok(())
    }
}

impl JobFlags {
    /// Returns whether no flag was given.
    pub(super) fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// Creates a job of the given task type with the options of the flags.
    pub(super) fn job(&self, task_type: &str) -> Result<NewJob, Failure> {
        let mut given = self.given.clone();
        let has = |name: &str| self.given.iter().any(|(given, _)| given == name);
        if has("retry_policy.delays") && !has("retry_policy.kind") {
            given.push(("retry_policy.kind".into(), "list".into()));
        }
        let job: proto::NewJob = from_words("NewJob", &given).map_err(|error| match error {
            WordError::Wrong { name, problem } => Failure::usage(format!("--{} {problem}", flag_name(&name))),
            WordError::Unknown { name, .. } if name == "headers" => Failure::usage("--header takes NAME=VALUE"),
            other => Failure::usage(other.to_string()),
        })?;
        Ok(NewJob::from(proto::NewJob { task_type: task_type.to_owned(), ..job }))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use howdah_client::proto::{DependencyFailure, KeyPolicy, RetryPolicyKind, StagePayload, new_job::Start};

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        flags: JobFlags,
    }

    fn job(flags: &[&str]) -> Result<proto::NewJob, String> {
        let parsed = Program::try_parse_from(["enqueue"].iter().chain(flags)).map_err(|error| error.to_string())?;
        parsed.flags.job("a").map(NewJob::into_proto).map_err(|failure| format!("{failure:?}"))
    }

    #[test]
    fn every_option_has_a_flag_that_gets_into_the_job() {
        let job = job(&[
            "--priority=-7",
            "--delay",
            "2m 30s",
            "--max-attempts",
            "3",
            "--timeout",
            "1s",
            "--fallback",
            "b",
            "--header",
            "x=1",
            "--header",
            "y=a=b",
            "--tag",
            "a,b",
            "--tag=-c",
            "--traceparent",
            "00-1",
            "--retry-delays",
            "1s,2s",
            "--key",
            "k",
            "--key-policy",
            "replace_if_newer",
            "--key-version",
            "7",
            "--key-hold",
            "1h",
            "--expire-after",
            "1d",
            "--limit-key",
            "l",
            "--fair-key",
            "f",
            "--next-stage",
            "b,c",
            "--stage-payload",
            "unchanged",
            "--after",
            "1",
            "--after",
            "2",
            "--on-dependency-failure",
            "wait",
            "--parent-id",
            "9",
        ])
        .unwrap();
        assert_eq!((job.priority, job.max_attempts, job.fallback.as_str()), (-7, 3, "b"));
        assert_eq!(job.start, Some(Start::Delay(prost_types::Duration { seconds: 150, nanos: 0 })));
        assert_eq!((job.headers["x"].as_str(), job.headers["y"].as_str()), ("1", "a=b"));
        assert_eq!(job.tags, ["a,b", "-c"]);
        let retry = job.retry_policy.as_ref().unwrap();
        assert_eq!((retry.kind(), retry.delays.len()), (RetryPolicyKind::List, 2));
        assert_eq!((job.key_policy(), job.key_version), (KeyPolicy::ReplaceIfNewer, Some(7)));
        assert_eq!(
            (&job.next_stages[..], job.stage_payload()),
            (&["b".into(), "c".into()][..], StagePayload::Unchanged)
        );
        assert_eq!((&job.after[..], job.parent_id), (&[1, 2][..], 9));
        assert_eq!(job.on_dependency_failure(), DependencyFailure::Wait);
    }

    #[test]
    fn a_time_is_taken_with_its_offset() {
        let start = prost_types::Timestamp { seconds: 1_798_768_800, nanos: 0 };
        assert_eq!(job(&["--run-at", "2027-01-01T03:00:00+01:00"]).unwrap().start, Some(Start::RunAt(start)));
    }

    #[test]
    fn without_flags_a_job_has_only_its_type() {
        assert_eq!(job(&[]).unwrap(), NewJob::new("a").into_proto());
    }

    #[test]
    fn the_error_names_the_flag_with_the_invalid_value() {
        for (flags, name) in [
            (&["--priority", "high"][..], "--priority"),
            (&["--delay", "soon"], "--delay"),
            (&["--run-at", "tomorrow"], "--run-at"),
            (&["--retry-max-delay", "long"], "--retry-max-delay"),
            (&["--header", "x"], "--header"),
            (&["--key-policy", "newer"], "--key-policy"),
            (&["--delay", "1s", "--run-at", "2027-01-01T03:00:00Z"], "start"),
        ] {
            let error = job(flags).unwrap_err();
            assert!(error.contains(name), "{flags:?}: {error}");
        }
    }
}

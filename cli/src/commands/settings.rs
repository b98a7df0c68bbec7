//! `howdah settings`: shows and changes the settings of the cluster, which apply at every broker and in SQL functions.

use std::time::Duration;

use howdah_client::proto::{ClusterSettings, GetSettingsResponse};
use howdah_core::config::{bytes_of, bytes_words, duration_text};
use howdah_proto::json::from_words;

use super::{
    broker_args::key_value, context::Global, failure::Failure, output, output::Output, table::Table, text, values,
};

/// Show or change the settings of the cluster: limits that apply at every broker and in SQL functions
///
/// The database stores the settings, because they determine which jobs are accepted. A change takes effect at every broker within
/// a second, and survives restarts. `howdah config` shows the settings of one broker, such as its address. `howdah type show`
/// shows the settings of a task type.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  howdah settings                                          # values, defaults, bounds
  howdah settings set payload_bytes=2MiB max_delay=30d     # leaves the other settings unchanged
  howdah settings reset payload_bytes                      # the default again
  howdah settings --json | jq -r .settings.payload_bytes"
)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Print one JSON object: the message GetSettingsResponse
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Set(Set),
    Reset(Reset),
    Advance(Advance),
}

/// Change settings of the cluster
///
/// Changes only the given settings. Stored jobs are not checked again. A payload must fit into a gRPC message: before you raise
/// payload_bytes above 15 MiB, raise limits.message_bytes of every broker, and the maximum message size of your clients.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Settings:
  payload_bytes   maximum payload, and maximum result: 1 KiB to 1000 MiB [default: 1 MiB]
  headers         number of headers of a job: 8 to 10000 [default: 64]
  header_bytes    total size of a job's headers: 1 KiB to 16 MiB [default: 8 KiB]
  key_bytes       length of a key, a request key, a label: 64 to 2000 bytes [default: 200]
  batch           jobs in an enqueue, outcomes in a settle, ids in a cancel: 1000 to 100000 [default: 10000]
  max_delay       maximum delay of a job: 1s to 36500days [default: 3650days]
  max_timeout     maximum timeout of an attempt: 1s to 3650days [default: 30days]
  task_types      number of task types; unused types are deleted: 100 to 100000 [default: 10000]
  dead_days       days after which dead jobs are discarded: 1 to 3650 [default: 0]

Examples:
  howdah settings set payload_bytes=2MiB
  howdah settings set max_delay=30d max_timeout=1h batch=1000")]
struct Set {
    /// Setting and its new value: sizes such as 65536 or 64KiB, durations such as 90s, 12h or 30d
    #[arg(value_name = "SETTING=VALUE", required = true, value_parser = assignment)]
    settings: Vec<(String, String)>,
    /// Print all settings as one JSON object: the message ClusterSettings
    #[arg(long)]
    json: bool,
}

/// Reset settings of the cluster to their defaults
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah settings reset payload_bytes
  howdah settings reset max_delay max_timeout")]
struct Reset {
    /// Settings to reset
    #[arg(value_name = "SETTING", required = true, value_parser = ALL.each_ref().map(|field| field.name))]
    settings: Vec<String>,
    /// Print all settings as one JSON object: the message ClusterSettings
    #[arg(long)]
    json: bool,
}

/// Advance the clock of a test database
///
/// Only for the databases of `howdah dev --ephemeral`. Delayed jobs, retries, schedules, deadlines, leases and retention follow the
/// clock, which cannot go back. Prints the new time.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah settings advance 3d
  howdah settings advance '1h 30m'")]
struct Advance {
    /// Time by which the clock advances, such as 90s, 12h or 3d; the clock can be 3650 days ahead
    #[arg(value_parser = values::duration)]
    duration: Duration,
}

pub(super) fn run(args: Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| match args.command {
        None => {
            let answer = client.get_settings().await?;
            output::show(args.json, "GetSettingsResponse", &answer, || table(&answer))
        }
        Some(Command::Set(set)) => {
            let stored = client.update_settings(request(&set.settings)?).await?;
            print(&stored, &set.settings.iter().map(|(name, _)| name).collect::<Vec<_>>(), set.json)
        }
        Some(Command::Reset(reset)) => {
            let stored = client.reset_settings(&reset.settings).await?;
            print(&stored, &reset.settings.iter().collect::<Vec<_>>(), reset.json)
        }
        Some(Command::Advance(advance)) => {
            let time = client.advance_clock(advance.duration).await?;
            let mut output = Output::new();
            output.line(jiff::Timestamp::try_from(time).map_err(|error| Failure::failed(error.to_string()))?)?;
            output.flush()
        }
    })
}

/// Name, default, lowest and highest value, and description of each setting.
#[cfg(test)]
pub(super) fn described() -> Vec<[String; 5]> {
    use howdah_core::job::ClusterSettings as Core;
    let of = |settings: &Core| ClusterSettings {
        payload_bytes: settings.payload_bytes as i64,
        headers: settings.headers as u32,
        header_bytes: settings.header_bytes as i64,
        key_bytes: settings.key_bytes as u32,
        batch: settings.batch as u32,
        max_delay: settings.max_delay.try_into().ok(),
        max_timeout: settings.max_timeout.try_into().ok(),
        task_types: settings.task_types as u32,
        dead_days: settings.dead_days as u32,
    };
    let bounds = [&Core::DEFAULT, &Core::LOWEST, &Core::HIGHEST].map(of);
    let row = |field: &Field| {
        let [default, lowest, highest] = bounds.each_ref().map(|settings| field.kind.words(settings));
        [field.name.into(), default, lowest, highest, field.about.into()]
    };
    ALL.iter().map(row).collect()
}

/// Prints the changed settings after a change, or all settings as JSON.
fn print(stored: &ClusterSettings, changed: &[&String], json: bool) -> Result<(), Failure> {
    output::show(json, "ClusterSettings", stored, || {
        let is_changed = |field: &&Field| changed.iter().any(|name| *name == field.name);
        let lines =
            ALL.iter().filter(is_changed).map(|field| format!("{:<14} {}", field.name, field.kind.words(stored)));
        lines.collect::<Vec<_>>().join("\n")
    })
}

fn table(answer: &GetSettingsResponse) -> Table<'static, Field> {
    let [settings, defaults, lowest, highest] =
        [answer.settings, answer.defaults, answer.lowest, answer.highest].map(Option::unwrap_or_default);
    let value = |field: &Field| match [&settings, &defaults].map(|settings| field.kind.words(settings)) {
        [value, default] if value == default => value,
        [value, _] => format!("{value} (changed)"),
    };
    Table::new(&ALL)
        .left("SETTING", |field| field.name)
        .left("VALUE", value)
        .left("DEFAULT", |field| field.kind.words(&defaults))
        .left("ALLOWED", |field| format!("{} to {}", field.kind.words(&lowest), field.kind.words(&highest)))
        .left("LIMITS", |field| field.about)
}

/// Setting of the cluster.
#[derive(Debug)]
struct Field {
    /// Name, as in the protocol.
    name: &'static str,
    /// Description of the limit.
    about: &'static str,
    /// Format of the value.
    kind: Kind,
}

/// Format of a setting's value, with the function that reads it.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Number of bytes, with or without a unit.
    Size(fn(&ClusterSettings) -> i64),
    /// Whole number.
    Count(fn(&ClusterSettings) -> u32),
    /// Duration with a unit.
    Time(fn(&ClusterSettings) -> Option<prost_types::Duration>),
}

static ALL: [Field; 9] = [
    field("payload_bytes", "maximum size of a payload and of a result", Kind::Size(|s| s.payload_bytes)),
    field("headers", "maximum number of headers of a job", Kind::Count(|s| s.headers)),
    field("header_bytes", "maximum total size of a job's headers", Kind::Size(|s| s.header_bytes)),
    field("key_bytes", "maximum length of keys of all kinds, and of labels", Kind::Count(|s| s.key_bytes)),
    field(
        "batch",
        "maximum number of jobs in an enqueue, outcomes in a settle, ids in a cancel, dependencies of a job",
        Kind::Count(|s| s.batch),
    ),
    field(
        "max_delay",
        "maximum delay of a job, and maximum time until run_at and expire_at",
        Kind::Time(|s| s.max_delay),
    ),
    field("max_timeout", "maximum timeout of an attempt, and maximum extension", Kind::Time(|s| s.max_timeout)),
    field("task_types", "maximum number of task types", Kind::Count(|s| s.task_types)),
    field(
        "dead_days",
        "days after which dead jobs are discarded, unless their type sets its own; 0: never",
        Kind::Count(|s| s.dead_days),
    ),
];

const fn field(name: &'static str, about: &'static str, kind: Kind) -> Field {
    Field { name, about, kind }
}

/// Parses `SETTING=VALUE` to the name of the setting and its value in the protocol. Leaves the check of bounds to the broker.
/// Rejects 0, which the broker would interpret as "unchanged".
fn assignment(text: &str) -> Result<(String, String), String> {
    let (name, value) = key_value(text)?;
    let field = ALL.iter().find(|field| field.name == name).ok_or_else(|| {
        let names = ALL.each_ref().map(|field| field.name).join(", ");
        format!("{name:?} is not a setting of the cluster; use one of {names}")
    })?;
    let value = value.trim();
    let (parsed, expected) = match field.kind {
        Kind::Size(_) => {
            let bytes = bytes_of(value).and_then(|bytes| i64::try_from(bytes).ok()).map(|bytes| bytes.to_string());
            (bytes, "a number of bytes, such as 65536 or 64KiB")
        }
        Kind::Count(_) => (value.replace('_', "").parse::<u32>().ok().map(|count| count.to_string()), "a whole number"),
        Kind::Time(_) => {
            let time = humantime::parse_duration(value).ok().map(|_| value.to_owned());
            (time, "a duration with its unit, such as 90s, 12h or 30d")
        }
    };
    match parsed {
        Some(zero) if zero == "0" => {
            Err(format!("{name} cannot be 0; `howdah settings reset {name}` restores its default"))
        }
        Some(value) => Ok((name, value)),
        None => Err(format!("{name} must be {expected}")),
    }
}

/// Returns the message that sets only the given settings.
fn request(assignments: &[(String, String)]) -> Result<ClusterSettings, Failure> {
    from_words("ClusterSettings", assignments).map_err(|error| Failure::usage(error.to_string()))
}

impl Kind {
    /// Formats the value as text.
    fn words(self, settings: &ClusterSettings) -> String {
        match self {
            Self::Size(read) => bytes_words(u64::try_from(read(settings)).unwrap_or_default()),
            Self::Count(read) => read(settings).to_string(),
            Self::Time(read) => duration_text(text::duration(read(settings).as_ref()).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Args as _;
    use howdah_core::job;

    use super::*;

    #[test]
    fn the_help_has_the_bounds_and_defaults_of_every_setting() {
        let help = Set::augment_args(clap::Command::new("set")).get_after_help().unwrap().to_string();
        for [name, default, lowest, highest, _] in described() {
            let line = help.lines().find(|line| line.trim_start().starts_with(&name)).expect(&name);
            let (range, default) = (format!("{lowest} to {highest}"), format!("[default: {default}]"));
            assert!(line.contains(&range) && line.ends_with(&default), "{line}");
        }
    }

    #[test]
    fn a_setting_that_differs_from_its_default_is_marked() {
        let some = |payload_bytes| Some(ClusterSettings { payload_bytes, headers: 64, ..ClusterSettings::default() });
        let answer = GetSettingsResponse {
            settings: some(2 << 20),
            defaults: some(1 << 20),
            lowest: some(1024),
            highest: some(3000),
        };
        let table = table(&answer).to_string();
        let lines: Vec<_> = table.lines().collect();
        assert!(lines[1].starts_with("payload_bytes  2 MiB (changed)  1 MiB    1 KiB to 3000"), "{table}");
        assert!(lines[2].starts_with("headers        64               64 "), "{table}");
    }

    #[test]
    fn every_setting_of_the_cluster_is_there() {
        assert_eq!(ALL.each_ref().map(|field| field.name), job::ClusterSettings::NAMES);
    }

    #[test]
    fn values_are_read_as_people_write_them() {
        let given =
            ["payload_bytes=2MiB", "header_bytes=16 KiB", "batch=20_000", "max_delay=30d", "max_timeout=1h 30m"];
        let settings = request(&given.map(|text| assignment(text).unwrap())).unwrap();
        let shown = ALL.each_ref().map(|field| field.kind.words(&settings));
        assert_eq!(shown, ["2 MiB", "0", "16 KiB", "0", "20000", "30days", "1h 30m", "0", "0"]);
    }

    #[test]
    fn an_invalid_assignment_is_refused_with_the_reason() {
        for (text, expected) in [
            ("payload_bytes", "an = is missing: write KEY=VALUE"),
            ("payload=1", "\"payload\" is not a setting of the cluster; use one of payload_bytes, headers, "),
            ("payload_bytes=many", "payload_bytes must be a number of bytes, such as 65536 or 64KiB"),
            ("batch=-1", "batch must be a whole number"),
            ("batch=0", "batch cannot be 0; `howdah settings reset batch`"),
            ("max_delay=5", "max_delay must be a duration with its unit"),
        ] {
            let error = assignment(text).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}

//! `howdah settings`: shows and changes the settings of the cluster, which apply at every broker and in SQL functions.

mod fields;

use howdah_client::proto::{ClusterSettings, GetSettingsResponse};

use self::fields::{ALL, Assignment};
use super::{
    context::Global,
    failure::Failure,
    output::Output,
    table::{Align, Table},
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
    #[arg(value_name = "SETTING=VALUE", required = true, value_parser = fields::assignment)]
    settings: Vec<Assignment>,
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
    #[arg(value_name = "SETTING", required = true, value_parser = ALL.map(|field| field.name))]
    settings: Vec<String>,
    /// Print all settings as one JSON object: the message ClusterSettings
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| match args.command {
        None => show(&client.get_settings().await?, args.json),
        Some(Command::Set(set)) => {
            let mut request = ClusterSettings::default();
            for assignment in &set.settings {
                assignment.apply(&mut request);
            }
            let stored = client.update_settings(request).await?;
            let changed: Vec<_> = set.settings.iter().map(|assignment| assignment.field.name).collect();
            print(&stored, &changed, set.json)
        }
        Some(Command::Reset(reset)) => {
            let stored = client.reset_settings(&reset.settings).await?;
            print(&stored, &reset.settings.iter().map(String::as_str).collect::<Vec<_>>(), reset.json)
        }
    })
}

/// Names and descriptions of all settings.
#[cfg(test)]
pub(super) fn described() -> [(&'static str, &'static str); ALL.len()] {
    ALL.map(|field| (field.name, field.about))
}

/// Shows all settings, with defaults and bounds.
fn show(answer: &GetSettingsResponse, json: bool) -> Result<(), Failure> {
    let mut output = Output::new();
    if json {
        output.message("GetSettingsResponse", answer)?;
    } else {
        output.line(table(answer))?;
    }
    output.flush()
}

/// Prints the changed settings after a change, or all settings as JSON.
fn print(stored: &ClusterSettings, changed: &[&str], json: bool) -> Result<(), Failure> {
    let mut output = Output::new();
    if json {
        output.message("ClusterSettings", stored)?;
    } else {
        for field in ALL.iter().filter(|field| changed.contains(&field.name)) {
            output.line(format_args!("{:<14} {}", field.name, field.kind.words(stored)))?;
        }
    }
    output.flush()
}

fn table(answer: &GetSettingsResponse) -> Table<5> {
    let [settings, defaults, lowest, highest] =
        [answer.settings, answer.defaults, answer.lowest, answer.highest].map(Option::unwrap_or_default);
    let mut table = Table::new([
        ("SETTING", Align::Left),
        ("VALUE", Align::Left),
        ("DEFAULT", Align::Left),
        ("ALLOWED", Align::Left),
        ("LIMITS", Align::Left),
    ]);
    for field in &ALL {
        let [value, default, low, high] =
            [&settings, &defaults, &lowest, &highest].map(|settings| field.kind.words(settings));
        let mark = if value == default { "" } else { " (changed)" };
        let cells =
            [field.name.into(), format!("{value}{mark}"), default, format!("{low} to {high}"), field.about.into()];
        table.row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use clap::Args as _;
    use howdah_core::job;

    use super::*;

    #[test]
    fn the_help_has_the_bounds_and_defaults_of_every_setting() {
        let of = |settings: &job::ClusterSettings| ClusterSettings {
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
        let help = Set::augment_args(clap::Command::new("set")).get_after_help().unwrap().to_string();
        for field in &ALL {
            let line = help.lines().find(|line| line.trim_start().starts_with(field.name)).expect(field.name);
            let words = |settings| field.kind.words(&of(settings));
            let range = [&job::ClusterSettings::LOWEST, &job::ClusterSettings::HIGHEST].map(words).join(" to ");
            let default = format!("[default: {}]", words(&job::ClusterSettings::DEFAULT));
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
}

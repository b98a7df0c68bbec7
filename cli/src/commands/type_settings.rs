//! `howdah type set` and `type show`: changes or shows the settings of a task type. The names of the flags determine the fields
//! of the message `TaskTypeSettings`, which is read and changed as JSON.

use std::{any::TypeId, time::Duration};

use clap::{Arg, ArgMatches, Args as _, builder::PossibleValue};
use howdah_client::{
    Client,
    proto::{ListTaskTypesRequest, TaskType, TaskTypeSettings},
};
use howdah_core::{config::duration_text, logging::escaped};
use howdah_proto::json::{self, from_words, setting_path};
use serde_json::{Map, Value};

use super::{
    context::Global,
    failure::Failure,
    output::{self, note},
    task_type, text, type_move, values,
};

subcommands! { |args, global|
    Set(SetArgs) => set(&args, global),
    Show(ShowArgs) => show(&args, global),
    Move(type_move::Args) => type_move::run(&args, global),
}

/// Type of the settings in the protocol.
const MESSAGE: &str = "TaskTypeSettings";

/// Change settings of a task type
///
/// Changes only the given settings, in every store that has the type. They take effect on every broker within a second. Settings
/// apply to later events: enqueues (--max-attempts, --timeout, --max-payload-bytes, --max-backlog), failures (--retry-*,
/// --fallback) and successes (--history). --priority-step and --paused apply to all jobs that wait for a worker. Options of a job
/// override these settings.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah type set email.send --max-attempts 3 --retry-initial-delay 30s
  howdah type set email.send --retry-kind fixed --retry-jitter 0           # always the same delay
  howdah type set email.send --retry-delays 10s,1m,10m,1h             # in this order
  howdah type set email.send --fallback email.failed                  # for jobs that would be dead
  howdah type set metrics.point --history none                        # succeeded jobs are not kept
  howdah type set report --priority-step 1m       # a minute of waiting equals one priority level
  howdah type set email.send --paused true         # workers get no jobs until --paused false
  howdah type set email.send --max-backlog 10000 --timeout 30s
  howdah type set email.send --brake-failures 20          # after 20 failures in a row, try one job at a time
  howdah type set email.send --unset timeout --unset retry
  howdah type set email.send --reset                                  # the broker's defaults")]
pub(super) struct SetArgs {
    /// Task type to change; created if it does not exist
    #[arg(value_name = "TYPE")]
    task_type: String,
    #[command(flatten)]
    given: Given,
    /// Remove the fallback, so that jobs that are out of attempts or failed for good are dead
    #[arg(long, conflicts_with = "fallback")]
    no_fallback: bool,
    /// Reset this setting to the broker's default; repeatable
    #[arg(long, value_name = "SETTING", value_parser = unset_words())]
    unset: Vec<String>,
    /// Reset all other settings to the broker's defaults
    #[arg(long)]
    reset: bool,
    /// Print the settings as one JSON object: the message TaskTypeSettings
    #[arg(long)]
    json: bool,
}

/// Show all settings of a task type
///
/// `-` stands for the broker's default. If the stores of a broker have different values, each value is shown with its store.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah type show email.send
  howdah type show email.send --json | jq '.paused // false'")]
pub(super) struct ShowArgs {
    /// Task type to show
    #[arg(value_name = "TYPE")]
    task_type: String,
    /// Print one JSON object: the message TaskTypeSettings; an omitted field stands for the broker's default
    #[arg(long)]
    json: bool,
}

/// Flags of the settings, in the order in which the settings are shown. clap checks the values by the types of the fields, and
/// `Given` reads them by name.
#[derive(clap::Args)]
struct SettingFlags {
    /// Deliver a job at most this many times, 1 to 1000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    max_attempts: Option<u32>,
    /// Growth of the delay: exponential (initial * multiplier^(n-1) after failure n), linear (initial * n), fixed (initial) or
    /// list (--retry-delays)
    #[arg(long, value_name = "KIND", value_parser = ["exponential", "linear", "fixed", "list"])]
    retry_kind: Option<String>,
    /// Wait this long after the first failure, such as 5s
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    retry_initial_delay: Option<Duration>,
    /// Exponential: factor between consecutive delays, 1 to 100
    #[arg(long, value_name = "NUMBER")]
    retry_multiplier: Option<f64>,
    /// Exponential, linear: wait at most this long, before jitter, such as 1h
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    retry_max_delay: Option<Duration>,
    /// Random fraction of the delay, 0 to 1; 0.1 means plus or minus 10 %
    #[arg(long, value_name = "NUMBER")]
    retry_jitter: Option<f64>,
    /// Use these delays in order, such as 1s,30s,5m; the last one repeats. Sets the kind to list
    #[arg(long, value_name = "DURATION,...", value_delimiter = ',', value_parser = values::duration)]
    retry_delays: Vec<Duration>,
    /// Succeeded jobs to keep in history: full (all), failures (only with a failed attempt), without_empty (only with a failed
    /// attempt or a result) or none
    #[arg(long, value_name = "MODE", value_parser = ["full", "failures", "without_empty", "none"])]
    history: Option<String>,
    /// Keep finished jobs for this many days, 1 to 3650
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=3650))]
    history_days: Option<u32>,
    /// Discard dead jobs after this many days, 1 to 3650 [default: dead_days of the cluster (howdah settings)]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=3650))]
    dead_days: Option<u32>,
    /// Ageing: a job that has waited this much longer runs before a job whose priority number is lower by one, such as 1m; 1ms to
    /// about 407 days
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    priority_step: Option<Duration>,
    /// Timeout of an attempt, for jobs without their own timeout, such as 30s
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    timeout: Option<Duration>,
    /// true: deliver no jobs; false: deliver them again
    #[arg(long, value_name = "true|false")]
    paused: Option<bool>,
    /// Refuse larger payloads, in bytes; at most the cluster's limit (howdah settings)
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(i64).range(1..))]
    max_payload_bytes: Option<i64>,
    /// Refuse enqueues while this many jobs are ready or waiting, 1 to 10000000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=10_000_000))]
    max_backlog: Option<i64>,
    /// Move jobs that are out of attempts or failed for good to this task type
    #[arg(long, value_name = "TYPE", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    fallback: Option<String>,
    /// Run at most this many jobs of the type at once, on all brokers together, 1 to 1000000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_running: Option<u32>,
    /// Start at most this many jobs of the type per second, more than 0, at most 1000000, such as 10 or 0.5
    #[arg(long, value_name = "NUMBER")]
    rate: Option<f64>,
    /// With --rate: start at most this many jobs immediately after an idle time [default: 1]
    #[arg(long, value_name = "N", requires = "rate", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate_burst: Option<u32>,
    /// Run at most this many jobs of one limit key at once, 1 to 1000000; 1 runs them one after the other, in order
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    key_max_running: Option<u32>,
    /// true: a job that waits for its next attempt still counts as running for its limit key, so that no later job overtakes it
    #[arg(long, value_name = "true|false")]
    key_strict_order: Option<bool>,
    /// Leave at least this time from the start of a job of a limit key to the start of the next, such as 2s; 1ms to 30 days
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    key_min_gap: Option<Duration>,
    /// true: --key-min-gap counts from the end of a job, and jobs of a limit key run one at a time
    #[arg(long, value_name = "true|false")]
    key_gap_from_end: Option<bool>,
    /// Start at most this many jobs of one limit key per second, more than 0, at most 1000000
    #[arg(long, value_name = "NUMBER")]
    key_rate: Option<f64>,
    /// With --key-rate: start at most this many jobs of one limit key immediately after an idle time [default: 1]
    #[arg(long, value_name = "N", requires = "key_rate", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    key_rate_burst: Option<u32>,
    /// Brake: after this many failed attempts in a row, try one job at a time, with pauses in between, until one succeeds, 1 to
    /// 1000000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    brake_failures: Option<u32>,
    /// First pause of the brake, which doubles with each trial, 1ms to 30 days [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    brake_initial_delay: Option<Duration>,
    /// Longest pause of the brake, up to 30 days [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    brake_max_delay: Option<Duration>,
}

/// Given flags of settings, as pairs of field and value.
#[derive(Debug, Default)]
struct Given(Vec<(String, String)>);

impl clap::Args for Given {
    fn augment_args(command: clap::Command) -> clap::Command {
        SettingFlags::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Self::default();
        given.update_from_arg_matches(matches)?;
        Ok(given)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in settings() {
            let values = matches.get_raw(setting.get_id().as_str()).into_iter().flatten();
            self.0.extend(values.map(|value| (field(&setting), value.to_string_lossy().into_owned())));
        }
        Ok(())
    }
}

fn settings() -> Vec<Arg> {
    SettingFlags::augment_args(clap::Command::new("set")).get_arguments().cloned().collect()
}

/// Returns the field of a setting: `retry_policy.max_delay` for --retry-max-delay, `rate.per_second` for --rate.
fn field(setting: &Arg) -> String {
    setting_path(setting.get_id().as_str())
}

/// Values of `--unset`: the outer fields of the settings, without the suffix of `retry_policy`.
fn unset_words() -> Vec<String> {
    let word = |setting| outer(&field(setting)).replace("_policy", "").replace('_', "-");
    let mut words: Vec<String> = settings().iter().map(word).collect();
    words.dedup();
    words
}

fn outer(field: &str) -> &str {
    field.split('.').next().unwrap_or_default()
}

/// Fields that a value of `--unset` resets.
fn unset_fields(word: &str) -> Vec<String> {
    match word {
        "retry" => vec!["retry_policy".into()],
        "key-max-running" => vec!["key_max_running".into(), "key_strict_order".into()],
        "key-min-gap" => vec!["key_min_gap".into(), "key_gap_from_end".into()],
        word => vec![word.replace('-', "_")],
    }
}

fn set(args: &SetArgs, global: &Global) -> Result<(), Failure> {
    if !args.reset && !args.no_fallback && args.given.0.is_empty() && args.unset.is_empty() {
        return Err(Failure::usage("nothing to set: give a setting, --unset or --reset; --help lists the settings"));
    }
    global.with_client(async |client| {
        let (settings, paths) = args.changes()?;
        let stored = if args.reset {
            client.update_task_type(&args.task_type, settings).await?
        } else {
            client.change_task_type(&args.task_type, settings, paths).await?
        };
        output::show(args.json, MESSAGE, &stored, || match settings_words(Some(&stored)) {
            words if words.is_empty() => "the broker's defaults".into(),
            words => words,
        })?;
        // The answer has the settings of one store. Ignores an error, such as a missing right to read types.
        if let Ok(stores) = in_stores(&client, &args.task_type).await
            && differ(&stores)
        {
            note(format!(
                "these are the settings in store {}; others differ (howdah type show {})",
                stores[0].store, args.task_type
            ));
        }
        Ok(())
    })
}

fn show(args: &ShowArgs, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let stores = in_stores(&client, &args.task_type).await?;
        let first = stores.first().ok_or_else(|| task_type::unknown(&args.task_type))?;
        if args.json && differ(&stores) {
            let names: Vec<&str> = stores.iter().map(|of| of.store.as_str()).collect();
            return Err(Failure::usage(format!(
                "the settings of {} differ between the stores {}: select one with --in-store",
                args.task_type,
                names.join(", ")
            )));
        }
        let settings = first.settings.clone().unwrap_or_default();
        output::show(args.json, MESSAGE, &settings, || shown(&stores))
    })
}

/// Lists a task type with its settings, once for each store that has it. Does not count the jobs of the type.
async fn in_stores(client: &Client, task_type: &str) -> Result<Vec<TaskType>, howdah_client::Error> {
    let request = ListTaskTypesRequest { task_type: task_type.into(), last_count: true, ..Default::default() };
    client.find_task_types(request).await
}

/// Whether stores have different settings of a task type.
fn differ(stores: &[TaskType]) -> bool {
    stores.windows(2).any(|pair| pair[0].settings != pair[1].settings)
}

/// Formats all settings of a task type, one a line. If the values of stores differ, the line has each of them: `timeout 5s in
/// shop, - in mail`.
fn shown(stores: &[TaskType]) -> String {
    let lists: Vec<_> =
        stores.iter().map(|of| (&of.store, settings_list(&of.settings.clone().unwrap_or_default()))).collect();
    let line = |nth: usize, flag: &str| {
        let values: Vec<(&str, &str)> =
            lists.iter().map(|(store, list)| (store.as_str(), list[nth].1.as_deref().unwrap_or("-"))).collect();
        let value = match &values[..] {
            [(_, value), others @ ..] if others.iter().all(|(_, other)| other == value) => (*value).to_owned(),
            all => all.iter().map(|(store, value)| format!("{value} in {store}")).collect::<Vec<_>>().join(", "),
        };
        format!("{flag:<19} {value}")
    };
    let flags = lists.first().map(|(_, list)| list.as_slice()).unwrap_or_default();
    flags.iter().enumerate().map(|(nth, (flag, _))| line(nth, flag)).collect::<Vec<_>>().join("\n")
}

impl SetArgs {
    /// Returns the given settings, and the paths of all fields that change. Fields without a value are reset.
    fn changes(&self) -> Result<(TaskTypeSettings, Vec<String>), Failure> {
        let mut given = self.given.0.clone();
        let is_given = |field: &String| given.iter().any(|(name, _)| outer(name) == field);
        if let Some(word) = self.unset.iter().find(|word| unset_fields(word).iter().any(is_given)) {
            return Err(Failure::usage(format!(
                "{word} is both set and unset: remove --unset {word}, or the flag that sets it"
            )));
        }
        let has = |field: &str| given.iter().any(|(name, _)| name == field);
        let implied = [
            ("retry_policy.delays", "retry_policy.kind", "list"),
            ("rate.per_second", "rate.burst", "1"),
            ("key_rate.per_second", "key_rate.burst", "1"),
        ];
        let implied = implied.into_iter().filter(|(name, implied, _)| has(name) && !has(implied));
        let implied: Vec<_> = implied.map(|(_, name, value)| (name.to_owned(), value.to_owned())).collect();
        given.extend(implied);
        let settings = from_words(MESSAGE, &given).map_err(|error| Failure::usage(error.to_string()))?;
        let reset = self.unset.iter().flat_map(|word| unset_fields(word));
        let reset = reset.chain(self.no_fallback.then(|| "fallback".to_owned()));
        let changed = given.iter().flat_map(|(name, value)| without_meaning(name, value).chain([name.clone()]));
        Ok((settings, reset.chain(changed).collect()))
    }
}

/// Returns the fields of a retry policy that have no meaning with a new kind of policy.
fn without_meaning(name: &str, value: &str) -> impl Iterator<Item = String> {
    let fields: &[&str] = match (name, value) {
        ("retry_policy.kind", "exponential") => &["delays"],
        ("retry_policy.kind", "linear") => &["delays", "multiplier"],
        ("retry_policy.kind", "fixed") => &["delays", "multiplier", "max_delay"],
        ("retry_policy.kind", _) => &["initial_delay", "multiplier", "max_delay"],
        _ => &[],
    };
    fields.iter().map(|field| format!("retry_policy.{field}"))
}

fn as_json(settings: &TaskTypeSettings) -> Map<String, Value> {
    match json::write(MESSAGE, settings) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// Returns all settings of a task type as pairs of flag name and value. The value of an unset setting is `None`.
fn settings_list(of: &TaskTypeSettings) -> Vec<(String, Option<String>)> {
    let fields = Value::from(as_json(of));
    let shown = |setting: &Arg| {
        let value = field(setting).split('.').try_fold(&fields, |value, name| value.get(name));
        (setting.get_id().as_str().replace('_', "-"), value.map(|value| words(setting, value)))
    };
    settings().iter().map(shown).collect()
}

/// Formats a value of the protocol's JSON as the value of its flag.
fn words(setting: &Arg, value: &Value) -> String {
    match value {
        Value::Array(values) => values.iter().map(|value| words(setting, value)).collect::<Vec<_>>().join(","),
        Value::Number(number) => number.as_f64().unwrap_or_default().to_string(),
        Value::String(text) => {
            let duration = text.parse::<prost_types::Duration>().ok().and_then(|time| text::duration(Some(&time)));
            let duration = duration.filter(|_| setting.get_value_parser().type_id() == TypeId::of::<Duration>());
            // The name of an enum value, such as HISTORY_MODE_NONE, ends with the word on the command line.
            let possible = setting.get_possible_values();
            let word = possible.iter().map(PossibleValue::get_name).find(|word| text.ends_with(&word.to_uppercase()));
            duration.map(duration_text).or(word.map(str::to_owned)).unwrap_or_else(|| escaped(text).into_owned())
        }
        other => other.to_string(),
    }
}

/// Formats the settings that are set, such as `max-attempts 3, retry-initial-delay 30s`.
pub(super) fn settings_words(settings: Option<&TaskTypeSettings>) -> String {
    let all = settings.map(settings_list).unwrap_or_default();
    let words = all.into_iter().filter_map(|(flag, value)| Some(format!("{flag} {}", value?)));
    words.collect::<Vec<_>>().join(", ")
}

/// Formats the settings that are set in the first of these stores, and says if others differ.
pub(super) fn settings_of_stores(stores: &[TaskType]) -> String {
    let words = settings_words(stores.first().and_then(|of| of.settings.as_ref()));
    match stores.first() {
        Some(first) if differ(stores) => format!("{words} (in store {}; others differ)", first.store),
        _ => words,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use howdah_client::proto::{Brake, Rate, RetryPolicy};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SetArgs,
    }

    fn settings(flags: &[&str], before: &TaskTypeSettings) -> TaskTypeSettings {
        let (new, paths) = Line::parse_from(["set", "a"].iter().chain(flags)).args.changes().unwrap();
        json::masked(MESSAGE, before, &new, &paths).unwrap()
    }

    fn changed(flags: &[&str], before: &TaskTypeSettings) -> String {
        settings_words(Some(&settings(flags, before)))
    }

    fn words(flags: &[&str]) -> String {
        changed(flags, &TaskTypeSettings::default())
    }

    #[test]
    fn settings_of_a_task_type_without_a_flag_stay_unchanged() {
        let before = TaskTypeSettings {
            max_attempts: 3,
            retry_policy: Some(RetryPolicy { multiplier: Some(1.5), ..RetryPolicy::default() }),
            ..TaskTypeSettings::default()
        };
        assert_eq!(
            changed(&["--retry-initial-delay", "5s", "--retry-jitter", "0"], &before),
            "max-attempts 3, retry-initial-delay 5s, retry-multiplier 1.5, retry-jitter 0"
        );
        assert_eq!(changed(&["--max-attempts", "7"], &before), "max-attempts 7, retry-multiplier 1.5");
        let fallback = changed(&["--fallback", "b"], &TaskTypeSettings::default());
        assert_eq!(fallback, "fallback b");
        let before = TaskTypeSettings { fallback: "b".into(), ..TaskTypeSettings::default() };
        assert_eq!(changed(&["--no-fallback"], &before), "");
        assert_eq!(
            changed(&["--history", "none", "--max-attempts", "1"], &TaskTypeSettings::default()),
            "max-attempts 1, history none"
        );
        let all = "--history without_empty --history-days 3 --priority-step 1m --timeout 30s --paused true \
                   --max-payload-bytes 10 --max-backlog 5";
        let all: Vec<&str> = all.split_whitespace().collect();
        assert_eq!(
            changed(&all, &TaskTypeSettings::default()),
            "history without_empty, history-days 3, priority-step 1m, timeout 30s, paused true, max-payload-bytes 10, \
             max-backlog 5"
        );
    }

    #[test]
    fn each_setting_can_be_unset() {
        let second = Some(prost_types::Duration { seconds: 1, nanos: 0 });
        let set = TaskTypeSettings {
            max_attempts: 3,
            retry_policy: Some(RetryPolicy { multiplier: Some(1.5), ..RetryPolicy::default() }),
            history: 1,
            history_days: 3,
            dead_days: 3,
            priority_step: second,
            timeout: second,
            paused: true,
            max_payload_bytes: 1,
            max_backlog: 1,
            fallback: "b".into(),
            max_running: 1,
            rate: Some(Rate { per_second: 1.0, burst: 2 }),
            key_max_running: 1,
            key_strict_order: true,
            key_min_gap: second,
            key_gap_from_end: true,
            key_rate: Some(Rate { per_second: 0.5, burst: 1 }),
            brake: Some(Brake { failures: 1, initial_delay: second, max_delay: second }),
        };
        assert_eq!(
            changed(&["--paused", "false", "--unset", "max-backlog", "--max-attempts", "4"], &set).matches(',').count(),
            20
        );
        let unset = unset_words();
        let all: Vec<&str> = unset.iter().flat_map(|word| ["--unset", word]).collect();
        assert_eq!(changed(&all, &set), "");
        let flags = ["set", "a", "--fallback", "c", "--unset", "fallback"];
        let both = Line::parse_from(flags).args.changes().expect_err("a contradiction");
        assert!(format!("{both:?}").contains("fallback is both set and unset"), "{both:?}");
    }

    #[test]
    fn each_kind_has_its_flags() {
        assert_eq!(words(&[]), "");
        assert_eq!(
            words(&["--retry-kind", "linear", "--retry-initial-delay", "5m", "--retry-max-delay", "1h"]),
            "retry-kind linear, retry-initial-delay 5m, retry-max-delay 1h"
        );
        assert_eq!(
            words(&["--retry-kind", "fixed", "--retry-initial-delay", "30s"]),
            "retry-kind fixed, retry-initial-delay 30s"
        );
        assert_eq!(words(&["--retry-delays", "1s,30s,5m"]), "retry-kind list, retry-delays 1s,30s,5m");
    }

    #[test]
    fn a_new_retry_kind_drops_fields_that_it_does_not_use() {
        let before = ["--retry-initial-delay", "5s", "--retry-multiplier", "3", "--retry-max-delay", "1h"];
        let before = settings(&before, &TaskTypeSettings::default());
        let after = |kind| changed(&["--retry-kind", kind], &before);
        assert_eq!(after("linear"), "retry-kind linear, retry-initial-delay 5s, retry-max-delay 1h");
        assert_eq!(after("fixed"), "retry-kind fixed, retry-initial-delay 5s");
        assert_eq!(after("list"), "retry-kind list");
        let list = settings(&["--retry-delays", "1s"], &before);
        assert_eq!(changed(&["--retry-kind", "exponential"], &list), "retry-kind exponential");
    }
}

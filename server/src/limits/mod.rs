//! Descriptions of all limits, built from the constants that enforce the limits. A test compares the tables of
//! `docs/reference/limits.md` with the descriptions; `just reference` generates the tables.

mod jobs;
mod requests;
mod serving;

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use howdah_core::{
    config::{Config, SETTINGS},
    job::ClusterSettings,
    numbers::grouped_in,
};

/// The default settings of a cluster.
const CLUSTER: ClusterSettings = ClusterSettings::DEFAULT;

/// One limit: a row of a table in `docs/reference/limits.md`.
#[derive(Clone, Debug)]
struct Limit {
    /// The limited quantity.
    subject: String,
    /// The limit, in Markdown.
    value: String,
    /// Whether and where the limit can be changed.
    set: Set,
}

/// Whether and where a limit can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    /// The limit is a constant.
    Fixed,
    /// Keys of the broker's configuration that set the limit.
    Broker(&'static [&'static str]),
    /// Keys of the broker's configuration that set the default of the limit.
    Default(&'static [&'static str]),
    /// Names of the cluster settings that set the limit.
    Cluster(&'static [&'static str]),
}

/// A group of related limits: its name in the reference page, and a function that returns the limits.
type Group = (&'static str, fn(&Config) -> Vec<Limit>);

/// All groups of limits, with the names by which the reference page marks their tables.
const GROUPS: [Group; 8] = [
    ("jobs", jobs::jobs),
    ("schedules", jobs::schedules),
    ("requests", requests::requests),
    ("workers", requests::workers),
    ("connections", serving::connections),
    ("callers", serving::callers),
    ("page", serving::page),
    ("broker", serving::broker),
];

/// Builds limits from rows of a subject, a format string of the limit, its values, and the keys that set the limit:
/// `"headers of a job": "{}, no NUL", CLUSTER.headers => Cluster["headers"];`.
macro_rules! rows {
    ($($subject:literal: $limit:literal $(, $value:expr)* $(=> $set:ident[$($key:literal),+])?;)*) => {
        vec![$($crate::limits::Limit {
            subject: format_args!($subject).to_string(),
            value: format_args!($limit $(, $value)*).to_string(),
            set: rows!(@$($set $($key)+)?),
        }),*]
    };
    (@) => { $crate::limits::Set::Fixed };
    (@$set:ident $($key:literal)+) => { $crate::limits::Set::$set(&[$($key),+]) };
}
use rows;

/// Formats a number of bytes in the largest unit without a fraction.
fn bytes(bytes: impl TryInto<u64>) -> String {
    let bytes = bytes.try_into().unwrap_or(u64::MAX);
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| bytes >= 1 << shift && bytes.is_multiple_of(1 << shift));
    unit.map_or_else(|| format!("{bytes} bytes"), |(shift, unit)| format!("{} {unit}", bytes >> shift))
}

/// Formats a duration in the largest unit without a fraction. One day is shown as 24 h.
fn time(time: Duration) -> String {
    let ms = time.as_millis() as u64;
    let units = [(86_400_000, "days"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")];
    let unit = units.into_iter().find(|(length, _)| ms > *length && ms.is_multiple_of(*length) || ms == *length);
    let (count, unit) = unit.map_or((ms, "ms"), |(length, unit)| (ms / length, unit));
    match (count, unit) {
        (0, _) => "0 s".into(),
        (1, "days") => "24 h".into(),
        (count, unit) => format!("{count} {unit}"),
    }
}

/// Formats limits as a Markdown table.
fn table(limits: Vec<Limit>) -> String {
    let row = |row: Limit| {
        let cells = [row.subject, grouped_in(&row.value), keys(row.set)];
        let cells = cells.map(|cell| if cell.is_empty() { " |".to_owned() } else { format!(" {cell} |") });
        format!("|{}\n", cells.concat())
    };
    format!("| what | limit | key |\n|---|---|---|\n{}", limits.into_iter().map(row).collect::<String>())
}

fn keys(set: Set) -> String {
    let keys = |keys: &[&str]| keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
    match set {
        Set::Fixed => String::new(),
        Set::Broker(of) => keys(of),
        Set::Default(of) => format!("{} (the default{})", keys(of), if of.len() > 1 { "s" } else { "" }),
        Set::Cluster(of) => format!("{} of the cluster", keys(of)),
    }
}

#[test]
fn the_limits_of_the_reference_are_those_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/limits.md");
    let written = fs::read_to_string(&path).expect("a page");
    let made = GROUPS.into_iter().fold(written.clone(), |page, (name, limits)| {
        let begin = format!("<!-- generated: limits {name} -->\n");
        let (before, rest) = page.split_once(&begin).expect(&begin);
        let (_, after) = rest.split_once("<!-- end -->").expect("an end");
        format!("{before}{begin}\n{}\n<!-- end -->{after}", table(limits(&Config::new(""))))
    });
    assert_eq!(made.matches("<!-- generated: ").count(), GROUPS.len(), "tables in the page");
    if made != written && std::env::var_os("HOWDAH_REFERENCE").is_some_and(|value| value == "write") {
        fs::write(&path, made).expect("write the reference page");
    } else {
        assert!(made == written, "docs/reference/limits.md is not what the code says; run `just reference`");
    }
}

#[test]
fn every_limit_of_the_configuration_has_a_row_and_every_key_of_a_row_is_a_setting() {
    let config = Config::new("");
    let rows = GROUPS.iter().flat_map(|(_, limits)| limits(&config));
    let keys: BTreeSet<&str> = rows
        .flat_map(|row| match row.set {
            Set::Fixed | Set::Cluster(_) => &[],
            Set::Broker(keys) | Set::Default(keys) => keys,
        })
        .copied()
        .collect();
    let settings: BTreeSet<&str> = SETTINGS.iter().map(|setting| setting.key).collect();
    assert_eq!(keys.difference(&settings).collect::<Vec<_>>(), Vec::<&&str>::new(), "no settings");
    let limits: BTreeSet<&str> = settings.into_iter().filter(|key| key.starts_with("limits.")).collect();
    assert_eq!(limits.difference(&keys).collect::<Vec<_>>(), Vec::<&&str>::new(), "without a row");
}

#[test]
fn every_setting_of_the_cluster_has_a_row() {
    let rows = GROUPS.iter().flat_map(|(_, limits)| limits(&Config::new("")));
    let names = rows.flat_map(|row| if let Set::Cluster(names) = row.set { names } else { &[] });
    assert_eq!(names.copied().collect::<BTreeSet<_>>(), ClusterSettings::NAMES.into());
}

#[test]
fn sizes_and_times_are_in_units_that_people_read() {
    assert_eq!([bytes(200), bytes(64 << 10), bytes(1 << 20)], ["200 bytes", "64 KiB", "1 MiB"]);
    let times = [0, 1, 10, 60, 86_400, 30 * 86_400].map(|seconds| time(Duration::from_secs(seconds)));
    assert_eq!(times, ["0 s", "1 s", "10 s", "1 min", "24 h", "30 days"]);
    assert_eq!(time(Duration::from_millis(1)), "1 ms");
}

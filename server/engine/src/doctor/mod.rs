//! Checks of the database and of this machine, for `howdah doctor`, for the Storage view and for the metric
//! `howdah_findings`. A check keeps no change in the database.

mod machine; // clock, files, connection limits
mod postgres; // settings, statistics, replication slots
mod schema; // owner, rights, collation, sequences, replica identities
mod tables; // dead rows, snapshots, locks, bloat, partitions, schedules

use std::time::{Instant, SystemTime};

use howdah_core::{
    config::{Config, WakeMode},
    logging::escaped,
};
use serde::Serialize;

use crate::store::{Store, StoreError};

/// Findings of a broker, and the time at which it looked.
#[derive(Clone, Debug)]
pub struct Examination {
    /// Time of the examination.
    pub time: SystemTime,
    /// Findings, problems first.
    pub findings: Vec<Finding>,
}

/// Runs the checks of the database and of its clock. Problems come first.
pub async fn examine(store: &Store, config: &Config) -> Result<Vec<Finding>, StoreError> {
    // The first statement opens the connection, so the duration of the second one is the response time.
    store.examine().await?;
    let (requested_at, began) = (SystemTime::now(), Instant::now());
    let facts = store.examine().await?;
    let took = began.elapsed();
    let mut findings = postgres::check(&facts);
    findings.extend(machine::connections(&store.connection_limits().await?, config));
    if facts.has_schema {
        let schema = store.examine_schema().await?;
        findings.extend(schema::check(&facts, &schema, config));
        findings.extend(tables::check(&schema, &store.storage_health().await?, &store.maintenance_state(1).await?));
    } else {
        findings.push(Finding::advice(
            "schema",
            format!("the database has no schema {} yet", config.schema),
            "run howdah migrate, or start a broker: both create it",
        ));
    }
    findings.extend(machine::clock(facts.now_us, requested_at, took));
    findings.sort_by_key(|finding| finding.level);
    Ok(findings)
}

/// Runs the checks that only `howdah doctor` needs, because a running broker has metrics for them: open files,
/// a job that is stored on trial and rolled back, and LISTEN.
pub async fn examine_start(store: &Store, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(machine::files(config));
    match store.try_write().await {
        // A role without the rights of brokers (42501) and a missing schema are found by other checks.
        Err(error) if error.code() != Some("42501") && !error.is_schema_missing() => {
            let found = format!("the database refuses to store a job on trial: {}", error.public_text());
            findings.push(Finding::problem("writes", found, error.advice()));
        }
        _ => {}
    }
    if config.wake == WakeMode::Listen
        && let Err(error) = store.listen("howdah_doctor", None).await
    {
        findings.push(not_listening(&error.public_text()));
    }
    findings
}

/// Finding for a broker that cannot receive notifications.
pub(crate) fn not_listening(why: &str) -> Finding {
    Finding::advice(
        "listen",
        format!("a broker cannot LISTEN for notifications, so jobs start up to poll_interval later: {why}"),
        "set listen_database_url to the server itself, not to a pooler; or set wake = \"poll\"",
    )
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Jobs may be lost, or may not run, until this is changed.
    Problem,
    /// A recommended improvement.
    Advice,
}

impl Level {
    /// Name in metrics, JSON and text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Problem => "problem",
            Self::Advice => "advice",
        }
    }
}

/// Result of a check: a state that should be changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Severity.
    pub level: Level,
    /// Stable name of the check.
    pub check: &'static str,
    /// Description of the current state.
    pub found: String,
    /// Recommended change.
    pub change: String,
}

impl Finding {
    pub fn problem(check: &'static str, found: impl Into<String>, change: impl Into<String>) -> Self {
        Self { level: Level::Problem, check, found: found.into(), change: change.into() }
    }

    pub fn advice(check: &'static str, found: impl Into<String>, change: impl Into<String>) -> Self {
        Self { level: Level::Advice, check, found: found.into(), change: change.into() }
    }

    /// Formats the finding as two lines of text.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{:7}  {}: {}\n         {}", self.level.name(), self.check, escaped(&self.found), escaped(&self.change))
    }
}

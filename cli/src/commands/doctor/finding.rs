//! Findings of checks, as text and as JSON.

use serde::Serialize;

use howdah_server::logging::escaped;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    /// Jobs may be lost, or may not run, until this is changed.
    Problem,
    /// A recommended improvement.
    Advice,
}

/// Result of a check: a state that should be changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    /// Stable name of the check.
    pub(super) check: &'static str,
    /// Description of the current state.
    pub(super) found: String,
    /// Recommended change.
    pub(super) change: String,
}

impl Finding {
    pub(super) fn problem(check: &'static str, found: impl Into<String>, change: impl Into<String>) -> Self {
        Self { level: Level::Problem, check, found: found.into(), change: change.into() }
    }

    pub(super) fn advice(check: &'static str, found: impl Into<String>, change: impl Into<String>) -> Self {
        Self { level: Level::Advice, check, found: found.into(), change: change.into() }
    }

    /// Formats the finding as two lines of text.
    pub(super) fn text(&self) -> String {
        let level = match self.level {
            Level::Problem => "problem",
            Level::Advice => "advice ",
        };
        format!("{level}  {}: {}\n         {}", self.check, escaped(&self.found), escaped(&self.change))
    }
}

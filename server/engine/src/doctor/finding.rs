//! Findings of checks, as text and as JSON.

use howdah_core::logging::escaped;
use serde::Serialize;

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

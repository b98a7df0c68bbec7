//! What a check finds, for people and as JSON.

use serde::Serialize;

use howdah_server::logging::escaped;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    /// Jobs may be lost, or stand still, unless it is changed.
    Problem,
    /// It works, and would work better.
    Advice,
}

/// Something that should be changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    /// What was looked at: a stable name.
    pub(super) check: &'static str,
    /// What is the case.
    pub(super) found: String,
    /// What to do.
    pub(super) change: String,
}

impl Finding {
    pub(super) fn problem(check: &'static str, found: impl Into<String>, change: impl Into<String>) -> Self {
        Self { level: Level::Problem, check, found: found.into(), change: change.into() }
    }

    pub(super) fn advice(check: &'static str, found: impl Into<String>, change: impl Into<String>) -> Self {
        Self { level: Level::Advice, check, found: found.into(), change: change.into() }
    }

    /// Two lines for people.
    pub(super) fn text(&self) -> String {
        let level = match self.level {
            Level::Problem => "problem",
            Level::Advice => "advice ",
        };
        format!("{level}  {}: {}\n         {}", self.check, escaped(&self.found), escaped(&self.change))
    }
}

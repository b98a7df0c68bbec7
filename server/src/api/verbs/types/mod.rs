//! Calls for operators about task types: job counts, settings, limit keys and statistics.

pub(crate) mod limit_keys;
pub(crate) mod list;
mod stats;
mod update;

pub(crate) use limit_keys::{ListLimitKeys, PauseLimitKey, ResumeLimitKey, UpdateLimitKey};
pub(crate) use list::ListTaskTypes;
pub(crate) use stats::GetStats;
pub(crate) use update::UpdateTaskType;

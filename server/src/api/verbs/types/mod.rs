//! Calls for operators about task types: job counts, settings, limit keys and statistics.

pub(crate) mod limit_keys;
pub(crate) mod list;
mod pause_key;
mod stats;
mod update;
mod update_key;

pub(crate) use limit_keys::ListLimitKeys;
pub(crate) use list::ListTaskTypes;
pub(crate) use pause_key::{PauseLimitKey, ResumeLimitKey};
pub(crate) use stats::GetStats;
pub(crate) use update::UpdateTaskType;
pub(crate) use update_key::UpdateLimitKey;

//! Calls for operators about task types: job counts, settings, limit keys and statistics.

pub(crate) mod limit_keys;
pub(crate) mod list;
mod stats;
mod update;

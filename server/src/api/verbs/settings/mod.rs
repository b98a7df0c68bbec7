//! Calls for the settings of the cluster. Each store has its own settings. A call that names no store reads from the primary
//! store, but changes the settings in all stores.

mod get;
mod update;

pub(crate) use get::GetSettings;
pub(crate) use update::UpdateSettings;

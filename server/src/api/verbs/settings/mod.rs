//! Calls for the settings of the cluster. Each store has its own settings. A call that names no store reads the settings of the
//! primary store, and changes the settings of all stores.

mod get;
mod update;

pub(crate) use get::GetSettings;
pub(crate) use update::UpdateSettings;

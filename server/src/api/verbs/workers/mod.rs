//! Calls for workers, and the list of workers.

mod list;
pub(crate) mod messages; // messages of the `Work` stream
mod outcomes;
pub(crate) mod pull;
mod results;
pub(super) mod work;

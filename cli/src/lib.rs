//! The program `howdah` as a library, for its tests. Modules are listed in the order in which they call each other.

pub mod commands; // the command line: one file per command
pub mod keda; // the scaler that KEDA asks: a client like any other
pub mod workers; // the built-in workers: clients like any other
pub mod import; // jobs from other systems
pub mod postgres; // the private Postgres of `howdah dev` and of the tests

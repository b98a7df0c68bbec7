//! The program `howdah`, as a library that its tests use too. Modules in the order in which they call each other.

pub mod commands; // the command line: one file a command
pub mod workers; // the built-in workers: clients like any other
pub mod import; // jobs from other systems
pub mod postgres; // the private Postgres of `howdah dev` and of the tests

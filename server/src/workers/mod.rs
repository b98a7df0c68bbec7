//! The workers in the box: clients like any other, on the Rust client crate.

pub mod exec; // runs a shell command for each job

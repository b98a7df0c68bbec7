//! The built-in workers: clients like any other, on the Rust client crate.

pub mod attempt; // an attempt of a job, and its ending
mod bounded_lines; // lines of foreign processes, in bounded memory
pub mod exec; // a process for each job: payload on stdin, result on stdout
pub mod lines; // one process for many jobs: JSON lines on its stdin and stdout
pub mod post; // an HTTP request for each job
pub mod program; // how a process is started: arguments, environment, directory
pub mod reports; // progress on its way to the broker
pub mod sql; // SQL statements

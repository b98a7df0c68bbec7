//! The workers in the box: clients like any other, on the Rust client crate.

pub mod attempt; // what they are told of a job, and how an attempt ends
mod bounded_lines; // lines of foreign processes, in bounded memory
pub mod exec; // a process for each job: payload on stdin, result on stdout
pub mod lines; // one process for many jobs: JSON lines on its stdin and stdout
pub mod post; // an HTTP request for each job
pub mod program; // what a process is made of: arguments, environment, directory
pub mod reports; // progress on its way to the broker
pub mod sql; // statements in a database

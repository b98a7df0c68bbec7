//! Built-in workers. They use the Rust client crate, like any other client.

pub mod attempt; // attempt of a job, and its ending
mod bounded_lines; // reads lines of processes in bounded memory
pub mod exec; // one process per job: payload on stdin, result on stdout
pub mod lines; // one process for many jobs: JSON lines on its stdin and stdout
pub mod post; // one HTTP request per job
pub mod program; // arguments, environment and directory of a process
pub mod reports; // sends progress reports to the broker
pub mod results; // results of dependencies, as a file
pub mod sql; // SQL statements

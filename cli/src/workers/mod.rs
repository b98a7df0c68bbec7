//! Built-in workers, which turn attempts of jobs into outcomes. They use the Rust client crate, like any other client.

pub mod attempt; // attempt of a job, its results, and its end
pub mod exec; // one process per job: payload on stdin, result on stdout
pub mod lines; // one process for many jobs: JSON lines on its stdin and stdout
pub mod post; // one HTTP request per job
pub mod process; // processes: how they start, write and end
pub mod reports; // sends progress reports to the broker
pub mod sql; // SQL statements
pub mod watchman; // ends the processes of a killed worker

//! `howdah bench`: measures Howdah and compares it with its Postgres alone.
//!
//! Postgres and brokers are separate processes. Producers and workers run in this process and call the brokers over gRPC. Every job
//! is counted: a run with lost, duplicated or unexpected jobs fails. `docs/operate/benchmark.md` explains the figures.
//!
//! The modules, in the order of a run:
//!
//! - `args`: the arguments
//! - `run`: yardstick, workload, yardstick, workload, …
//! - `yardstick`: Postgres alone (`sql/yardstick.sql`), and the time of a commit alone, at a fixed rate
//! - `environment`: a database and brokers on it
//! - `workload`: the workloads
//! - `load`: producers and workers
//! - `report`: bars, the table, JSON, the report

mod args;
mod error;
mod load;
mod environment;
mod run;
mod report;
mod workload;
mod yardstick;

pub use self::{args::Args, environment::Launcher, error::Error, run::run};

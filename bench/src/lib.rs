//! `howdah bench`: how fast a Howdah is, and what part of that its Postgres could do at all.
//!
//! Postgres and brokers are processes of their own; producers and workers are in this one, and speak gRPC
//! with the brokers. Everything is counted job by job: a run in which one is lost, duplicated or
//! unexpected fails. `docs/operate/benchmark.md` says how to read the figures.
//!
//! The modules, in the order of a run:
//!
//! - `args`: what is asked for
//! - `run`: yardstick, workload, yardstick, workload, …
//! - `yardstick`: Postgres alone (`sql/yardstick.sql`)
//! - `floor`: what a commit alone takes at a fixed rate
//! - `environment`: a database and brokers on it
//! - `workload`: one file each
//! - `load`: producers and workers
//! - `report`: bars, the table, JSON, the report

mod args;
mod error;
mod floor;
mod load;
mod environment;
mod run;
mod report;
mod workload;
mod yardstick;

pub use self::{args::Args, environment::Launcher, error::Error, run::run};

//! Tests a client of Howdah with a conformance suite. It uses real brokers, a real Postgres, a proxy that injects faults, and the
//! client's adapter, a program that runs commands. `ADAPTER.md` defines the protocol between the runner and the adapter;
//! `scenarios/` has the suite.
//!
//! - [`run`]: the program and its arguments
//! - `suite`, `report`: runs all scenarios, and prints the results
//! - `scenario_run`, `verbs`, `rules`: runs one scenario and its steps, and checks the rules that hold in every scenario
//! - `environment`: the addresses and variables of one scenario
//! - `scenario`, `values`, `pattern`: scenario files, their variables and expectations
//! - `world`, `certificates`: Postgres and brokers, and their certificates
//! - `adapter`: the process of the client's adapter
//! - `proxy`, `tap`, `rewrite`: the network between client and brokers, which injects faults, logs messages and changes them
//! - `oracle`: calls brokers without the client under test
//! - `inventory`, `log`, [`dynamic`]: calls and fields seen, logs, messages by name
//! - [`kit`]: support for adapters in Rust

mod adapter;
mod certificates;
pub mod dynamic;
mod environment;
mod inventory;
pub mod kit;
mod log;
mod oracle;
mod pattern;
mod proxy;
mod report;
mod rewrite;
mod rules;
mod run;
mod scenario;
mod scenario_run;
mod suite;
mod tap;
mod values;
mod verbs;
mod world;

pub use run::{Args, run};

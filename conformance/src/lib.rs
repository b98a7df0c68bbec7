//! Holds a client of Howdah to one suite: real brokers, a real Postgres, a proxy with faults, and the client's adapter,
//! which is told what to do. `ADAPTER.md` is the protocol between the two; `scenarios/` is the suite.
//!
//! - [`run`]: the program
//! - `suite`, `report`: all scenarios, and how they went
//! - `play`, `verbs`, `rules`: one scenario, its steps, and what always holds
//! - `stage`: the addresses of one scenario
//! - `scenario`, `values`, `pattern`: what scenarios say
//! - `world`, `certificates`: brokers
//! - `adapter`: the client
//! - `proxy`, `tap`, `bend`: the network between them
//! - `oracle`: asks brokers around the client
//! - `inventory`, `log`, [`dynamic`]: the protocol
//! - [`kit`]: for adapters in Rust

mod adapter;
mod bend;
mod certificates;
pub mod dynamic;
mod inventory;
pub mod kit;
mod log;
mod oracle;
mod pattern;
mod play;
mod proxy;
mod report;
mod rules;
mod run;
mod scenario;
mod stage;
mod suite;
mod tap;
mod values;
mod verbs;
mod world;

pub use run::{Args, run};

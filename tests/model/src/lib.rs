//! A model of Howdah's leases and settles, small enough to explore every order of steps with the model checker `stateright`.
//! `docs/internals/model.md` describes its scope and the problems it found.

#![allow(clippy::unused_self, reason = "steps are methods of the protocol for uniformity")]

mod action; // the possible steps
mod checks; // the checks of statements, which can be disabled
mod properties; // the properties to check
mod protocol; // the model for the checker
pub mod replay; // replays recorded runs against the protocol
mod report; // runs the checker
mod size; // model sizes
mod state; // the state
mod steps; // the effects of steps
pub mod tables; // the tables and their statements, shared with the replay

pub use action::Action;
pub use checks::{Checks, Without};
pub use properties::*;
pub use protocol::Protocol;
pub use report::{Checked, check};
pub use size::{Size, Sizes};
pub use state::{Faults, State};

//! A model of Howdah's leases and settles, small enough to look at every order in which things can happen. `stateright`
//! does the looking. docs/internals/model.md says what is modelled, what is left out, and what was found.

#![allow(clippy::unused_self, reason = "steps are methods of the protocol, whether they need its size or not")]

mod action; // what can happen next
mod checks; // what statements compare, and what can be taken out
mod properties; // what must hold
mod protocol; // all of it, as the checker sees it
pub mod replay; // what was recorded of a run, step by step
mod report; // runs the checker
mod size; // how many of everything
mod state; // all that there is at one moment
mod steps; // what each step does
pub mod tables; // the tables and their statements, shared with the replay

pub use action::Action;
pub use checks::{Checks, Without};
pub use properties::*;
pub use protocol::Protocol;
pub use report::{Checked, check};
pub use size::{Size, Sizes};
pub use state::{Faults, State};

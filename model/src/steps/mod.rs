//! Effects of each step on the state.

mod answer;
mod broker;
mod clock;
mod statement;
mod worker;

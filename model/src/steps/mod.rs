//! What each step does to the state.

mod answer;
mod broker;
mod clock;
mod statement;
mod worker;

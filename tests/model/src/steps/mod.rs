//! Effects of each step on the model's state.

mod answer;
mod broker;
mod clock;
mod statement;
mod worker;

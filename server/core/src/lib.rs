//! Types, rules and settings of the Howdah broker, without database and network.
//!
//! Modules are listed in layers. Each module uses only modules below it in the list; the test in `server/src/layers.rs`
//! checks that.

pub mod config; // flags > environment > file > defaults, into one checked Config
pub mod job; // types and rules without I/O: states, rank, retry, limits
pub mod error; // the error of calls, and its only conversion to a gRPC status
pub mod durations; // durations as text for people
pub mod numbers; // numbers as text for people
pub mod logging; // text or JSON on stderr; escapes all input from outside

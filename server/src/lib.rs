//! The Howdah broker as a library: the gateway, which puts network ports in front of the engines of one or more stores.
//!
//! Modules are listed in layers, from the network ports to the lowest one. Each module uses only modules below it in
//! the list, and the crates `howdah-engine` (jobs of one store) and `howdah-core` (types, rules and settings); the test in
//! `layers.rs` checks the order.

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzz; // entry points for the fuzzers
#[cfg(test)]
mod limits; // the limits of the reference page, collected from the modules' constants
pub mod serve; // a whole broker: bind, migrate, start, serve, drain, stop
pub mod web; // the HTTP port: health, metrics, enqueue
mod page; // the page for operators, on the HTTP port
pub mod api; // the gRPC services: translate, call, translate back
pub mod stores; // several stores in one process: migration, store numbers, moves between stores
pub mod credentials; // authentication of callers: tokens, JSON Web Tokens, client certificates
pub mod tls; // certificates of the ports, handshakes, the client's identity
mod browser; // refuses requests that browsers send for web pages

#[cfg(test)]
mod layers; // tests the order of this list

//! The scaler that KEDA asks how many replicas of a worker there should be. It is a client of brokers.
//!
//! - `metadata`: what the trigger of a `ScaledObject` asks for
//! - `demand`: how many jobs must run at once; no I/O
//! - `scaler`: the service
//! - `serve`: its port

mod demand;
mod metadata;
mod scaler;
mod serve;

pub use self::{
    scaler::Scaler,
    serve::{ServeError, serve},
};
pub(crate) use serve::check_address;

/// The interface that KEDA publishes.
#[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]
pub mod proto {
    tonic::include_proto!("externalscaler");
}

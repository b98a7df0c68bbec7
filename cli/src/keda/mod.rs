//! An external scaler for KEDA, which computes the number of replicas of a worker. It is a client of the brokers.
//!
//! - `metadata`: parses the trigger of a `ScaledObject`
//! - `demand`: computes the concurrency that is needed; no I/O
//! - `scaler`: the gRPC service
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

/// The gRPC interface published by KEDA.
#[allow(clippy::all, clippy::pedantic, unreachable_pub)]
pub mod proto {
    tonic::include_proto!("externalscaler");
}

//! Spans and metrics according to the OpenTelemetry conventions for messaging; `docs/operate/tracing.md` has the tables.
//! Without the feature `opentelemetry`, the types of this module do nothing.
//!
//! - [`Sending`]: telemetry of an enqueue, or of a submission to a producer, until its response
//! - [`Attempt`]: telemetry of a handler until it ends, and of its outcome until the broker confirms it
//! - [`Address`]: the address of the broker

#[cfg(feature = "opentelemetry")]
mod attempt;
#[cfg(not(feature = "opentelemetry"))]
mod nothing;
#[cfg(feature = "opentelemetry")]
mod operation;
#[cfg(feature = "opentelemetry")]
mod sending;
#[cfg(feature = "opentelemetry")]
mod setup;

#[cfg(not(feature = "opentelemetry"))]
pub(crate) use self::nothing::{Address, Attempt, Sending, Telemetry};
#[cfg(feature = "opentelemetry")]
pub use self::setup::Telemetry;
#[cfg(feature = "opentelemetry")]
pub(crate) use self::{attempt::Attempt, operation::Address, sending::Sending};

//! Spans and metrics according to the OpenTelemetry conventions for messaging; `docs/operate/tracing.md` has the tables. Without
//! the feature `opentelemetry`, these types do nothing.
//!
//! - [`Sending`]: an enqueue, or a submission to a producer, until its response
//! - [`Attempt`]: a handler, until it ends
//! - [`Settling`]: an outcome, until it is confirmed
//! - [`Address`]: the address of the broker

#[cfg(feature = "opentelemetry")]
mod attempt;
#[cfg(feature = "opentelemetry")]
mod context;
#[cfg(feature = "opentelemetry")]
mod meters;
#[cfg(not(feature = "opentelemetry"))]
mod nothing;
#[cfg(feature = "opentelemetry")]
mod operation;
#[cfg(feature = "opentelemetry")]
mod sending;
#[cfg(feature = "opentelemetry")]
mod setup;

#[cfg(not(feature = "opentelemetry"))]
pub(crate) use self::nothing::{Address, Sending, Settling, Telemetry};
#[cfg(feature = "opentelemetry")]
pub use self::setup::Telemetry;
#[cfg(feature = "opentelemetry")]
pub(crate) use self::{attempt::Settling, operation::Address, sending::Sending};

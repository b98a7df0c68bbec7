//! Spans and metrics, by the conventions of OpenTelemetry for messaging; `docs/operate/tracing.md` has the tables. Without
//! the feature `opentelemetry` all of this is nothing.
//!
//! - [`Sending`]: an enqueue, or a submission to a producer, until its answer
//! - [`Attempt`]: a handler, until it has ended
//! - [`Settling`]: an outcome, until it is confirmed
//! - [`Address`]: the broker that they are about

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

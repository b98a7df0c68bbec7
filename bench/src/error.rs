//! Errors of the benchmark.

use std::io;

/// An error that ends the benchmark.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments contradict each other.
    #[error("{0}")]
    Usage(String),
    /// A process failed to start, or ended unexpectedly.
    #[error("{0}")]
    Process(String),
    /// Postgres returned an error or could not be reached.
    #[error("{operation}: {}", chain(.error))]
    Postgres { operation: &'static str, error: tokio_postgres::Error },
    #[error("{0}")]
    Broker(#[from] howdah_client::Error),
    /// Output could not be written.
    #[error("{operation}: {error}")]
    Output { operation: String, error: io::Error },
    /// A plot of the report could not be drawn.
    #[error("cannot draw a plot: {0}")]
    Plot(String),
    /// Jobs were lost, delivered twice, or unexpected.
    #[error("{0}")]
    Faults(String),
    /// The benchmark was interrupted.
    #[error("interrupted")]
    Interrupted,
}

/// Result with the benchmark's error type.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// For `map_err`: adds the name of the operation.
    pub(crate) fn postgres(operation: &'static str) -> impl FnOnce(tokio_postgres::Error) -> Self {
        move |error| Self::Postgres { operation, error }
    }
}

impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Self {
        Self::Broker(status.into())
    }
}

/// Formats an error with its source, because the driver's message omits the server's error.
fn chain(error: &tokio_postgres::Error) -> String {
    let cause = std::error::Error::source(error);
    cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

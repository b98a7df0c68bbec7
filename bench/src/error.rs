//! Why a benchmark ended early.

use std::io;

/// Why a benchmark ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments contradict each other.
    #[error("{0}")]
    Usage(String),
    /// A process could not be started, or ended.
    #[error("{0}")]
    Process(String),
    /// Postgres refused something, or could not be reached.
    #[error("{what}: {}", chain(.error))]
    Postgres {
        /// The operation.
        what: &'static str,
        /// The error of Postgres or the driver.
        error: tokio_postgres::Error,
    },
    /// A broker refused something, or could not be reached.
    #[error("{0}")]
    Broker(#[from] howdah_client::Error),
    /// The output could not be written.
    #[error("{what}: {error}")]
    Output {
        /// The output.
        what: String,
        /// The system's error.
        error: io::Error,
    },
    /// The report's plots could not be drawn.
    #[error("cannot draw a plot: {0}")]
    Plot(String),
    /// The benchmark ended, and jobs were lost, duplicated or unexpected.
    #[error("{0}")]
    Faults(String),
    /// It was told to stop.
    #[error("interrupted")]
    Interrupted,
}

/// The result of everything here.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// For `map_err`: the operation.
    pub(crate) fn postgres(what: &'static str) -> impl FnOnce(tokio_postgres::Error) -> Self {
        move |error| Self::Postgres { what, error }
    }
}

impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Self {
        Self::Broker(status.into())
    }
}

/// The driver's own text leaves out the server's error.
fn chain(error: &tokio_postgres::Error) -> String {
    let cause = std::error::Error::source(error);
    cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

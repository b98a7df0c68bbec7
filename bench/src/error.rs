//! Why a benchmark ended early.

use std::io;

/// Why a benchmark ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was asked for does not go together.
    #[error("{0}")]
    Usage(String),
    /// A process could not be started, or ended.
    #[error("{0}")]
    Process(String),
    /// Postgres refused something, or is gone.
    #[error("{what}: {}", chain(.error))]
    Postgres {
        /// What was tried.
        what: &'static str,
        /// What Postgres or the driver said.
        error: tokio_postgres::Error,
    },
    /// A broker refused something, or is gone.
    #[error("{0}")]
    Broker(#[from] howdah_client::Error),
    /// It could not be shown.
    #[error("{what}: {error}")]
    Output {
        /// What was to be written.
        what: String,
        /// Why that failed.
        error: io::Error,
    },
    /// The report's plots could not be drawn.
    #[error("cannot draw a plot: {0}")]
    Plot(String),
    /// It ran to its end, and jobs were lost, duplicated or unexpected.
    #[error("{0}")]
    Faults(String),
    /// It was told to stop.
    #[error("interrupted")]
    Interrupted,
}

/// The result of everything here.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// For `map_err`: what was tried.
    pub(crate) fn postgres(what: &'static str) -> impl FnOnce(tokio_postgres::Error) -> Self {
        move |error| Self::Postgres { what, error }
    }
}

impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Self {
        Self::Broker(status.into())
    }
}

/// The driver's own text leaves out what the server said.
fn chain(error: &tokio_postgres::Error) -> String {
    let cause = std::error::Error::source(error);
    cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

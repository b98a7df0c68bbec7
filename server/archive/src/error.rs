//! Errors of the archive.

/// An error of the archive. Messages contain no credentials, because archive URLs cannot carry any.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The archive URL cannot be used.
    #[error("cannot use the archive {url}: {problem}")]
    Url {
        /// The URL as configured.
        url: String,
        /// Reason why the URL cannot be used.
        problem: String,
    },
    /// The directory or bucket returned an error.
    #[error("{operation} {path}: {source}")]
    Store {
        /// Name of the failed operation, such as `reading`.
        operation: &'static str,
        /// Path of the file.
        path: String,
        /// The error of the object store.
        source: object_store::Error,
    },
    /// A storage operation timed out.
    #[error("{operation} {path}: no answer within {seconds} s")]
    Timeout {
        /// Name of the failed operation, such as `reading`.
        operation: &'static str,
        /// Path of the file.
        path: String,
        /// The timeout of the operation, in seconds.
        seconds: u64,
    },
    /// The content of a file differs from the file's entry in the manifest, or cannot be decoded.
    #[error("{path}: {problem}")]
    Damaged {
        /// Path of the file.
        path: String,
        /// Description of the difference, or the decoder's error.
        problem: String,
    },
    /// Encoding a Parquet file failed. Errors of decoding are [`Error::Damaged`].
    #[error("writing Parquet: {0}")]
    Parquet(#[from] parquet::errors::ParquetError),
    /// A background task or thread stopped early, or a decoding error that is not yet wrapped in [`Error::Damaged`].
    #[error("{0}")]
    Ended(String),
}

impl Error {
    pub(crate) fn damaged(path: impl Into<String>, problem: impl std::fmt::Display) -> Self {
        Self::Damaged { path: path.into(), problem: problem.to_string() }
    }

    /// Whether the archive is unavailable: bad URL, storage error or timeout. False for missing and damaged files.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Url { .. } | Self::Store { .. } | Self::Timeout { .. }) && !self.is_missing()
    }

    /// Whether the error means that a file does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Store { source: object_store::Error::NotFound { .. }, .. })
    }
}

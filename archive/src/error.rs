//! What may go wrong.

/// An error of the archive. None of its texts has a credential: those are never part of a URL here.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL cannot be used.
    #[error("the archive {url}: {problem}")]
    Url {
        /// As it was given.
        url: String,
        /// What is wrong.
        problem: String,
    },
    /// The directory or the bucket refused, or does not answer.
    #[error("{doing} {path}: {source}")]
    Store {
        /// What was tried.
        doing: &'static str,
        /// With which file.
        path: String,
        /// The answer.
        source: object_store::Error,
    },
    /// No answer in time.
    #[error("{doing} {path}: no answer within {seconds} s")]
    Late {
        /// What was tried.
        doing: &'static str,
        /// With which file.
        path: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// A file is not what was written.
    #[error("{path}: {problem}")]
    Damaged {
        /// The file.
        path: String,
        /// What differs.
        problem: String,
    },
    /// Parquet could not be written.
    #[error("writing Parquet: {0}")]
    Parquet(#[from] parquet::errors::ParquetError),
    /// A part of the writer has ended.
    #[error("{0}")]
    Ended(String),
}

impl Error {
    pub(crate) fn damaged(path: impl Into<String>, problem: impl std::fmt::Display) -> Self {
        Self::Damaged { path: path.into(), problem: problem.to_string() }
    }

    /// Whether the directory or the bucket does not answer as it should, whatever is in it.
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Url { .. } | Self::Store { .. } | Self::Late { .. }) && !self.is_missing()
    }

    /// Whether the file is simply not there.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Store { source: object_store::Error::NotFound { .. }, .. })
    }
}

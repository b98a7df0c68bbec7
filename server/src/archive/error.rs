//! Errors of the archive.

use crate::store::StoreError;

/// Reason why an archive operation fails.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The database failed.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// Reading or writing files failed.
    #[error("{0}")]
    Files(#[from] howdah_archive::Error),
    /// Files could not be read, were not read in time, or have other contents than the manifest says.
    #[error("{0}")]
    Unread(String),
    /// Jobs were archived, or their files replaced, while they were read.
    #[error("day {0} was archived or rewritten while it was read; read it again")]
    Moved(String),
    /// A job to restore has no payload any more.
    #[error("job {id} was archived without its payload (archive_payloads = \"{kept}\"), so it cannot be restored")]
    NoPayload {
        /// The job.
        id: i64,
        /// Archived part of payloads: `hash` or `none`.
        kept: &'static str,
    },
    /// Another run has taken over the day, because this one counted as dead.
    #[error("another run has taken over day {0}, because this run counted as dead")]
    TakenOver(String),
    /// The files differ from the partition.
    #[error(
        "the files of day {day} contain {written:?}, but its partition has {stored:?}: the partition was changed meanwhile"
    )]
    Differs {
        /// The day.
        day: String,
        /// Checksums of the files.
        written: howdah_archive::Sums,
        /// Checksums of the partition.
        stored: howdah_archive::Sums,
    },
    /// The archive contains files of another database.
    #[error("{url} contains day {day} of another database ({database}): each database needs its own archive_url")]
    Foreign {
        /// The archive.
        url: String,
        /// The day.
        day: String,
        /// The other database.
        database: String,
    },
    /// A manifest is unreadable.
    #[error("the manifest of day {day} is unreadable: {problem}")]
    Manifest {
        /// The day.
        day: String,
        /// Description of the problem.
        problem: String,
    },
}

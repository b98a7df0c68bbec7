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
    /// Archive files could not be read, or not in time, or their contents differ from the manifest.
    #[error("{0}")]
    Unread(String),
    /// While the caller read a day, its jobs were archived or its files replaced.
    #[error("day {0} was archived or rewritten while it was read; read it again")]
    Moved(String),
    /// A job cannot be restored, because the archive does not contain its payload.
    #[error("job {id} was archived without its payload (archive_payloads = \"{kept}\"), so it cannot be restored")]
    NoPayload {
        /// The job.
        id: i64,
        /// Mode of `archive_payloads` when the job was archived: `hash` or `none`.
        kept: &'static str,
    },
    /// Another archive run has taken over the day, because this run sent no heartbeat for too long.
    #[error("another run has taken over day {0} of the archive, because this run sent no heartbeat in time")]
    TakenOver(String),
    /// The checksums of the archive files and of the day partition differ.
    #[error("the files of day {day} contain {written:?}, but its partition has {stored:?}: the partition has changed")]
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

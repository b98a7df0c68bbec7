//! What may go wrong when a day is archived.

use crate::store::StoreError;

/// Why a day is not archived.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The database.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The files.
    #[error("{0}")]
    Files(#[from] howdah_archive::Error),
    /// A part of the archive that was not looked at.
    #[error("{0}")]
    Unread(String),
    /// Jobs that were read went to the archive meanwhile, or their files were replaced.
    #[error("{0} was archived or written anew while it was read: read it again")]
    Moved(String),
    /// A job that is to be restored has no payload any more.
    #[error("job {id} was archived without its payload (archive_payloads = \"{kept}\"), so it cannot be restored")]
    NoPayload {
        /// The job.
        id: i64,
        /// What was archived of payloads: `hash` or `none`.
        kept: &'static str,
    },
    /// Another run has the day: this one was thought dead.
    #[error("another run has taken {0} over")]
    TakenOver(String),
    /// What was written is not what the partition has.
    #[error("the files of {day} hold {written:?}, and its partition has {stored:?}: it was changed meanwhile")]
    Differs {
        /// The day.
        day: String,
        /// In the files.
        written: howdah_archive::Sums,
        /// In the partition.
        stored: howdah_archive::Sums,
    },
    /// Files of another database lie there.
    #[error("{url} has {day} of another database ({database}): each database needs an archive_url of its own")]
    Foreign {
        /// The archive.
        url: String,
        /// The day.
        day: String,
        /// The other database.
        database: String,
    },
    /// A manifest that cannot be read.
    #[error("the manifest of {day}: {problem}")]
    Manifest {
        /// The day.
        day: String,
        /// What is wrong.
        problem: String,
    },
}

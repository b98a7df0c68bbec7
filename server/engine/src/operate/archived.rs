//! Reads finished jobs from the archive, after their day partition has been dropped.

use howdah_core::{error::Error, job::JobView};

use super::Operator;

impl Operator {
    /// Returns a job that is in no table of the database any more. Fails if the archive is unreadable, because it may contain
    /// the job.
    #[cfg(feature = "archive")]
    pub async fn archived_job(&self, id: i64) -> Result<Option<JobView>, Error> {
        let found = self.archive.find(id).await;
        let Some(row) = found.map_err(|error| unread(&format!("job {id} is"), error))? else { return Ok(None) };
        let mut job = crate::archive::view(&row.as_job());
        // An empty payload is known even if the archive keeps no payloads.
        job.payload = job.payload.or_else(|| (row.payload_bytes == 0).then(bytes::Bytes::new));
        if let Some(options) = &row.options {
            (job.coordination, job.original_task_type) = self.context.store.archived_options(id, options).await?;
        }
        Ok(Some(job))
    }

    #[cfg(not(feature = "archive"))]
    #[allow(clippy::unused_async)] // the variant with the feature `archive` awaits
    pub async fn archived_job(&self, _: i64) -> Result<Option<JobView>, Error> {
        Ok(None)
    }
}

/// Error of a lookup in an unreadable archive. `which` names the jobs, with a verb.
#[cfg(feature = "archive")]
pub(super) fn unread(which: &str, error: crate::archive::ArchiveError) -> Error {
    match error {
        crate::archive::ArchiveError::Store(error) => error.into(),
        error => {
            tracing::warn!(which, %error, "the archive could not be read");
            Error::NoArchive(format!(
                "{which} not in the database, and the archive, which may have it, could not be read: {error}"
            ))
        }
    }
}

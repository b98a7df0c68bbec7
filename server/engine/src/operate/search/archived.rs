//! The last part of a search by key: finished jobs that are only in the archive.

#[cfg(feature = "archive")]
mod read; // jobs in files

use howdah_core::job::{JobView, SearchPosition};

/// Whether a search has reached the archive. Positions in the database have rank 0 in a search by key.
pub(super) fn is_position(position: SearchPosition) -> bool {
    position.at.rank > 0
}

/// Removes the details that lists of jobs leave out: all failures but the last, and stack traces.
pub(super) fn listed(mut job: JobView) -> JobView {
    job.failures.drain(..job.failures.len().saturating_sub(1));
    job.failures.iter_mut().for_each(|failure| failure.details.clear());
    JobView { payload: None, result: None, options: None, coordination: None, ..job }
}

#[cfg(not(feature = "archive"))]
impl super::Operator {
    #[allow(clippy::unused_async)] // the variant with the feature `archive` awaits
    pub(super) async fn search_archive(
        &self,
        _: &howdah_core::job::TaskTypeName,
        _: &str,
        _: &super::Filter<'_>,
        _: &super::SearchPage,
        found: super::SearchFound,
    ) -> Result<super::SearchFound, howdah_core::error::Error> {
        Ok(found)
    }
}

//! Lookup of archived jobs by their key. Bloom filters rule out most files of the task type.

use std::time::{Instant, SystemTime};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use howdah_archive::JobFilter;

use super::{ArchiveError, Reader, find::WITHIN, history::micros};
use crate::store::TypeFile;

/// Minimum number of files that a step reads, if that many are left. A step reads all files of each day.
const FILES: i32 = 64;
/// Number of files read concurrently.
const TOGETHER: usize = 16;

/// A position in the order of a lookup by key: days in descending order, and the jobs of a day by descending id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ArchivePosition {
    /// Number of days since 0001-01-01.
    pub(crate) day: i32,
    /// Id of a job. The lookup continues below it.
    pub(crate) id: i64,
}

impl ArchivePosition {
    /// Position before the jobs of every day.
    pub(crate) const START: Self = Self { day: 4_000_000, id: i64::MAX };

    /// Number of days from 0001-01-01 to the day of a time, in UTC.
    pub(crate) fn day_of(time: SystemTime) -> i32 {
        /// Number of days from 0001-01-01 to 1970-01-01.
        const BEFORE_1970: i64 = 719_162;
        (micros(time).div_euclid(86_400_000_000) + BEFORE_1970) as i32
    }
}

/// Jobs to look up.
pub(crate) struct KeyQuery<'a> {
    pub(crate) task_type: &'a str,
    /// Key, and outcome if one is wanted.
    pub(crate) filter: JobFilter,
}

/// Result of one step of a lookup by key.
pub(crate) struct KeyStep {
    /// Jobs with the key, in the order of the lookup. A job that ended on several days has an entry for each.
    pub(crate) found: Vec<ArchivePosition>,
    /// Position of the next step.
    pub(crate) next: ArchivePosition,
    files: Vec<TypeFile>,
}

impl KeyStep {
    /// Number of jobs in the files of the days that are complete at this position.
    pub(crate) fn scanned_to(&self, to: ArchivePosition) -> i64 {
        self.files.iter().filter(|file| file.day_number > to.day).map(|file| file.jobs).sum()
    }
}

impl Reader {
    /// Looks up the next jobs after a position, at most `at_most`. Returns `None` if no files are left.
    pub(crate) async fn find_by_key(
        &self,
        query: &KeyQuery<'_>,
        from: ArchivePosition,
        at_most: usize,
    ) -> Result<Option<KeyStep>, ArchiveError> {
        match self.key_step(query, from, at_most).await {
            // A file was replaced after the database returned its path. The second step gets the path of the new file.
            Err(ArchiveError::Files(error)) if error.is_missing() => self.key_step(query, from, at_most).await,
            step => step,
        }
    }

    async fn key_step(
        &self,
        query: &KeyQuery<'_>,
        from: ArchivePosition,
        at_most: usize,
    ) -> Result<Option<KeyStep>, ArchiveError> {
        let begun = Instant::now();
        let files = self.store.archived_of_type(query.task_type, from.day, FILES).await?;
        let Some(last) = files.last() else { return Ok(None) };
        let next = ArchivePosition { day: last.day_number - 1, id: i64::MAX };
        let read = self.permitted(begun, self.with_key(&files, query, from, at_most));
        let late = |_| {
            let count = files.len();
            ArchiveError::Unread(format!("{count} files that may contain the jobs were not read within {WITHIN:?}"))
        };
        let mut found = tokio::time::timeout_at((begun + WITHIN).into(), read).await.map_err(late)??;
        found.sort_unstable_by(|one, other| other.cmp(one));
        found.dedup();
        let more = found.len() > at_most;
        found.truncate(at_most);
        let next = found.last().copied().filter(|_| more).unwrap_or(next);
        Ok(Some(KeyStep { found, next, files }))
    }

    /// Reads files. Returns one job more than `at_most` of a file, to tell whether there are more.
    async fn with_key(
        &self,
        files: &[TypeFile],
        query: &KeyQuery<'_>,
        from: ArchivePosition,
        at_most: usize,
    ) -> Result<Vec<ArchivePosition>, ArchiveError> {
        let reads = files.iter().cloned().map(|file| async move {
            let day = file.day_number;
            let before = if day == from.day { from.id } else { i64::MAX };
            let open = self.candidate(file.file).await?.open().await?;
            let ids = open.newest_ids(&query.filter, before, at_most + 1).await?;
            Ok::<_, ArchiveError>(ids.into_iter().map(|id| ArchivePosition { day, id }).collect())
        });
        let found: Vec<Vec<ArchivePosition>> = stream::iter(reads).buffered(TOGETHER).try_collect().await?;
        Ok(found.concat())
    }
}

//! Finds one job by id. Column statistics and Bloom filters rule out most row groups.

use std::time::Instant;

use futures::{StreamExt as _, stream};

use crate::{Error, Location, OpenFile, Row, schema::ID};

/// Number of files read concurrently.
const TOGETHER: usize = 16;

/// A file that may contain the job.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The archive that holds the file.
    pub location: Location,
    /// Day of the file's jobs, such as `2026-11-22`.
    pub day: String,
    /// Path of the file in the archive.
    pub path: String,
    /// Size of the file.
    pub bytes: u64,
}

impl Candidate {
    /// Opens the file within the timeout of the archive for a first answer.
    pub async fn open(&self) -> Result<OpenFile, Error> {
        let within = self.location.timeouts().first_answer();
        let opened = tokio::time::timeout(within, OpenFile::open(self.location.clone(), &self.path, self.bytes)).await;
        let timed_out = |_| Error::Timeout { operation: "reading", path: self.path.clone(), seconds: within.as_secs() };
        opened.map_err(timed_out)?
    }
}

/// Result of a search for one job.
#[derive(Debug, Default)]
pub struct Found {
    /// The job, in its latest archived version.
    pub row: Option<Row>,
    /// Paths of files that could not be read, with the errors. If the job was found, files of earlier days are left out.
    pub unread: Vec<(String, Error)>,
    /// Number of files read.
    pub read_count: usize,
    /// Number of files not read because the deadline passed or the archive was unavailable. 0 if the job was found.
    pub left: usize,
}

impl Found {
    /// Whether the archive is unavailable: no file could be read, and at least one failed because the storage did not answer.
    pub fn is_unavailable(&self) -> bool {
        self.read_count == 0 && self.unread.iter().any(|(_, error)| error.is_unavailable())
    }
}

/// Searches `files`, which must be sorted by day, latest first, and stops at the time `until`. A job that was retried after its
/// end is archived on several days; only its latest version is returned.
pub async fn find(id: i64, files: Vec<Candidate>, until: Instant) -> Found {
    let mut found = Found { left: files.len(), ..Found::default() };
    let mut day: Option<String> = None;
    let searches = files.into_iter().map(|file| async move {
        let row = search_file(id, &file).await;
        (file, row)
    });
    let mut searches = std::pin::pin!(stream::iter(searches).buffered(TOGETHER));
    while let Ok(Some((file, row))) = tokio::time::timeout_at(until.into(), searches.next()).await {
        if day.as_ref().is_some_and(|day| *day != file.day) {
            break;
        }
        found.left -= 1;
        match row {
            Ok(Some(row)) => {
                found.read_count += 1;
                day = Some(file.day);
                if found.row.as_ref().is_none_or(|known| known.finished < row.finished) {
                    found.row = Some(row);
                }
            }
            Ok(None) => found.read_count += 1,
            Err(error) => found.unread.push((file.path, error)),
        }
        // Stop after `TOGETHER` failures without a readable file: the remaining files would time out one after another.
        if found.unread.len() >= TOGETHER && found.is_unavailable() {
            break;
        }
    }
    if found.row.is_some() {
        // Files of earlier days can only hold older versions of the job.
        found.left = 0;
    }
    found
}

/// Searches one file. Row groups are sorted by id, so few of them can contain the job.
async fn search_file(id: i64, file: &Candidate) -> Result<Option<Row>, Error> {
    let file = file.open().await?;
    let mut latest: Option<Row> = None;
    for group in file.groups() {
        let (lowest, highest) = file.range(group, ID);
        if id < lowest || id > highest || !file.may_have(group, ID, &id).await? {
            continue;
        }
        let ids = file.ids(group).await?;
        let rows: Vec<usize> = (0..ids.len()).filter(|row| ids[*row] == id).collect();
        if !rows.is_empty() {
            let rows = file.rows(group, rows, true).await?;
            latest = latest.into_iter().chain(rows).max_by_key(|row| row.finished);
        }
    }
    Ok(latest)
}

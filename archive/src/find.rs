//! One job by its id: among files whose ids may include it, by statistics and Bloom filters.

use std::time::Instant;

use futures::{StreamExt as _, stream};

use crate::{Error, OpenFile, Place, Row, schema::ID};

/// How many files are looked at together.
const TOGETHER: usize = 16;

/// A file to look at.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Where it is.
    pub place: Place,
    /// The day of its jobs, as `2026-11-22`.
    pub day: String,
    /// Its name in the archive.
    pub path: String,
    /// Its size.
    pub bytes: u64,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Found {
    /// The job, as it ended last.
    pub row: Option<Row>,
    /// Files that could not be looked at, and why. They are of the same or of later days than the job.
    pub unread: Vec<(String, Error)>,
    /// How many files were looked at.
    pub looked_at: usize,
    /// How many files there was no time for, or which were not tried because nothing answered.
    pub left: usize,
}

impl Found {
    /// Nothing answers: no file could be looked at, and not because of what is in it.
    pub fn is_away(&self) -> bool {
        self.looked_at == 0 && self.unread.iter().any(|(_, error)| error.is_away())
    }
}

/// Looks for a job. The files of the latest day come first: a job that came back after its end is in those of several days, and
/// its last end holds.
pub async fn find(id: i64, files: Vec<Candidate>, until: Instant) -> Found {
    let mut found = Found { left: files.len(), ..Found::default() };
    let mut day: Option<String> = None;
    let looks = files.into_iter().map(|file| async move {
        let row = look(id, &file).await;
        (file, row)
    });
    let mut looks = std::pin::pin!(stream::iter(looks).buffered(TOGETHER));
    while let Ok(Some((file, row))) = tokio::time::timeout_at(until.into(), looks.next()).await {
        if day.as_ref().is_some_and(|day| *day != file.day) {
            break;
        }
        found.left -= 1;
        match row {
            Ok(Some(row)) => {
                found.looked_at += 1;
                day = Some(file.day);
                if found.row.as_ref().is_none_or(|known| known.finished < row.finished) {
                    found.row = Some(row);
                }
            }
            Ok(None) => found.looked_at += 1,
            Err(error) => found.unread.push((file.path, error)),
        }
        // The others would fail one after the other.
        if found.unread.len() >= TOGETHER && found.is_away() {
            break;
        }
    }
    if found.row.is_some() {
        // Those of earlier days say nothing about it.
        found.left = 0;
    }
    found
}

/// Looks for a job in one file. Row groups are sorted by id, so that few can have it.
async fn look(id: i64, file: &Candidate) -> Result<Option<Row>, Error> {
    let within = file.place.patience().first_answer();
    let opened = tokio::time::timeout(within, OpenFile::open(file.place.clone(), &file.path, file.bytes)).await;
    let late = |_| Error::Late { doing: "reading", path: file.path.clone(), seconds: within.as_secs() };
    let file = opened.map_err(late)??;
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

//! Restores archived jobs: enqueues them again as new jobs, in batches. Only one batch is in memory.

use std::ops::ControlFlow;

use howdah_archive::{Job, Row};

use super::{ArchiveError, HistoryQuery, Reader, Take};
use crate::store::{Actor, RestoredJob, Store, StoreError};

/// Maximum number of restored jobs per transaction.
const BATCH: usize = 2_000;
/// Maximum total size in bytes of the payloads in one transaction. A larger job gets its own transaction.
const BATCH_BYTES: usize = 4 << 20;

/// Event of a restore, in chronological order.
#[derive(Clone, Debug)]
pub enum RestoreEvent {
    /// A job was restored or skipped.
    Done(RestoredJob),
    /// The database rejected the archived job, by the same rules as for an enqueued job.
    Refused {
        /// Id of the job in the archive.
        old_id: i64,
        /// Reason of the rejection.
        problem: String,
    },
    /// The archive has no job with this id.
    Missing(i64),
}

/// Restores jobs and reports the result of each.
pub struct Restore<'a, F> {
    store: Store,
    by: &'a Actor,
    most: u64,
    chosen: u64,
    batch: Vec<Row>,
    bytes: usize,
    on_event: F,
}

impl<'a, F: FnMut(RestoreEvent)> Restore<'a, F> {
    /// Creates a restore of at most `most` jobs. `on_event` is called with the result of each job after the commit.
    pub fn new(reader: &Reader, by: &'a Actor, most: u64, on_event: F) -> Self {
        Self { store: reader.store.clone(), by, most, chosen: 0, batch: Vec::new(), bytes: 0, on_event }
    }

    /// Restores the jobs that match a query.
    pub async fn chosen(mut self, reader: &Reader, query: &HistoryQuery) -> Result<u64, ArchiveError> {
        let query = HistoryQuery { payloads: true, archived_only: true, ..query.clone() };
        reader.history(&query, &mut self).await?;
        self.flush().await?;
        Ok(self.chosen)
    }

    /// Restores the jobs with these ids.
    pub async fn of_ids(mut self, reader: &Reader, ids: &[i64]) -> Result<u64, ArchiveError> {
        for id in ids {
            match reader.find(*id).await? {
                None => (self.on_event)(RestoreEvent::Missing(*id)),
                Some(row) => {
                    self.add(row)?;
                    self.catch_up().await?;
                }
            }
        }
        self.flush().await?;
        Ok(self.chosen)
    }

    fn add(&mut self, mut row: Row) -> Result<(), ArchiveError> {
        if row.payload.is_none() {
            if row.payload_bytes > 0 {
                let kept = if row.payload_sha256.is_some() { "hash" } else { "none" };
                return Err(ArchiveError::NoPayload { id: row.id, kept });
            }
            row.payload = Some(bytes::Bytes::new());
        }
        self.chosen += 1;
        self.bytes += row.payload.as_ref().map_or(0, bytes::Bytes::len);
        self.batch.push(row);
        Ok(())
    }

    /// Enqueues the batch in one transaction. If a job is rejected, splits the batch into halves with separate transactions,
    /// recursively.
    async fn flush(&mut self) -> Result<(), ArchiveError> {
        let batch = std::mem::take(&mut self.batch);
        self.bytes = 0;
        let mut left = vec![&batch[..]];
        while let Some(jobs) = left.pop() {
            match (self.store.restore_jobs(jobs, self.by).await, jobs) {
                (Ok(done), _) => done.into_iter().for_each(|done| (self.on_event)(RestoreEvent::Done(done))),
                (Err(error), [job]) if is_refusal(&error) => {
                    (self.on_event)(RestoreEvent::Refused { old_id: job.id, problem: error.to_string() });
                }
                (Err(error), _) if is_refusal(&error) => {
                    let (first, second) = jobs.split_at(jobs.len() / 2);
                    left.extend([second, first]);
                }
                (Err(error), _) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn is_refusal(error: &StoreError) -> bool {
    matches!(error, StoreError::Refused(_) | StoreError::Job { .. } | StoreError::TooMany(_))
}

impl<F: FnMut(RestoreEvent)> Take for Restore<'_, F> {
    type Error = ArchiveError;

    fn take(&mut self, job: &Job<'_>) -> Result<ControlFlow<()>, ArchiveError> {
        self.add(Row::from_job(job))?;
        Ok(if self.chosen == self.most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    async fn catch_up(&mut self) -> Result<(), ArchiveError> {
        if self.batch.len() == BATCH || self.bytes >= BATCH_BYTES {
            self.flush().await?;
        }
        Ok(())
    }
}

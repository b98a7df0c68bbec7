//! Archived jobs, enqueued again as new ones, in batches. What is held in memory is one batch.

use std::ops::ControlFlow;

use howdah_archive::{Job, Row};

use super::{ArchiveError, HistoryQuery, Reader, Take};
use crate::store::{Actor, RestoredJob, Store, StoreError};

/// The most jobs in a transaction.
const BATCH: usize = 2_000;
/// The most bytes of their payloads, or one job that has more.
const BATCH_BYTES: usize = 4 << 20;

/// What a restore tells, in the order in which it happens.
#[derive(Clone, Debug)]
pub enum RestoreEvent {
    /// This has become of a job.
    Done(RestoredJob),
    /// The database refuses a job, as it would refuse it from a producer.
    Refused {
        /// Its id in the archive.
        old_id: i64,
        /// Why.
        problem: String,
    },
    /// The archive has no job with this id.
    Missing(i64),
}

/// Restores jobs, and says what has become of each.
pub struct Restore<'a, F> {
    store: Store,
    by: &'a Actor,
    most: u64,
    chosen: u64,
    batch: Vec<Row>,
    bytes: usize,
    told: F,
}

impl<'a, F: FnMut(RestoreEvent)> Restore<'a, F> {
    /// Of at most so many jobs. `told` hears of each when its transaction is committed.
    pub fn new(reader: &Reader, by: &'a Actor, most: u64, told: F) -> Self {
        Self { store: reader.store.clone(), by, most, chosen: 0, batch: Vec::new(), bytes: 0, told }
    }

    /// Those that are chosen by what they are.
    pub async fn chosen(mut self, reader: &Reader, query: &HistoryQuery) -> Result<u64, ArchiveError> {
        let query = HistoryQuery { payloads: true, archived_only: true, ..query.clone() };
        reader.history(&query, &mut self).await?;
        self.flush().await?;
        Ok(self.chosen)
    }

    /// Those with these ids.
    pub async fn of_ids(mut self, reader: &Reader, ids: &[i64]) -> Result<u64, ArchiveError> {
        for id in ids {
            match reader.find(*id).await? {
                None => (self.told)(RestoreEvent::Missing(*id)),
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

    /// All of the batch in one transaction. If one of its jobs is refused, each half in its own, and so on.
    async fn flush(&mut self) -> Result<(), ArchiveError> {
        let batch = std::mem::take(&mut self.batch);
        self.bytes = 0;
        let mut left = vec![&batch[..]];
        while let Some(jobs) = left.pop() {
            match (self.store.restore_jobs(jobs, self.by).await, jobs) {
                (Ok(done), _) => done.into_iter().for_each(|done| (self.told)(RestoreEvent::Done(done))),
                (Err(error), [job]) if is_refusal(&error) => {
                    (self.told)(RestoreEvent::Refused { old_id: job.id, problem: error.to_string() });
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
        self.add(Row::of(job))?;
        Ok(if self.chosen == self.most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    async fn catch_up(&mut self) -> Result<(), ArchiveError> {
        if self.batch.len() == BATCH || self.bytes >= BATCH_BYTES {
            self.flush().await?;
        }
        Ok(())
    }
}

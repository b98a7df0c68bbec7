//! Reads the finished jobs of a day, page by page, and writes them to archive files.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_archive::{Layout, Location, OnPart, PartFile, Writer};
use howdah_core::{config::ArchivePayloads, job::TypeId};
use sha2::{Digest as _, Sha256};

use super::{ArchiveError, Archiver, HELD, Step, pace::Pace};
use crate::store::{ArchivePage, FinishedJob, Store, StoreError};

/// Limits of a page: maximum number of jobs, and target size in bytes. Two pages are in memory at once.
const PAGE: (usize, usize) = (10_000, 4 << 20);
/// Limits of a page, as in `PAGE`, of a run that rests after each page.
const SMALL_PAGE: (usize, usize) = (2_000, 512 << 10);
/// Interval of progress messages in the log, in jobs.
const SAY_EVERY: u64 = 1_000_000;

/// One pass over the finished jobs of a day, which writes them to the archive.
pub(super) struct Reading<'a> {
    pub(super) archiver: &'a Archiver,
    pub(super) location: &'a Location,
    pub(super) layout: &'a Layout,
    pub(super) day: &'a str,
    pub(super) run: &'a str,
    /// For a day that was archived before: the generation whose late jobs are read. `None` reads all jobs of the day.
    pub(super) late: Option<i32>,
}

impl Reading<'_> {
    /// Writes all rows to the staging area.
    pub(super) async fn write(&self, pace: &mut Pace<'_>) -> Result<Vec<PartFile>, ArchiveError> {
        let on_step = self.archiver.on_step.clone();
        let on_part: OnPart = Arc::new(move || on_step(Step::PartStaged));
        let mut writer =
            Writer::begin(self.location.clone(), self.layout, self.day, self.run, self.archiver.bounds, Some(on_part));
        match Box::pin(self.pages(&mut writer, pace)).await {
            Ok(()) => Ok(writer.finish().await?),
            Err(ArchiveError::Files(error)) => Err(writer.failed(error).await.into()),
            Err(error) => Err(error),
        }
    }

    /// Reads the next page while the previous one is written.
    async fn pages(&self, writer: &mut Writer, pace: &mut Pace<'_>) -> Result<(), ArchiveError> {
        let mut names = Names::read(&self.archiver.store).await?;
        let (mut jobs, begun, mut held) = (0_u64, Instant::now(), Instant::now());
        // Starts with a small page, because the size of the jobs is unknown.
        let mut page = self.page(i64::MIN, 100).await?;
        while let Some(last) = page.jobs.last().map(FinishedJob::id) {
            if held.elapsed() > HELD / 8 {
                held = Instant::now();
                if !self.archiver.store.hold_day(self.day, self.run, HELD).await? {
                    return Err(ArchiveError::TakenOver(self.day.to_owned()));
                }
            }
            names.know(&self.archiver.store, &page.jobs).await?;
            let limit = next_limit(&page, pace.rests());
            let encoded = writer.encoding();
            let hand_over = async {
                for job in &page.jobs {
                    self.push(writer, job, names.name(job.type_id())).await?;
                }
                Ok::<_, ArchiveError>(())
            };
            let ((next, reading), (handed_over, pushing)) =
                tokio::join!(timed(self.page(last, limit)), timed(hand_over));
            handed_over?;
            let encoding = writer.encoding().saturating_sub(encoded);
            pace.rest(reading + pushing + encoding, page.jobs.len()).await;
            let before = jobs;
            jobs += page.jobs.len() as u64;
            if before / SAY_EVERY != jobs / SAY_EVERY {
                let rate = (jobs as f64 / begun.elapsed().as_secs_f64()) as u64;
                tracing::info!(
                    day = self.day,
                    jobs,
                    bytes = writer.written(),
                    jobs_per_s = rate,
                    share = pace.share(),
                    "archiving"
                );
            }
            page = next?;
        }
        Ok(())
    }

    async fn page(&self, after: i64, limit: i32) -> Result<ArchivePage, ArchiveError> {
        let payloads = self.archiver.payloads != ArchivePayloads::None;
        Ok(self.archiver.store.archive_page(self.day, self.late, after, limit, payloads).await?)
    }

    async fn push(&self, writer: &mut Writer, job: &FinishedJob, name: &str) -> Result<(), ArchiveError> {
        let mut row = job.as_job(name);
        let hash = match (self.archiver.payloads, row.payload) {
            (ArchivePayloads::Hash, Some(payload)) => Some(Sha256::digest(payload)),
            _ => None,
        };
        if self.archiver.payloads == ArchivePayloads::Hash {
            row.payload = None;
            row.payload_sha256 = hash.as_ref().map(|hash| &hash[..]);
        }
        Ok(writer.push(&row).await?)
    }
}

async fn timed<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let begun = Instant::now();
    let done = work.await;
    (done, begun.elapsed())
}

/// Returns the number of jobs of the next page, so that the page has about the target size.
fn next_limit(page: &ArchivePage, rests: bool) -> i32 {
    let (most_jobs, bytes) = if rests { SMALL_PAGE } else { PAGE };
    let jobs = page.jobs.len().max(1);
    let each = (page.bytes / jobs).max(1);
    // Limits the growth of a page to a factor of 4, because the next jobs may be larger.
    let most = (jobs * 4).clamp(100, most_jobs);
    (bytes / each).clamp(1, most) as i32
}

/// Cached names of task types, by type id.
pub(super) struct Names(HashMap<TypeId, String>);

impl Names {
    pub(super) async fn read(store: &Store) -> Result<Self, StoreError> {
        Ok(Self(store.type_names().await?.into_iter().collect()))
    }

    /// Reloads the names if a job has an unknown type id. A deleted type gets the name `deleted-type-ID`.
    pub(super) async fn know(&mut self, store: &Store, jobs: &[FinishedJob]) -> Result<(), StoreError> {
        if jobs.iter().any(|job| !self.0.contains_key(&job.type_id())) {
            self.0.extend(store.type_names().await?);
            for job in jobs {
                let type_id = job.type_id();
                self.0.entry(type_id).or_insert_with(|| format!("deleted-type-{type_id}"));
            }
        }
        Ok(())
    }

    pub(super) fn name(&self, type_id: TypeId) -> &str {
        self.0.get(&type_id).map_or("", String::as_str)
    }

    /// Returns the id of the type with this name, if it exists in the database.
    pub(super) fn number_of(&self, name: &str) -> Option<TypeId> {
        self.0.iter().find(|(_, known)| *known == name).map(|(type_id, _)| *type_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_after_an_empty_page_has_at_most_100_jobs() {
        assert_eq!(next_limit(&ArchivePage::default(), false), 100);
    }
}

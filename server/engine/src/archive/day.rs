//! Archives the finished jobs of one day. Writes files under names that readers ignore. Then reads them back, compares
//! them with the day partition, renames them, and records them in the database.

use std::{sync::Arc, time::Instant};

use howdah_archive::{Layout, Location, Manifest, PartFile, Sums};
use howdah_core::config::ArchivePayloads;

use super::{ArchiveError, Archived, Archiver, HELD, noted, pace::Pace, read::Reading, text};
use crate::store::TakenDay;

/// Version of the manifest format.
const VERSION: u32 = 1;
/// Blocks of a day partition that one checksum statement reads: 256 MiB, or 16 MiB if the run rests between steps.
const BLOCKS: [i64; 2] = [32_768, 2_048];

pub(super) async fn archive(archiver: &Archiver, day: &str, run: &str) -> Result<Option<Archived>, ArchiveError> {
    let begun = Instant::now();
    let taken = archiver.store.take_day(day, run, &archiver.who, HELD, &archiver.url).await?;
    let Some(taken) = taken else { return Ok(None) };
    if !taken.rewrite.is_empty() {
        let manifest = archiver.finish_rewrite(day, run, &taken.url, &taken.rewrite).await?;
        return Ok(Some(Archived { manifest, jobs: 0, bytes: 0, took: begun.elapsed() }));
    }
    (archiver.on_step)(Step::Taken);
    // An archived day keeps the URL of its first archiving, even if `archive_url` has changed since.
    let location = Location::open(&taken.url)?;
    let before = noted(day, &taken.manifest)?;
    let number = archiver.number(before.as_ref()).await?;
    let work = Work { archiver, day, run, location, layout: Layout::new(number) };
    let (manifest, jobs, bytes) = if let Some(written) = before.clone().filter(|_| taken.publishing) {
        (written, 0, 0)
    } else {
        let parts = work.write(&taken).await?;
        let (jobs, bytes) = (sums(&parts).rows, parts.iter().map(|part| part.bytes).sum());
        let manifest = work.manifest(number, taken.generation, before.unwrap_or_default()).with(parts);
        work.still_ours(archiver.store.publish_day(day, run, &text(day, &manifest)?).await?)?;
        (archiver.on_step)(Step::Noted);
        (manifest, jobs, bytes)
    };
    let manifest = work.publish(manifest).await?;
    Ok(Some(Archived { manifest, jobs, bytes, took: begun.elapsed() }))
}

/// One run that archives a day.
struct Work<'a> {
    archiver: &'a Archiver,
    day: &'a str,
    run: &'a str,
    location: Location,
    layout: Layout,
}

fn sums(parts: &[PartFile]) -> Sums {
    let mut sums = Sums::default();
    parts.iter().for_each(|part| sums.add_all(&part.sums));
    sums
}

impl Work<'_> {
    /// Writes the archive files of the day, reads them back, and compares their checksums with the database.
    async fn write(&self, taken: &TakenDay) -> Result<Vec<PartFile>, ArchiveError> {
        self.check_owner().await?;
        howdah_archive::clear_staging(&self.location, &self.layout, self.day).await?;
        let late = taken.late.then_some(taken.generation);
        let Self { archiver, location, layout, day, run } = self;
        let mut pace = Pace::new(&archiver.store, day, archiver.share);
        // Boxed, because the future is large and would enlarge the futures that await it.
        let reading = Reading { archiver, location, layout, day, run, late };
        let parts = Box::pin(reading.write(&mut pace)).await?;
        (archiver.on_step)(Step::AllStaged);
        for part in &parts {
            howdah_archive::check(location, &part.staged, part).await?;
            self.hold().await?;
            pace.rest_after_step().await;
        }
        let stored = self.stored(late, &mut pace).await?;
        let written = sums(&parts);
        if stored != written {
            return Err(ArchiveError::Differs { day: (*day).to_owned(), written, stored });
        }
        (archiver.on_step)(Step::Compared);
        Ok(parts)
    }

    /// Returns the checksums of the day's jobs in the database. `late` restricts them to the late jobs of that archive
    /// generation.
    async fn stored(&self, late: Option<i32>, pace: &mut Pace<'_>) -> Result<Sums, ArchiveError> {
        let (mut sums, mut from) = (Sums::default(), Some(0));
        while let Some(block) = from {
            let blocks = BLOCKS[usize::from(pace.rests())];
            let (some, next) = self.archiver.store.sums_of_day(self.day, late, block, blocks).await?;
            sums.add_all(&some);
            from = next;
            self.hold().await?;
            pace.rest_after_step().await;
        }
        Ok(sums)
    }

    /// Rejects an archive of another database, because two databases in one archive would delete each other's files.
    async fn check_owner(&self) -> Result<(), ArchiveError> {
        let there = howdah_archive::manifest_of(&self.location, &self.layout, self.day).await?;
        match there {
            Some(there) if there.database != self.archiver.database => Err(ArchiveError::Foreign {
                url: self.location.url().to_owned(),
                day: self.day.to_owned(),
                database: there.database,
            }),
            _ => Ok(()),
        }
    }

    /// Returns the manifest of the day, including the files of its earlier archiving.
    fn manifest(&self, store: u32, generation: i32, before: Manifest) -> Manifest {
        let mut manifest = Manifest {
            version: VERSION,
            store,
            day: self.day.to_owned(),
            database: self.archiver.database.clone(),
            generation,
            payloads: match self.archiver.payloads {
                ArchivePayloads::Full => "full",
                ArchivePayloads::Hash => "hash",
                ArchivePayloads::None => "none",
            }
            .into(),
            ..before
        };
        manifest.parts.iter_mut().for_each(|part| part.staged.clear());
        manifest
    }

    /// Renames the files, writes the manifest and records the day. Each step may be repeated, because a killed run may
    /// have made it already.
    async fn publish(&self, mut manifest: Manifest) -> Result<Manifest, ArchiveError> {
        let Self { archiver, location, layout, day, run } = self;
        howdah_archive::publish(location, &manifest).await?;
        (archiver.on_step)(Step::Named);
        self.hold().await?;
        howdah_archive::finish(location, layout, &manifest).await?;
        (archiver.on_step)(Step::ManifestWritten);
        manifest.parts.iter_mut().for_each(|part| part.staged.clear());
        let text = text(day, &manifest)?;
        let noted = (&manifest.sums, manifest.parts.len(), manifest.bytes, text.as_str());
        self.still_ours(archiver.store.finish_day(day, run, &archiver.who, noted).await?)?;
        (archiver.on_step)(Step::Archived);
        Ok(manifest)
    }

    async fn hold(&self) -> Result<(), ArchiveError> {
        self.still_ours(self.archiver.store.hold_day(self.day, self.run, HELD).await?)
    }

    fn still_ours(&self, ours: bool) -> Result<(), ArchiveError> {
        if ours { Ok(()) } else { Err(ArchiveError::TakenOver(self.day.to_owned())) }
    }
}

/// The last completed step of an archive run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The day is sealed and belongs to this run. Another run takes the day over if this run's heartbeats stop.
    Taken,
    /// A file of the day is in the staging area, which readers ignore. If this run is killed, the next run deletes the
    /// file.
    PartStaged,
    /// All files are in the staging area.
    AllStaged,
    /// The files were read back. Their checksums equal the checksums of the day partition.
    Compared,
    /// The database has recorded the manifest. The next run continues from here and does not write the files again.
    Noted,
    /// The files have their final names.
    Named,
    /// The manifest is written.
    ManifestWritten,
    /// The database has recorded the day as archived, so its partition may be dropped.
    Archived,
}

impl Step {
    /// All steps.
    pub const ALL: [Self; 8] = [
        Self::Taken,
        Self::PartStaged,
        Self::AllStaged,
        Self::Compared,
        Self::Noted,
        Self::Named,
        Self::ManifestWritten,
        Self::Archived,
    ];
}

/// Callback that is called after each step of an archive run.
pub type OnStep = Arc<dyn Fn(Step) + Send + Sync>;

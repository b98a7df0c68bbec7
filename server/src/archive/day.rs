//! One day: written under names that no reader looks for, read back, compared with the partition, named, and noted.

use std::time::Instant;

use howdah_archive::{Layout, Manifest, PartFile, Place, Sums};

use super::{ArchiveError, Archived, Archiver, HELD, Step, noted, pace::Pace, read::Reading, text};
use crate::{config::ArchivePayloads, store::TakenDay};

/// The version of the manifest.
const VERSION: u32 = 1;
/// The blocks of a partition whose sums are made at once: 256 MiB, or 16 MiB if the run rests in between.
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
    // A day stays where it was archived first.
    let place = Place::open(&taken.url)?;
    let before = noted(day, &taken.manifest)?;
    let number = archiver.number(before.as_ref()).await?;
    let work = Work { archiver, day, run, place, layout: Layout::of(number) };
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

/// What one run works with.
struct Work<'a> {
    archiver: &'a Archiver,
    day: &'a str,
    run: &'a str,
    place: Place,
    layout: Layout,
}

fn sums(parts: &[PartFile]) -> Sums {
    let mut sums = Sums::default();
    parts.iter().for_each(|part| sums.add_all(&part.sums));
    sums
}

impl Work<'_> {
    /// Writes, reads back, and compares.
    async fn write(&self, taken: &TakenDay) -> Result<Vec<PartFile>, ArchiveError> {
        self.check_owner().await?;
        howdah_archive::clear_staging(&self.place, &self.layout, self.day).await?;
        let late = taken.late.then_some(taken.generation);
        let Self { archiver, place, layout, day, run } = self;
        let mut pace = Pace::new(&archiver.store, day, archiver.share);
        // A large future: it is not kept in those that wait for it.
        let reading = Reading { archiver, place, layout, day, run, late };
        let parts = Box::pin(reading.write(&mut pace)).await?;
        (archiver.on_step)(Step::AllStaged);
        for part in &parts {
            howdah_archive::check(place, &part.staged, part).await?;
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

    /// What the partition has.
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

    /// Two databases that write to one place would delete each other's files.
    async fn check_owner(&self) -> Result<(), ArchiveError> {
        let there = howdah_archive::manifest_of(&self.place, &self.layout, self.day).await?;
        match there {
            Some(there) if there.database != self.archiver.database => Err(ArchiveError::Foreign {
                url: self.place.url().to_owned(),
                day: self.day.to_owned(),
                database: there.database,
            }),
            _ => Ok(()),
        }
    }

    /// The day with what was archived of it before.
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

    /// Names, manifest, note. All of it may have been done already by a run that was killed.
    async fn publish(&self, mut manifest: Manifest) -> Result<Manifest, ArchiveError> {
        let Self { archiver, place, layout, day, run } = self;
        howdah_archive::publish(place, &manifest).await?;
        (archiver.on_step)(Step::Named);
        self.hold().await?;
        howdah_archive::finish(place, layout, &manifest).await?;
        (archiver.on_step)(Step::ManifestWritten);
        manifest.parts.iter_mut().for_each(|part| part.staged.clear());
        let text = text(day, &manifest)?;
        let noted = (&manifest.sums, manifest.parts.len(), manifest.bytes, text.as_str());
        self.still_ours(archiver.store.archived_day(day, run, &archiver.who, noted).await?)?;
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

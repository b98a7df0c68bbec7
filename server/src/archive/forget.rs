//! Jobs of the archive are forgotten: the files that hold them are written anew without them.
//!
//! New files are written and compared beside the old ones, under other names. Then the database notes what the day is to consist of
//! (`archive.rewrite`), together with the record for the audit. From there on every run goes on with it: names, manifest, rows of
//! `archive_file`, and at last the old files are deleted. Readers take the files that the database names.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Instant, SystemTime},
};

use howdah_archive::{Layout, Manifest, OpenFile, PartFile, Place, Sums, Wanted, Writer};

use super::{ArchiveError, Archiver, HELD, Step, history::micros, parse, text};
use crate::store::{Actor, ForgetDay};

/// How many ids the audit has.
const FIRST: usize = 10;

/// Which jobs are forgotten: those that all of it fits.
#[derive(Clone, Debug, Default)]
pub struct ForgetQuery {
    /// With this key.
    pub key: Option<String>,
    /// Of this type.
    pub task_type: Option<String>,
    /// That ended before this time.
    pub before: Option<SystemTime>,
}

/// What was found in the files of a day, or forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Jobs: each end of a job counts.
    pub jobs: i64,
    /// Files that have them.
    pub files: usize,
}

/// How far a forget has come in a day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForgetProgress {
    /// The day.
    pub day: String,
    /// Files are written anew; else they are looked at.
    pub is_writing: bool,
    /// Files that are done.
    pub done: usize,
    /// Files of the day that may have such jobs, or those that are written anew.
    pub files: usize,
    /// Jobs that were found so far, or that stay.
    pub jobs: i64,
}

/// Told of each file.
pub type OnForget = Arc<dyn Fn(ForgetProgress) + Send + Sync>;

/// The jobs of a file that are to be forgotten.
struct Hit<'a> {
    part: &'a PartFile,
    sums: Sums,
    first: Vec<i64>,
}

impl ForgetQuery {
    fn wanted(&self) -> Wanted {
        Wanted { key: self.key.clone(), until: self.before.map(micros), ..Wanted::default() }
    }

    fn may_be_in(&self, part: &PartFile) -> bool {
        self.task_type.as_ref().is_none_or(|wanted| *wanted == part.task_type)
    }
}

impl Archiver {
    /// Days that may have such jobs, the oldest first.
    pub async fn days_to_forget(&self, query: &ForgetQuery) -> Result<Vec<ForgetDay>, ArchiveError> {
        Ok(self.store.forget_days(query.task_type.as_deref(), query.before).await?)
    }

    /// How many such jobs the files of a day have.
    pub async fn count_forgettable(&self, day: &str, query: &ForgetQuery) -> Result<Forgotten, ArchiveError> {
        let known = self.store.archived_day_of(day).await?;
        let Some((url, manifest)) = known else {
            return Ok(Forgotten::default());
        };
        let manifest = parse(day, &manifest)?;
        let hits = self.survey(&Place::open_to_read(&url)?, &manifest, query).await?;
        Ok(Forgotten { jobs: hits.iter().map(|hit| hit.sums.rows).sum(), files: hits.len() })
    }

    /// Forgets such jobs of a day; `None`: somebody else works on it. What an earlier run has begun is finished first.
    pub async fn forget(&self, day: &str, query: &ForgetQuery, by: &Actor) -> Result<Option<Forgotten>, ArchiveError> {
        let run = format!("{:016x}", rand::random::<u64>());
        let result = self.forget_in(day, &run, query, by).await;
        if let Err(error) = &result {
            // The day is free for the next run at once, if the database can be told.
            let noted = self.store.failed_day(day, &run, &error.to_string()).await;
            if let Err(problem) = noted {
                tracing::debug!(%problem, day, "the failed run keeps its day for a moment");
            }
        }
        result
    }

    async fn forget_in(
        &self,
        day: &str,
        run: &str,
        query: &ForgetQuery,
        by: &Actor,
    ) -> Result<Option<Forgotten>, ArchiveError> {
        let Some(taken) = self.store.take_rewrite(day, run, &self.who, HELD).await? else { return Ok(None) };
        (self.on_step)(Step::Taken);
        let rewriting = Rewriting { archiver: self, day, run, place: Place::open_to_read(&taken.url)? };
        let mut before = parse(day, &taken.manifest)?;
        if !taken.rewrite.is_empty() {
            before = rewriting.switch(parse(day, &taken.rewrite)?).await?;
        }
        let hits = self.survey(&rewriting.place, &before, query).await?;
        let forgotten = Forgotten { jobs: hits.iter().map(|hit| hit.sums.rows).sum(), files: hits.len() };
        if forgotten.files > 0 {
            let manifest = rewriting.write(&before, &hits, query).await?;
            let first = hits.iter().flat_map(|hit| hit.first.iter().copied()).take(FIRST).collect();
            let types: BTreeSet<&str> = hits.iter().map(|hit| hit.part.task_type.as_str()).collect();
            let record = (forgotten.jobs, first, types.into_iter().take(FIRST).collect());
            let text = text(day, &manifest)?;
            rewriting.still_ours(self.store.note_rewrite(day, run, &text, by, record).await?)?;
            (self.on_step)(Step::Noted);
            rewriting.switch(manifest).await?;
        }
        self.store.end_rewrite(day, run).await?;
        Ok(Some(forgotten))
    }

    /// The files of a day that have such jobs.
    async fn survey<'a>(
        &self,
        place: &Place,
        manifest: &'a Manifest,
        query: &ForgetQuery,
    ) -> Result<Vec<Hit<'a>>, ArchiveError> {
        let parts: Vec<&PartFile> = manifest.parts.iter().filter(|part| query.may_be_in(part)).collect();
        let (mut hits, mut jobs) = (Vec::new(), 0);
        for (at, part) in parts.iter().copied().enumerate() {
            let hit = look_into(place, part, query).await?;
            jobs += hit.sums.rows;
            (self.on_forget)(ForgetProgress {
                day: manifest.day.clone(),
                is_writing: false,
                done: at + 1,
                files: parts.len(),
                jobs,
            });
            if hit.sums.rows > 0 {
                hits.push(hit);
            }
        }
        Ok(hits)
    }

    /// Finishes what a forget has begun that was killed. The run has the day.
    pub(super) async fn finish_rewrite(
        &self,
        day: &str,
        run: &str,
        url: &str,
        rewrite: &str,
    ) -> Result<Manifest, ArchiveError> {
        let rewriting = Rewriting { archiver: self, day, run, place: Place::open_to_read(url)? };
        let manifest = rewriting.switch(parse(day, rewrite)?).await?;
        self.store.end_rewrite(day, run).await?;
        Ok(manifest)
    }
}

/// A day that a run has.
struct Rewriting<'a> {
    archiver: &'a Archiver,
    day: &'a str,
    run: &'a str,
    place: Place,
}

impl Rewriting<'_> {
    /// Writes what stays of the files that were hit, and compares it; returns what the day is to consist of.
    async fn write(&self, before: &Manifest, hits: &[Hit<'_>], query: &ForgetQuery) -> Result<Manifest, ArchiveError> {
        let (place, layout) = (&self.place, Layout::of(before.store));
        let there = howdah_archive::manifest_of(place, &layout, self.day).await?;
        if let Some(there) = there.filter(|there| there.database != self.archiver.database) {
            let (url, day) = (place.url().to_owned(), self.day.to_owned());
            return Err(ArchiveError::Foreign { url, day, database: there.database });
        }
        howdah_archive::clear_staging(place, &layout, self.day).await?;
        let on_step = self.archiver.on_step.clone();
        let on_part: howdah_archive::OnPart = std::sync::Arc::new(move || on_step(Step::PartStaged));
        let bounds = self.archiver.bounds;
        let mut writer = Writer::begin(place.clone(), &layout, self.day, self.run, bounds, Some(on_part));
        let mut stay = Sums::default();
        for (at, hit) in hits.iter().enumerate() {
            match self.copy(hit, query, &mut writer).await {
                Ok(sums) => {
                    stay.add_all(&sums);
                    (self.archiver.on_forget)(ForgetProgress {
                        day: self.day.to_owned(),
                        is_writing: true,
                        done: at + 1,
                        files: hits.len(),
                        jobs: stay.rows,
                    });
                }
                Err(ArchiveError::Files(error)) => return Err(writer.failed(error).await.into()),
                Err(error) => return Err(error),
            }
        }
        let parts = writer.finish().await?;
        (self.archiver.on_step)(Step::AllStaged);
        let mut written = Sums::default();
        for part in &parts {
            howdah_archive::check(place, &part.staged, part).await?;
            written.add_all(&part.sums);
            self.hold().await?;
        }
        if written != stay {
            return Err(ArchiveError::Unread(format!(
                "the new files of {} hold {written:?} instead of {stay:?}",
                self.day
            )));
        }
        (self.archiver.on_step)(Step::Compared);
        let is_hit = |part: &&PartFile| hits.iter().any(|hit| hit.part.path == part.path);
        let untouched = before.parts.iter().filter(|part| !is_hit(part)).cloned().collect();
        let empty = Manifest { parts: Vec::new(), sums: Sums::default(), bytes: 0, ..before.clone() };
        Ok(empty.with(untouched).with(parts))
    }

    /// Writes the rows of a file that stay. Its rows are those that stay and those that were found: not one more or less.
    async fn copy(&self, hit: &Hit<'_>, query: &ForgetQuery, writer: &mut Writer) -> Result<Sums, ArchiveError> {
        let mut stay = Sums::default();
        if hit.sums == hit.part.sums {
            return Ok(stay);
        }
        let file = OpenFile::open(self.place.clone(), &hit.part.path, hit.part.bytes).await?;
        let (wanted, mut held) = (query.wanted(), Instant::now());
        for group in 0..file.group_count() {
            let rows = file.select(group, &Wanted::default(), true).await?;
            for row in rows.iter().filter(|row| !wanted.fits_row(row)) {
                stay.add(row.id, row.payload_bytes);
                writer.push(&row.as_job()).await?;
            }
            if held.elapsed() > HELD / 8 {
                held = Instant::now();
                self.hold().await?;
            }
        }
        let mut all = stay;
        all.add_all(&hit.sums);
        if all != hit.part.sums {
            let problem = format!("{} holds {all:?}, and its manifest says {:?}", hit.part.path, hit.part.sums);
            return Err(ArchiveError::Unread(problem));
        }
        Ok(stay)
    }

    /// The new files take the place of the old ones. All of it may have been done already by a run that was killed.
    async fn switch(&self, mut manifest: Manifest) -> Result<Manifest, ArchiveError> {
        let (Self { archiver, day, run, place }, layout) = (self, Layout::of(manifest.store));
        howdah_archive::publish(place, &manifest).await?;
        (archiver.on_step)(Step::Named);
        self.hold().await?;
        manifest.parts.iter_mut().for_each(|part| part.staged.clear());
        howdah_archive::write_manifest(place, &layout, &manifest).await?;
        (archiver.on_step)(Step::ManifestWritten);
        let text = text(day, &manifest)?;
        self.still_ours(archiver.store.rewritten_day(day, run, &manifest, &text).await?)?;
        (archiver.on_step)(Step::Archived);
        howdah_archive::discard(place, &layout, &manifest).await?;
        Ok(manifest)
    }

    async fn hold(&self) -> Result<(), ArchiveError> {
        self.still_ours(self.archiver.store.hold_day(self.day, self.run, HELD).await?)
    }

    fn still_ours(&self, ours: bool) -> Result<(), ArchiveError> {
        if ours { Ok(()) } else { Err(ArchiveError::TakenOver(self.day.to_owned())) }
    }
}

/// The jobs of a file that are to be forgotten.
async fn look_into<'a>(place: &Place, part: &'a PartFile, query: &ForgetQuery) -> Result<Hit<'a>, ArchiveError> {
    if query.key.is_none() && query.before.is_none() {
        // All of it: it need not be read.
        return Ok(Hit { part, sums: part.sums, first: vec![part.min_id] });
    }
    let (wanted, mut sums, mut first) = (query.wanted(), Sums::default(), Vec::new());
    let file = OpenFile::open(place.clone(), &part.path, part.bytes).await?;
    for group in 0..file.group_count() {
        for row in file.select(group, &wanted, false).await? {
            sums.add(row.id, row.payload_bytes);
            if first.len() < FIRST {
                first.push(row.id);
            }
        }
    }
    Ok(Hit { part, sums, first })
}

//! Deletion of jobs from the archive: rewrites the files that contain them.
//!
//! New files are written and verified beside the old ones, under other names. Then the database records the new files of the day
//! (`archive.rewrite`), together with the audit entry. From then on every run continues the rewrite: renames, manifest, rows of
//! `archive_file`, and finally deletion of the old files. Readers use the files that the database names.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Instant, SystemTime},
};

use howdah_archive::{JobFilter, Layout, Location, Manifest, OpenFile, PartFile, Sums, Writer};

use super::{ArchiveError, Archiver, HELD, Step, history::micros, parse, text};
use crate::store::{Actor, ForgetDay};

/// Maximum number of job ids, and of task types, that the audit entry lists.
const FIRST: usize = 10;

/// Selection of jobs to delete; a job must match all fields.
#[derive(Clone, Debug, Default)]
pub struct ForgetQuery {
    /// Jobs with this key.
    pub key: Option<String>,
    /// Jobs of this type.
    pub task_type: Option<String>,
    /// Jobs that ended before this time.
    pub before: Option<SystemTime>,
}

/// Number of matching jobs found or deleted in the files of a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Number of rows of matching jobs. A job that ended several times, because it was retried, has several rows.
    pub jobs: i64,
    /// Number of files that contain matching jobs.
    pub files: usize,
}

/// Progress of deleting jobs from the archive files of a day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForgetProgress {
    /// The day.
    pub day: String,
    /// `true` while files are rewritten without the deleted jobs, `false` while files are searched.
    pub is_writing: bool,
    /// Number of files already searched or rewritten.
    pub done: usize,
    /// Number of files to search, or to rewrite.
    pub files: usize,
    /// Number of matching jobs found so far. During a rewrite: number of remaining jobs copied to new files.
    pub jobs: i64,
}

/// Callback for the progress of a deletion, called after each file.
pub type OnForget = Arc<dyn Fn(ForgetProgress) + Send + Sync>;

/// An archive file that contains jobs to delete, with the checksums and the first ids of these jobs.
struct Hit<'a> {
    part: &'a PartFile,
    sums: Sums,
    first: Vec<i64>,
}

impl ForgetQuery {
    fn wanted(&self) -> JobFilter {
        JobFilter { key: self.key.clone(), until: self.before.map(micros), ..JobFilter::default() }
    }

    fn may_be_in(&self, part: &PartFile) -> bool {
        self.task_type.as_ref().is_none_or(|wanted| *wanted == part.task_type)
    }
}

impl Archiver {
    /// Returns the archived days that may contain jobs of the query, oldest first.
    pub async fn days_to_forget(&self, query: &ForgetQuery) -> Result<Vec<ForgetDay>, ArchiveError> {
        Ok(self.store.forget_days(query.task_type.as_deref(), query.before).await?)
    }

    /// Counts the archived jobs of a day that match the query.
    pub async fn count_forgettable(&self, day: &str, query: &ForgetQuery) -> Result<Forgotten, ArchiveError> {
        let known = self.store.archived_day_of(day).await?;
        let Some((url, manifest)) = known else {
            return Ok(Forgotten::default());
        };
        let manifest = parse(day, &manifest)?;
        let hits = self.survey(&Location::open_to_read(&url)?, &manifest, query).await?;
        Ok(Forgotten { jobs: hits.iter().map(|hit| hit.sums.rows).sum(), files: hits.len() })
    }

    /// Deletes the archived jobs of a day that match the query. First completes an interrupted deletion. Returns `None`
    /// if another run works on the day.
    pub async fn forget(&self, day: &str, query: &ForgetQuery, by: &Actor) -> Result<Option<Forgotten>, ArchiveError> {
        let run = format!("{:016x}", rand::random::<u64>());
        let result = self.forget_in(day, &run, query, by).await;
        if let Err(error) = &result {
            // Releases the day, so that another run can continue at once. Needs a reachable database.
            let noted = self.store.record_day_error(day, &run, &error.to_string()).await;
            if let Err(problem) = noted {
                tracing::debug!(%problem, day, "cannot release the day of a failed run; other runs wait {HELD:?}");
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
        let rewriting = Rewriting { archiver: self, day, run, location: Location::open_to_read(&taken.url)? };
        let mut before = parse(day, &taken.manifest)?;
        if !taken.rewrite.is_empty() {
            before = rewriting.switch(parse(day, &taken.rewrite)?).await?;
        }
        let hits = self.survey(&rewriting.location, &before, query).await?;
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

    /// Finds the archive files of a day that contain jobs to delete.
    async fn survey<'a>(
        &self,
        location: &Location,
        manifest: &'a Manifest,
        query: &ForgetQuery,
    ) -> Result<Vec<Hit<'a>>, ArchiveError> {
        let parts: Vec<&PartFile> = manifest.parts.iter().filter(|part| query.may_be_in(part)).collect();
        let (mut hits, mut jobs) = (Vec::new(), 0);
        for (at, part) in parts.iter().copied().enumerate() {
            let hit = look_into(location, part, query).await?;
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

    /// Completes the file rewrite of an interrupted deletion. The caller must hold the day under the id `run`.
    pub(super) async fn finish_rewrite(
        &self,
        day: &str,
        run: &str,
        url: &str,
        rewrite: &str,
    ) -> Result<Manifest, ArchiveError> {
        let rewriting = Rewriting { archiver: self, day, run, location: Location::open_to_read(url)? };
        let manifest = rewriting.switch(parse(day, rewrite)?).await?;
        self.store.end_rewrite(day, run).await?;
        Ok(manifest)
    }
}

/// A rewrite of a day's archive files, which leaves out the deleted jobs.
struct Rewriting<'a> {
    archiver: &'a Archiver,
    day: &'a str,
    run: &'a str,
    location: Location,
}

impl Rewriting<'_> {
    /// Writes the remaining jobs of the affected files and verifies them. Returns the new manifest.
    async fn write(&self, before: &Manifest, hits: &[Hit<'_>], query: &ForgetQuery) -> Result<Manifest, ArchiveError> {
        let (location, layout) = (&self.location, Layout::new(before.store));
        let there = howdah_archive::manifest_of(location, &layout, self.day).await?;
        if let Some(there) = there.filter(|there| there.database != self.archiver.database) {
            let (url, day) = (location.url().to_owned(), self.day.to_owned());
            return Err(ArchiveError::Foreign { url, day, database: there.database });
        }
        howdah_archive::clear_staging(location, &layout, self.day).await?;
        let on_step = self.archiver.on_step.clone();
        let on_part: howdah_archive::OnPart = std::sync::Arc::new(move || on_step(Step::PartStaged));
        let bounds = self.archiver.bounds;
        let mut writer = Writer::begin(location.clone(), &layout, self.day, self.run, bounds, Some(on_part));
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
            howdah_archive::check(location, &part.staged, part).await?;
            written.add_all(&part.sums);
            self.hold().await?;
        }
        if written != stay {
            return Err(ArchiveError::Unread(format!(
                "the new files of day {} contain {written:?} instead of {stay:?}; the old files stay in use",
                self.day
            )));
        }
        (self.archiver.on_step)(Step::Compared);
        let is_hit = |part: &&PartFile| hits.iter().any(|hit| hit.part.path == part.path);
        let untouched = before.parts.iter().filter(|part| !is_hit(part)).cloned().collect();
        let empty = Manifest { parts: Vec::new(), sums: Sums::default(), bytes: 0, ..before.clone() };
        Ok(empty.with(untouched).with(parts))
    }

    /// Copies the rows of a file that are not deleted. Checks that copied and deleted rows together are all rows of the
    /// file.
    async fn copy(&self, hit: &Hit<'_>, query: &ForgetQuery, writer: &mut Writer) -> Result<Sums, ArchiveError> {
        let mut stay = Sums::default();
        if hit.sums == hit.part.sums {
            return Ok(stay);
        }
        let file = OpenFile::open(self.location.clone(), &hit.part.path, hit.part.bytes).await?;
        let (wanted, mut held) = (query.wanted(), Instant::now());
        for group in 0..file.group_count() {
            let rows = file.select(group, &JobFilter::default(), true).await?;
            for row in rows.iter().filter(|row| !wanted.matches_row(row)) {
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
            let problem = format!("{} contains {all:?}, but the manifest says {:?}", hit.part.path, hit.part.sums);
            return Err(ArchiveError::Unread(problem));
        }
        Ok(stay)
    }

    /// Publishes the new files and deletes the old ones. Each step may be repeated, because a killed run may have made
    /// it already.
    async fn switch(&self, mut manifest: Manifest) -> Result<Manifest, ArchiveError> {
        let (Self { archiver, day, run, location }, layout) = (self, Layout::new(manifest.store));
        howdah_archive::publish(location, &manifest).await?;
        (archiver.on_step)(Step::Named);
        self.hold().await?;
        manifest.parts.iter_mut().for_each(|part| part.staged.clear());
        howdah_archive::write_manifest(location, &layout, &manifest).await?;
        (archiver.on_step)(Step::ManifestWritten);
        let text = text(day, &manifest)?;
        self.still_ours(archiver.store.rewritten_day(day, run, &manifest, &text).await?)?;
        (archiver.on_step)(Step::Archived);
        howdah_archive::discard(location, &layout, &manifest).await?;
        Ok(manifest)
    }

    async fn hold(&self) -> Result<(), ArchiveError> {
        self.still_ours(self.archiver.store.hold_day(self.day, self.run, HELD).await?)
    }

    fn still_ours(&self, ours: bool) -> Result<(), ArchiveError> {
        if ours { Ok(()) } else { Err(ArchiveError::TakenOver(self.day.to_owned())) }
    }
}

/// Finds the jobs of one archive file that match the query.
async fn look_into<'a>(location: &Location, part: &'a PartFile, query: &ForgetQuery) -> Result<Hit<'a>, ArchiveError> {
    if query.key.is_none() && query.before.is_none() {
        // The file has jobs of one type only. Without a key and a time, the query matches all of them, so the file is
        // not read.
        return Ok(Hit { part, sums: part.sums, first: vec![part.min_id] });
    }
    let (wanted, mut sums, mut first) = (query.wanted(), Sums::default(), Vec::new());
    let file = OpenFile::open(location.clone(), &part.path, part.bytes).await?;
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

//! Reads finished jobs with a key from the archive.

use std::{
    collections::HashSet,
    time::{Instant, UNIX_EPOCH},
};

use howdah_archive::JobFilter;
use howdah_core::{
    error::Error,
    job::{JobConditions, JobState, JobView, PagePosition, SearchFound, SearchPage, SearchPosition, TaskTypeName},
};

use super::{is_position, listed};
use crate::{
    archive::{ArchivePosition, KeyQuery},
    operate::{
        Operator,
        archived::unread,
        jobs::LIST_BYTES,
        search::{Filter, LOOKS_FOR, finished},
    },
};

/// Progress of a search in the archive within one call.
struct Walk {
    jobs: Vec<JobView>,
    at: SearchPosition,
    bytes: i64,
    began: Instant,
}

impl Walk {
    fn is_full(&self, page: &SearchPage) -> bool {
        self.jobs.len() >= page.size || self.bytes <= 0 || self.began.elapsed() >= LOOKS_FOR
    }

    fn position(&self) -> ArchivePosition {
        ArchivePosition { day: self.at.at.rank as i32, id: self.at.at.id }
    }

    fn move_to(&mut self, to: ArchivePosition, scanned_count: i64) {
        self.at.at = PagePosition { state: JobState::Succeeded, rank: i64::from(to.day), id: to.id };
        self.at.scanned_count = scanned_count;
    }
}

impl Operator {
    /// Continues a search by key in the archive, after it has `found` all jobs in the database. If the call has found
    /// jobs in the database, the next call reads the archive, so that an unreadable archive does not hide these jobs.
    pub(in crate::operate::search) async fn search_archive(
        &self,
        task_type: &TaskTypeName,
        key: &str,
        filter: &Filter<'_>,
        page: &SearchPage,
        found: SearchFound,
    ) -> Result<SearchFound, Error> {
        let at = begin(&found);
        let mut walk = Walk { jobs: found.jobs, at, bytes: LIST_BYTES, began: Instant::now() };
        match page.from.filter(|from| is_position(*from)) {
            Some(from) => walk.at = from,
            None => match self.context.store.count_archived(task_type.as_str()).await? {
                0 => return Ok(finished(walk.jobs, walk.at)),
                jobs => walk.at.estimated = walk.at.scanned_count + jobs,
            },
        }
        if !walk.jobs.is_empty() {
            return Ok(SearchFound { next: Some(walk.at), ..finished(walk.jobs, walk.at) });
        }
        let outcome = filter.state.map(|state| state.name().to_owned());
        let wanted = JobFilter { key: Some(key.to_owned()), outcome, ..JobFilter::default() };
        let query = KeyQuery { task_type: task_type.as_str(), filter: wanted };
        while !walk.is_full(page) {
            match self.search_files(&query, filter, page, &mut walk).await {
                Ok(true) => {}
                Ok(false) => return Ok(finished(walk.jobs, walk.at)),
                Err(error) if walk.jobs.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(SearchFound { next: Some(walk.at), ..finished(walk.jobs, walk.at) })
    }

    /// Searches the next files. Returns false if no files are left.
    async fn search_files(
        &self,
        query: &KeyQuery<'_>,
        filter: &Filter<'_>,
        page: &SearchPage,
        walk: &mut Walk,
    ) -> Result<bool, Error> {
        let before = walk.at.scanned_count;
        let step = self.archive.find_by_key(query, walk.position(), page.size - walk.jobs.len()).await;
        let Some(step) = step.map_err(|error| unread("a job with this key is", error))? else { return Ok(false) };
        let ids: Vec<i64> = step.found.iter().map(|found| found.id).collect();
        // Skip jobs that are also in the database, where the search has found them: their day is not dropped yet, or
        // they were retried after they had been archived.
        let stored: HashSet<i64> = if ids.is_empty() {
            HashSet::new()
        } else {
            let states = self.context.store.states_of_jobs(&ids).await?;
            states.into_iter().filter(|job| job.known.is_some()).map(|job| job.id).collect()
        };
        for found in &step.found {
            if !stored.contains(&found.id)
                && let Some(job) = self.last_end_on(*found, query).await?
                && filter.fits(&job)
                && meets(filter.conditions, &job)
            {
                walk.bytes -= size(&job);
                walk.jobs.push(listed(job));
            }
            walk.move_to(*found, before + step.scanned_to(*found));
            if walk.is_full(page) && *found != step.next {
                return Ok(true);
            }
        }
        walk.move_to(step.next, before + step.scanned_to(step.next));
        Ok(true)
    }

    /// Returns an archived job if it last ended on the day of the entry, and with the key of the query.
    async fn last_end_on(&self, entry: ArchivePosition, query: &KeyQuery<'_>) -> Result<Option<JobView>, Error> {
        let job = self.archived_job(entry.id).await?;
        Ok(job.filter(|job| {
            job.key == query.filter.key
                && job.task_type == query.task_type
                && job.finished.is_some_and(|at| ArchivePosition::day_of(at) == entry.day)
        }))
    }
}

/// Position at which a search reads the archive after it has `found` all jobs in the database.
fn begin(found: &SearchFound) -> SearchPosition {
    let ArchivePosition { day, id } = ArchivePosition::START;
    SearchPosition {
        at: PagePosition { state: JobState::Succeeded, rank: i64::from(day), id },
        scanned_count: found.scanned_count,
        estimated: found.estimated,
    }
}

/// Whether an archived job meets the conditions, as `howdah.meets` in SQL.
fn meets(conditions: &JobConditions, job: &JobView) -> bool {
    let created = job.created.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64);
    let JobConditions { created_before_us, created_since_us, tag, fair_key, limit_key, .. } = conditions;
    let options = job.options.as_deref();
    created_before_us.is_none_or(|before| created < before)
        && created_since_us.is_none_or(|since| created >= since)
        && tag.as_ref().is_none_or(|tag| job.tags.contains(tag))
        && (fair_key.is_none() || options.is_some_and(|options| options.fair_key == *fair_key))
        && (limit_key.is_none() || options.is_some_and(|options| options.limit_key == *limit_key))
        && conditions.attempts_at_least.is_none_or(|least| job.attempt >= least)
        && conditions.attempts_at_most.is_none_or(|most| job.attempt <= most)
}

/// Approximate size of a job in an answer, in bytes.
fn size(job: &JobView) -> i64 {
    let headers: usize = job.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    let tags: usize = job.tags.iter().map(String::len).sum();
    let error = job.failures.last().map_or(0, |failure| failure.error.len());
    (500 + headers + tags + error) as i64
}

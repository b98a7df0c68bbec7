//! Searches for jobs. A call scans for about two seconds at most, in steps that are bounded in jobs, bytes and time. Its
//! response reports the progress.

mod archived; // archived jobs with a key

use std::{
    cmp::Reverse,
    time::{Duration, Instant},
};

use howdah_core::{
    error::Error,
    job::{
        Having, JobConditions, JobState, JobView, PagePosition, SearchFound, SearchIndex, SearchPage, SearchPosition,
        SearchQuery, SearchRange, TaskTypeName, TypeId,
    },
};

use super::{Operator, jobs::LIST_BYTES};
use crate::store::{Scanned, SearchStep, SearchStepResult};

/// Time limit for the scan of a search call.
pub const LOOKS_FOR: Duration = Duration::from_secs(2);
/// Time limit of one statement of a search.
pub const STEP: Duration = Duration::from_millis(500);
/// Maximum number of jobs that one statement of a search scans.
pub const STEP_JOBS: i32 = 100_000;
/// Maximum bytes of payloads that one statement of a search scans, in addition to the first payload.
pub const STEP_BYTES: i64 = 32 << 20;
/// Maximum number of concurrent header and payload searches of a broker. Further searches wait.
pub const AT_ONCE: usize = 2;
/// Maximum number of jobs with a key or a tag that a search call examines.
pub const INDEX_JOBS: usize = 10_000;
/// Limit for counting the jobs with a key or a tag.
const INDEX_COUNT: i64 = 10_000;
/// Number of jobs that are read at once, if some of them may not match.
const INDEX_STEP: usize = 1_000;

/// If a statement takes less time than this, the next one scans more.
const SHORT: Duration = Duration::from_millis(100);

impl Operator {
    pub async fn search_jobs(&self, query: &SearchQuery) -> Result<SearchFound, Error> {
        match query {
            SearchQuery::Id(id) => {
                let mut jobs =
                    self.context.store.found_jobs(&[*id], LIST_BYTES, false, &JobConditions::default()).await?.jobs;
                if jobs.is_empty() {
                    let archived = self.archived_job(*id).await?;
                    jobs.extend(archived.map(archived::listed));
                }
                Ok(SearchFound { jobs, scanned_count: 1, estimated: 1, ..SearchFound::default() })
            }
            SearchQuery::Index { task_type, index, state, conditions, page } => {
                let type_id = self.type_of(task_type).await?;
                let held = match type_id {
                    Some(_) => self.held_by_worker_of(conditions, type_id).await?,
                    None => conditions.worker_id.as_ref().map(|_| Vec::new()),
                };
                let entries = match index {
                    SearchIndex::Key(key) => Entries::Key(key),
                    SearchIndex::Tag(tag) => Entries::Tag { task_type: task_type.as_str(), tag },
                    SearchIndex::Worker(worker_id) => {
                        let mut ids = match type_id {
                            Some(_) => self.held_by(worker_id, type_id).await?,
                            None => Vec::new(),
                        };
                        ids.sort_unstable_by_key(|id| Reverse(*id));
                        Entries::Held { task_type: task_type.as_str(), ids }
                    }
                };
                let filter = Filter { state: *state, conditions, held };
                let found = match (type_id, page.from) {
                    (_, Some(from)) if archived::is_position(from) => finished(Vec::new(), from),
                    (Some(type_id), _) => self.search_index(type_id, &entries, &filter, page).await?,
                    // The jobs of a deleted type are only in the archive.
                    (None, _) => SearchFound::default(),
                };
                match index {
                    SearchIndex::Key(key) if found.next.is_none() && filter.may_fit_finished() => {
                        self.search_archive(task_type, key, &filter, page, found).await
                    }
                    _ => Ok(found),
                }
            }
            SearchQuery::Look { having, conditions, range, page } => {
                if let Some(Having::Path(path)) = having
                    && let Some(problem) = self.context.store.json_path_problem(path).await?
                {
                    return Err(Error::invalid("payload_path", format!("is not a valid path: {problem}")));
                }
                match self.type_of(&range.task_type).await? {
                    Some(type_id) => self.look(type_id, (having.as_ref(), conditions), range, page).await,
                    None => Ok(SearchFound::default()),
                }
            }
        }
    }

    async fn type_of(&self, name: &TaskTypeName) -> Result<Option<TypeId>, Error> {
        Ok(self.context.registry.find(name).await?)
    }

    /// Searches for jobs by an index (key, tag or worker), newest first.
    async fn search_index(
        &self,
        type_id: TypeId,
        entries: &Entries<'_>,
        filter: &Filter<'_>,
        page: &SearchPage,
    ) -> Result<SearchFound, Error> {
        let store = &self.context.store;
        let mut at = match page.from {
            Some(from) => from,
            None => SearchPosition {
                at: PagePosition { state: JobState::Succeeded, rank: 0, id: 0 },
                scanned_count: 0,
                estimated: match entries {
                    Entries::Key(key) => store.count_key(type_id, key, INDEX_COUNT).await?,
                    Entries::Tag { tag, .. } => store.count_tag(type_id, tag, INDEX_COUNT).await?,
                    Entries::Held { ids, .. } => ids.len() as i64,
                },
            },
        };
        let (mut jobs, mut bytes) = (Vec::new(), LIST_BYTES);
        let (most, began) = (at.scanned_count + INDEX_JOBS as i64, Instant::now());
        while jobs.len() < page.size && bytes > 0 && at.scanned_count < most && began.elapsed() < LOOKS_FOR {
            let wanted = entries.wanted(filter, page.size - jobs.len());
            let ids = match entries {
                Entries::Key(key) => store.search_key(type_id, key, at.at.id, wanted as i32).await?,
                Entries::Tag { tag, .. } => store.search_tag(type_id, tag, at.at.id, wanted as i32).await?,
                Entries::Held { ids, .. } => {
                    ids.iter().copied().filter(|id| at.at.id == 0 || *id < at.at.id).take(wanted).collect()
                }
            };
            let found = store.found_jobs(&ids, bytes, false, filter.conditions).await?;
            bytes -= found.bytes;
            let last = found.jobs.last().map(|job| job.id);
            let fits = |job: &JobView| filter.fits(job) && entries.fit(job);
            let mut matching = found.jobs.into_iter().filter(fits);
            jobs.extend(matching.by_ref().take(page.size - jobs.len()));
            let left_over = matching.next().is_some();
            let end = match (left_over, found.cut) {
                (true, _) => jobs.last().map(|job: &JobView| job.id),
                (false, true) => last,
                (false, false) => ids.last().copied(),
            };
            let Some(end) = end else { return Ok(finished(jobs, at)) };
            at.scanned_count += ids.iter().filter(|id| **id >= end).count() as i64;
            at.at.id = end;
            if !left_over && !found.cut && ids.len() < wanted {
                return Ok(finished(jobs, at));
            }
        }
        Ok(SearchFound { next: Some(at), ..finished(jobs, at) })
    }

    /// Searches for jobs by scanning them one by one.
    async fn look(
        &self,
        type_id: TypeId,
        (having, conditions): (Option<&Having>, &JobConditions),
        range: &SearchRange,
        page: &SearchPage,
    ) -> Result<SearchFound, Error> {
        let _turn = self.searches.acquire().await.map_err(|_| Error::Unavailable("the broker is stopping".into()))?;
        let mut walk = Walk {
            at: match page.from {
                Some(from) => from,
                None => SearchPosition {
                    at: PagePosition::first(range.state),
                    scanned_count: 0,
                    estimated: self.estimate(range).await?,
                },
            },
            found: Vec::new(),
            skipped: Vec::new(),
            rows: first_rows(having),
        };
        let step = SearchStep {
            type_id,
            range,
            having,
            conditions,
            from: walk.at.at,
            rows: 0,
            bytes: STEP_BYTES,
            found: 0,
            within: STEP,
        };
        let more = self.walk(&mut walk, step, page.size).await?;
        let ids: Vec<i64> = walk.found.iter().map(|found| found.at.id).collect();
        let shown = self.context.store.found_jobs(&ids, LIST_BYTES, false, conditions).await?;
        let Walk { mut at, found, skipped, .. } = walk;
        let last = shown.jobs.last().map(|job| job.id);
        let cut = found.iter().find(|found| shown.cut && Some(found.at.id) == last);
        if let Some(cut) = cut {
            at = SearchPosition { at: cut.at, scanned_count: cut.scanned_count, ..at };
        }
        let next = (more || cut.is_some()).then_some(at);
        let held = self.held_by_worker_of(conditions, Some(type_id)).await?;
        let filter = Filter { state: None, conditions, held };
        let jobs = shown.jobs.into_iter().filter(|job| filter.fits(job)).collect();
        Ok(SearchFound { next, skipped, ..finished(jobs, at) })
    }

    /// Continues the scan until the page is full or the time is over. Returns false if the scan is complete.
    async fn walk(&self, walk: &mut Walk, step: SearchStep<'_>, page: usize) -> Result<bool, Error> {
        let began = Instant::now();
        // Every call runs at least one step, even if the time is over.
        let mut went_on = false;
        while walk.found.len() < page && (!went_on || began.elapsed() + STEP <= LOOKS_FOR) {
            let wanted = page - walk.found.len();
            let step = SearchStep { from: walk.at.at, rows: walk.rows, found: wanted as i32, ..step };
            let step_began = Instant::now();
            match self.context.store.search_step(&step).await? {
                SearchStepResult::End => return Ok(false),
                SearchStepResult::TimedOut if walk.rows > 1 => walk.rows = (walk.rows / 16).max(1),
                SearchStepResult::TimedOut => {
                    let one = SearchStep { having: None, ..step };
                    match self.context.store.search_step(&one).await? {
                        SearchStepResult::To { last, .. } => {
                            walk.skipped.push(last.at.id);
                            walk.went_to(last);
                        }
                        SearchStepResult::End => return Ok(false),
                        SearchStepResult::TimedOut => {
                            return Err(Error::Unavailable("Postgres takes too long to read a single job".into()));
                        }
                    }
                    went_on = true;
                }
                SearchStepResult::To { found, last } => {
                    let last = found.last().copied().filter(|_| found.len() >= wanted).unwrap_or(last);
                    let before = walk.at.scanned_count;
                    walk.found.extend(found.iter().map(|f| Hit { at: f.at, scanned_count: before + f.ordinal }));
                    walk.went_to(last);
                    walk.rows = next_rows(walk.rows, step_began.elapsed());
                    went_on = true;
                }
            }
        }
        Ok(true)
    }

    /// Estimates the number of jobs to scan from the last job counts.
    async fn estimate(&self, range: &SearchRange) -> Result<i64, Error> {
        let counted = self.counted_types().await;
        let sum = |column: usize| counted.types.iter().map(|view| view.counts[column]).sum();
        let own = |column: usize| {
            let own = counted.types.iter().find(|view| view.name == range.task_type.as_str());
            own.map_or(0, |view| view.counts[column])
        };
        Ok(match range.state {
            JobState::Ready => own(0),
            JobState::Leased => sum(1),
            JobState::Scheduled => sum(2),
            JobState::Waiting => sum(3),
            JobState::Dead => own(4),
            _ => self.context.store.estimate_finished(range).await?,
        })
    }
}

/// Conditions on the jobs of a search.
struct Filter<'a> {
    /// State of the jobs; `None`: any.
    state: Option<JobState>,
    conditions: &'a JobConditions,
    /// Jobs that the worker of the conditions holds; `None` if they name no worker.
    held: Option<Vec<i64>>,
}

impl Filter<'_> {
    fn may_fit_finished(&self) -> bool {
        self.held.is_none() && self.state.is_none_or(JobState::is_finished)
    }

    /// Whether a job that meets the conditions in SQL also meets the others.
    fn fits(&self, job: &JobView) -> bool {
        self.state.is_none_or(|state| job.state == state)
            && self.held.as_ref().is_none_or(|held| job.state == JobState::Leased && held.contains(&job.id))
    }
}

/// Condition of an index search.
enum Entries<'a> {
    /// Jobs with a key.
    Key(&'a str),
    /// Jobs that may have a tag.
    Tag { task_type: &'a str, tag: &'a str },
    /// Jobs that a worker is known to hold, newest first.
    Held { task_type: &'a str, ids: Vec<i64> },
}

impl Entries<'_> {
    /// Returns the number of index entries to read to find this many jobs.
    fn wanted(&self, filter: &Filter<'_>, jobs: usize) -> usize {
        match self {
            // If the search is restricted further, most entries may be of other jobs.
            _ if filter.state.is_some() || !filter.conditions.is_empty() => INDEX_STEP,
            Self::Key(_) => jobs,
            Self::Held { .. } => INDEX_STEP,
            // Entries of a tag may be stale. Reads a minimum number, so that many stale entries cost few statements.
            Self::Tag { .. } => jobs.max(INDEX_STEP / 10),
        }
    }

    /// Whether a job still matches the index entry by which it was found.
    fn fit(&self, job: &JobView) -> bool {
        match self {
            Self::Key(_) => true,
            Self::Tag { task_type, tag } => job.task_type == *task_type && job.tags.iter().any(|own| own == tag),
            Self::Held { task_type, .. } => job.task_type == *task_type && job.state == JobState::Leased,
        }
    }
}

/// Progress of a scan within one call.
struct Walk {
    at: SearchPosition,
    found: Vec<Hit>,
    skipped: Vec<i64>,
    rows: i32,
}

/// A job found by a search.
struct Hit {
    at: PagePosition,
    scanned_count: i64,
}

impl Walk {
    fn went_to(&mut self, last: Scanned) {
        self.at.at = last.at;
        self.at.scanned_count += last.ordinal;
    }
}

fn finished(jobs: Vec<JobView>, at: SearchPosition) -> SearchFound {
    SearchFound {
        jobs,
        next: None,
        scanned_count: at.scanned_count,
        estimated: at.estimated.max(at.scanned_count),
        skipped: Vec::new(),
    }
}

/// Returns the number of rows that the first step scans. It is high for headers and conditions, which are in the row, and lower for
/// payloads, which may be large.
fn first_rows(having: Option<&Having>) -> i32 {
    match having {
        None | Some(Having::Header { .. }) => 10_000,
        Some(Having::Text(_) | Having::Path(_)) => 1_000,
    }
}

fn next_rows(rows: i32, took: Duration) -> i32 {
    match took {
        _ if took < SHORT => (rows * 4).min(STEP_JOBS),
        _ if took > STEP / 2 => (rows / 2).max(1),
        _ => rows,
    }
}

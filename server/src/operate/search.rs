//! Searches. A call looks for about two seconds at most, in steps that are bounded in jobs, bytes and time; its answer says how
//! far it came.

use std::time::{Duration, Instant};

use super::{Operator, jobs::LIST_BYTES};
use crate::{
    error::Error,
    job::{
        Having, JobState, JobView, PagePosition, SearchFound, SearchPage, SearchPosition, SearchQuery, SearchRange,
        TaskTypeName, TypeId,
    },
    store::{LookedAt, SearchStep, Stepped},
};

/// How long a call looks.
pub(crate) const LOOKS_FOR: Duration = Duration::from_secs(2);
/// How long a statement of it may take.
pub(crate) const STEP: Duration = Duration::from_millis(500);
/// The most jobs that a statement looks at.
pub(crate) const STEP_JOBS: i32 = 100_000;
/// The most bytes of payloads that a statement looks at, in addition to the first.
pub(crate) const STEP_BYTES: i64 = 32 << 20;
/// The most searches by header or payload that a broker works on at once. The others wait.
pub(crate) const AT_ONCE: usize = 2;
/// The most jobs of a key or a tag that a call looks at.
pub(crate) const INDEX_JOBS: usize = 10_000;
/// Up to where jobs of a key or a tag are counted.
const INDEX_COUNT: i64 = 10_000;
/// How many of them are looked at together, if not all of them may fit.
const INDEX_STEP: usize = 1_000;

/// A step this short may be followed by a longer one.
const SHORT: Duration = Duration::from_millis(100);

impl Operator {
    /// Searches for jobs.
    pub(crate) async fn search_jobs(&self, query: &SearchQuery) -> Result<SearchFound, Error> {
        match query {
            SearchQuery::Id(id) => {
                let mut jobs = self.context.store.found_jobs(&[*id], LIST_BYTES, false).await?.jobs;
                if jobs.is_empty() {
                    let archived = self.archived_job(*id).await?;
                    jobs.extend(archived.map(|job| JobView { payload: None, result: None, ..job }));
                }
                Ok(SearchFound { jobs, looked_at: 1, estimated: 1, ..SearchFound::default() })
            }
            SearchQuery::Key { task_type, key, state, page } => match self.type_of(task_type).await? {
                Some(type_id) => self.search_index(type_id, &Entries::Key(key), *state, page).await,
                None => Ok(SearchFound::default()),
            },
            SearchQuery::Tag { task_type, tag, state, page } => match self.type_of(task_type).await? {
                Some(type_id) => {
                    let entries = Entries::Tag { task_type: task_type.as_str(), tag };
                    self.search_index(type_id, &entries, *state, page).await
                }
                None => Ok(SearchFound::default()),
            },
            SearchQuery::Look { having, range, page } => {
                if let Having::Path(path) = having
                    && let Some(problem) = self.context.store.json_path_problem(path).await?
                {
                    return Err(Error::invalid("payload_path", format!("is not a path: Postgres says: {problem}")));
                }
                match self.type_of(&range.task_type).await? {
                    Some(type_id) => self.look(type_id, having, range, page).await,
                    None => Ok(SearchFound::default()),
                }
            }
        }
    }

    async fn type_of(&self, name: &TaskTypeName) -> Result<Option<TypeId>, Error> {
        Ok(self.context.registry.find(name).await?)
    }

    /// Jobs that an index names, the newest first.
    async fn search_index(
        &self,
        type_id: TypeId,
        entries: &Entries<'_>,
        state: Option<JobState>,
        page: &SearchPage,
    ) -> Result<SearchFound, Error> {
        let store = &self.context.store;
        let mut at = match page.from {
            Some(from) => from,
            None => SearchPosition {
                at: PagePosition { state: JobState::Succeeded, rank: 0, id: 0 },
                looked_at: 0,
                estimated: match entries {
                    Entries::Key(key) => store.count_key(type_id, key, INDEX_COUNT).await?,
                    Entries::Tag { tag, .. } => store.count_tag(type_id, tag, INDEX_COUNT).await?,
                },
            },
        };
        let (mut jobs, mut bytes) = (Vec::new(), LIST_BYTES);
        let (most, began) = (at.looked_at + INDEX_JOBS as i64, Instant::now());
        while jobs.len() < page.size && bytes > 0 && at.looked_at < most && began.elapsed() < LOOKS_FOR {
            let wanted = entries.wanted(state, page.size - jobs.len());
            let ids = match entries {
                Entries::Key(key) => store.search_key(type_id, key, at.at.id, wanted as i32).await?,
                Entries::Tag { tag, .. } => store.search_tag(type_id, tag, at.at.id, wanted as i32).await?,
            };
            let found = store.found_jobs(&ids, bytes, false).await?;
            bytes -= found.bytes;
            let last = found.jobs.last().map(|job| job.id);
            let fits = |job: &JobView| state.is_none_or(|state| job.state == state) && entries.fit(job);
            let mut matching = found.jobs.into_iter().filter(fits);
            jobs.extend(matching.by_ref().take(page.size - jobs.len()));
            let left_over = matching.next().is_some();
            let end = match (left_over, found.cut) {
                (true, _) => jobs.last().map(|job: &JobView| job.id),
                (false, true) => last,
                (false, false) => ids.last().copied(),
            };
            let Some(end) = end else { return Ok(finished(jobs, at)) };
            at.looked_at += ids.iter().filter(|id| **id >= end).count() as i64;
            at.at.id = end;
            if !left_over && !found.cut && ids.len() < wanted {
                return Ok(finished(jobs, at));
            }
        }
        Ok(SearchFound { next: Some(at), ..finished(jobs, at) })
    }

    /// Looks at jobs one by one.
    async fn look(
        &self,
        type_id: TypeId,
        having: &Having,
        range: &SearchRange,
        page: &SearchPage,
    ) -> Result<SearchFound, Error> {
        let _turn = self.searches.acquire().await.map_err(|_| Error::Unavailable("the broker is stopping".into()))?;
        let mut walk = Walk {
            at: match page.from {
                Some(from) => from,
                None => {
                    SearchPosition { at: start_of(range.state), looked_at: 0, estimated: self.estimate(range).await? }
                }
            },
            found: Vec::new(),
            skipped: Vec::new(),
            rows: first_rows(having),
        };
        let step = SearchStep {
            type_id,
            range,
            having: Some(having),
            from: walk.at.at,
            rows: 0,
            bytes: STEP_BYTES,
            found: 0,
            within: STEP,
        };
        let more = self.walk(&mut walk, step, page.size).await?;
        let ids: Vec<i64> = walk.found.iter().map(|found| found.at.id).collect();
        let shown = self.context.store.found_jobs(&ids, LIST_BYTES, false).await?;
        let Walk { mut at, found, skipped, .. } = walk;
        let last = shown.jobs.last().map(|job| job.id);
        let cut = found.iter().find(|found| shown.cut && Some(found.at.id) == last);
        if let Some(cut) = cut {
            at = SearchPosition { at: cut.at, looked_at: cut.looked_at, ..at };
        }
        let next = (more || cut.is_some()).then_some(at);
        Ok(SearchFound { next, skipped, ..finished(shown.jobs, at) })
    }

    /// Goes on until the page is full or the time is over. False: everything was looked at.
    async fn walk(&self, walk: &mut Walk, step: SearchStep<'_>, page: usize) -> Result<bool, Error> {
        let began = Instant::now();
        // Whatever the time: a call comes at least one step further.
        let mut went_on = false;
        while walk.found.len() < page && (!went_on || began.elapsed() + STEP <= LOOKS_FOR) {
            let wanted = page - walk.found.len();
            let step = SearchStep { from: walk.at.at, rows: walk.rows, found: wanted as i32, ..step };
            let step_began = Instant::now();
            match self.context.store.search_step(&step).await? {
                Stepped::End => return Ok(false),
                Stepped::TimedOut if walk.rows > 1 => walk.rows = (walk.rows / 16).max(1),
                Stepped::TimedOut => {
                    let one = SearchStep { having: None, ..step };
                    match self.context.store.search_step(&one).await? {
                        Stepped::To { last, .. } => {
                            walk.skipped.push(last.at.id);
                            walk.went_to(last);
                        }
                        Stepped::End => return Ok(false),
                        Stepped::TimedOut => {
                            return Err(Error::Unavailable("Postgres takes too long to read a single job".into()));
                        }
                    }
                    went_on = true;
                }
                Stepped::To { found, last } => {
                    let last = found.last().copied().filter(|_| found.len() >= wanted).unwrap_or(last);
                    let before = walk.at.looked_at;
                    walk.found.extend(found.iter().map(|f| Hit { at: f.at, looked_at: before + f.ordinal }));
                    walk.went_to(last);
                    walk.rows = next_rows(walk.rows, step_began.elapsed());
                    went_on = true;
                }
            }
        }
        Ok(true)
    }

    /// About how many jobs there are to look at. Nothing is counted for it.
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

/// What an index is asked for.
enum Entries<'a> {
    /// Jobs of a key.
    Key(&'a str),
    /// Jobs that may have a tag.
    Tag { task_type: &'a str, tag: &'a str },
}

impl Entries<'_> {
    /// How many entries to look at for this many jobs.
    fn wanted(&self, state: Option<JobState>, jobs: usize) -> usize {
        match self {
            // With a state most of them may be others.
            _ if state.is_some() => INDEX_STEP,
            Self::Key(_) => jobs,
            // Entries of jobs that are gone or have changed must not cost a statement each.
            Self::Tag { .. } => jobs.max(INDEX_STEP / 10),
        }
    }

    /// Whether a job is what its entry says.
    fn fit(&self, job: &JobView) -> bool {
        match self {
            Self::Key(_) => true,
            Self::Tag { task_type, tag } => job.task_type == *task_type && job.tags.iter().any(|own| own == tag),
        }
    }
}

/// How far a call has come.
struct Walk {
    at: SearchPosition,
    found: Vec<Hit>,
    skipped: Vec<i64>,
    rows: i32,
}

/// A job that was found.
struct Hit {
    at: PagePosition,
    looked_at: i64,
}

impl Walk {
    fn went_to(&mut self, last: LookedAt) {
        self.at.at = last.at;
        self.at.looked_at += last.ordinal;
    }
}

fn start_of(state: JobState) -> PagePosition {
    let id = if state.is_finished() { 0 } else { i64::MIN };
    PagePosition { state, rank: i64::MIN, id }
}

fn finished(jobs: Vec<JobView>, at: SearchPosition) -> SearchFound {
    SearchFound {
        jobs,
        next: None,
        looked_at: at.looked_at,
        estimated: at.estimated.max(at.looked_at),
        skipped: Vec::new(),
    }
}

/// Headers are in the row; a payload may be large.
fn first_rows(having: &Having) -> i32 {
    match having {
        Having::Header { .. } => 10_000,
        Having::Text(_) | Having::Path(_) => 1_000,
    }
}

fn next_rows(rows: i32, took: Duration) -> i32 {
    match took {
        _ if took < SHORT => (rows * 4).min(STEP_JOBS),
        _ if took > STEP / 2 => (rows / 2).max(1),
        _ => rows,
    }
}

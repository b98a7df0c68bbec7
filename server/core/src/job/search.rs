//! Searches for jobs.

use std::time::SystemTime;

use super::{JobConditions, JobState, JobView, PagePosition, TaskTypeName};

/// Query of a search.
#[derive(Clone, Debug)]
pub enum SearchQuery {
    /// The job with this id.
    Id(i64),
    /// Jobs that an index finds.
    Index {
        /// Type of the jobs.
        task_type: TaskTypeName,
        /// The index.
        index: SearchIndex,
        /// State of the jobs; `None`: any.
        state: Option<JobState>,
        /// Further conditions on the jobs.
        conditions: JobConditions,
        /// The page.
        page: SearchPage,
    },
    /// Jobs that a scan finds by comparing each job with conditions.
    Look {
        /// Content of the jobs; `None`: any.
        having: Option<Having>,
        /// Further conditions on the jobs.
        conditions: JobConditions,
        /// Range of jobs to scan.
        range: SearchRange,
        /// The page.
        page: SearchPage,
    },
}

/// Index of a search, and the value that it looks up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SearchIndex {
    /// Jobs with a key.
    Key(String),
    /// Jobs with a tag.
    Tag(String),
    /// Jobs that the worker with this public id holds.
    Worker(String),
}

/// Content of a scanned job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Having {
    /// A header with this value.
    Header {
        /// Name.
        name: String,
        /// Value.
        value: String,
    },
    /// A payload that contains this text.
    Text(String),
    /// A payload with a match for this JSON path.
    Path(String),
}

/// Range of jobs to scan.
#[derive(Clone, Debug)]
pub struct SearchRange {
    /// Type of the jobs.
    pub task_type: TaskTypeName,
    /// State of the jobs.
    pub state: JobState,
    /// Start of the searched period. It is compared with the time when a job finished or died, or in other states when
    /// it was enqueued.
    pub since: SystemTime,
    /// End of the searched period, exclusive; `None`: now.
    pub until: Option<SystemTime>,
}

/// A page of a search.
#[derive(Clone, Copy, Debug)]
pub struct SearchPage {
    /// Maximum number of jobs.
    pub size: usize,
    /// Position after which the page starts; `None` for the first page.
    pub from: Option<SearchPosition>,
}

/// Progress of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchPosition {
    /// Last scanned job.
    pub at: PagePosition,
    /// Number of scanned jobs.
    pub scanned_count: i64,
    /// Total number of jobs to scan, as estimated by the first call.
    pub estimated: i64,
}

/// Result of a search call.
#[derive(Clone, Debug, Default)]
pub struct SearchFound {
    /// The jobs.
    pub jobs: Vec<JobView>,
    /// Start of the next page; `None` if the search is complete.
    pub next: Option<SearchPosition>,
    /// Number of jobs scanned by this call and the earlier ones.
    pub scanned_count: i64,
    /// Estimated total number of jobs to scan.
    pub estimated: i64,
    /// Ids of jobs that were skipped because the comparison of their payloads took too long.
    pub skipped: Vec<i64>,
}

impl SearchFound {
    /// Sets the counts to 0, for a caller who may not read all of the jobs that they include.
    pub fn forget_counts(&mut self) {
        (self.scanned_count, self.estimated) = (0, 0);
        self.next = self.next.map(|next| SearchPosition { scanned_count: 0, estimated: 0, ..next });
    }
}

//! A search for jobs.

use std::time::SystemTime;

use super::{JobState, JobView, PagePosition, TaskTypeName};

/// What to search for, and where.
#[derive(Clone, Debug)]
pub enum SearchQuery {
    /// The job with this id.
    Id(i64),
    /// Jobs of a key.
    Key {
        /// Their type.
        task_type: TaskTypeName,
        /// The key.
        key: String,
        /// Their state; `None`: any.
        state: Option<JobState>,
        /// The page.
        page: SearchPage,
    },
    /// Jobs with a tag.
    Tag {
        /// Their type.
        task_type: TaskTypeName,
        /// The tag.
        tag: String,
        /// Their state; `None`: any.
        state: Option<JobState>,
        /// The page.
        page: SearchPage,
    },
    /// Jobs that are looked at one by one.
    Look {
        /// What they have.
        having: Having,
        /// Where to look.
        range: SearchRange,
        /// The page.
        page: SearchPage,
    },
}

/// What a job has that is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Having {
    /// This header.
    Header {
        /// Its name.
        name: String,
        /// Its value.
        value: String,
    },
    /// This text in its payload.
    Text(String),
    /// Something at this path of its payload.
    Path(String),
}

/// The jobs to look at.
#[derive(Clone, Debug)]
pub struct SearchRange {
    /// Their type.
    pub task_type: TaskTypeName,
    /// Their state.
    pub state: JobState,
    /// They finished, died or were enqueued at this time or later.
    pub since: SystemTime,
    /// The same before this time; `None`: now.
    pub until: Option<SystemTime>,
}

/// A page of a search.
#[derive(Clone, Copy, Debug)]
pub struct SearchPage {
    /// The most jobs.
    pub size: usize,
    /// Where it starts; `None`: at the beginning.
    pub from: Option<SearchPosition>,
}

/// How far a search has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchPosition {
    /// The last job that was looked at.
    pub at: PagePosition,
    /// The number of jobs that were looked at.
    pub looked_at: i64,
    /// About how many there are in all, as the first page estimated it.
    pub estimated: i64,
}

/// What a call found.
#[derive(Clone, Debug, Default)]
pub struct SearchFound {
    /// The jobs.
    pub jobs: Vec<JobView>,
    /// Where the next page starts; `None`: everything was looked at.
    pub next: Option<SearchPosition>,
    /// The number of jobs that were looked at, by this call and those before.
    pub looked_at: i64,
    /// About how many there are in all.
    pub estimated: i64,
    /// Jobs that were left out, because to compare one took too long.
    pub skipped: Vec<i64>,
}

//! Views of the page, one per file.

pub(super) mod act; // executes an action
pub(super) mod audit;
pub(super) mod bulks;
pub(super) mod confirm; // asks before an action
pub(super) mod failures;
pub(super) mod find; // by id or by name; 404
pub(super) mod job;
pub(super) mod jobs;
pub(super) mod limits;
pub(super) mod live; // live figures
pub(super) mod new_job; // creates a job
pub(super) mod overview;
pub(super) mod schedule_form; // creates or changes a schedule
pub(super) mod schedules;
pub(super) mod statistics;
pub(super) mod storage;
pub(super) mod tokens;
pub(super) mod types;
pub(super) mod workers;

mod parts; // table rows that several views share
mod spec; // bulk operations in words

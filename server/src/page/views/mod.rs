//! The views, one a file.

pub(super) mod act; // does it
pub(super) mod audit;
pub(super) mod bulks;
pub(super) mod confirm; // asks before it is done
pub(super) mod failures;
pub(super) mod find; // by id, or by name
pub(super) mod job;
pub(super) mod jobs;
pub(super) mod limits;
pub(super) mod live; // figures as they change
pub(super) mod nowhere; // what is not there
pub(super) mod overview;
pub(super) mod schedules;
pub(super) mod statistics;
pub(super) mod storage;
pub(super) mod task_type;
pub(super) mod tokens;
pub(super) mod types;
pub(super) mod workers;

mod parts; // rows that several views have
mod spec; // bulk operations in words

//! Archives finished jobs as Parquet files in a directory or a bucket. This crate names, writes, checks, lists and reads the files.
//! It knows nothing about the database; `howdah_engine::archive` connects the two.
//!
//! A day of jobs is written in three steps, so that readers never see a partial day, even after a crash: [`Writer`] writes files
//! under staging names, [`check`] reads them back, and [`publish`] renames them. The manifest is written last.

mod columns; // buffered rows of one task type
mod decode; // columns → rows
mod encode; // columns → row groups → files, on a dedicated thread
mod error; // the Error type
mod export; // jobs of any types in one file, for exports
mod find; // search for one job by its id
mod job; // a finished job, as written to the archive
mod layout; // file names
mod manifest; // the files of a day and their checksums
mod open; // one file, read in byte ranges
mod location; // a directory or a bucket, with a timeout per operation
mod publish; // renames a day's files and writes its manifest
mod row; // a job, as read from a file
mod schema; // the columns of the files
mod select; // filters over the jobs of a file
mod sparse; // a partly fetched file
mod verify; // checks files against their manifest
mod write; // writes rows to files with bounded memory

pub use error::Error;
pub use export::Export;
pub use find::{Candidate, Found, find};
pub use job::Job;
pub use layout::{Layout, is_day};
pub use location::{Location, Timeouts};
pub use manifest::{Manifest, PartFile, Sums};
pub use open::OpenFile;
pub use publish::{clear_staging, delete_day, discard, finish, manifest_of, manifests, publish, write_manifest};
pub use row::Row;
pub use select::JobFilter;
pub use verify::{check, ids_of};
pub use write::{Bounds, OnPart, Writer};

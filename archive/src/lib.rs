//! Finished jobs as Parquet files in a directory or a bucket. This crate knows the files: how they are named, written,
//! checked, listed and read. It does not know the database; `howdah_server::archive` brings both together.
//!
//! A day of jobs is written in three steps, so that no reader meets half of it, whatever is killed when:
//! [`Writer`] writes files under names that no reader looks for; [`check`] reads them back; [`publish`] gives them their
//! names and writes the manifest last.

mod columns; // rows, gathered column by column
mod decode; // columns → rows
mod encode; // columns → row groups → files, on a thread of its own
mod error; // one Error
mod export; // jobs of any types in one file
mod find; // one job by its id
mod job; // a finished job as it is archived
mod layout; // names of files
mod manifest; // what a day consists of
mod open; // one file that is read in parts
mod place; // a directory or a bucket, with a deadline for each wait
mod publish; // names for the files of a day, and its manifest
mod row; // a job as it was read
mod schema; // the columns of the files
mod select; // the jobs of a file that somebody wants
mod sparse; // a file of which only some parts were fetched
mod verify; // reading files back
mod write; // rows in, files out, within bounds

pub use error::Error;
pub use export::Export;
pub use find::{Candidate, Found, find};
pub use job::Job;
pub use layout::{Layout, is_day};
pub use manifest::{Manifest, PartFile, Sums};
pub use open::OpenFile;
pub use place::{Patience, Place};
pub use publish::{clear_staging, delete_day, discard, finish, manifest_of, manifests, publish, write_manifest};
pub use row::Row;
pub use select::Wanted;
pub use verify::{check, ids_of};
pub use write::{Bounds, OnPart, Writer};

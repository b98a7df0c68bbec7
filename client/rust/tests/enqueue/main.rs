//! Tests of producers and single calls whose responses are lost, late or errors.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod calls;
mod producer;
#[path = "../support/mod.rs"]
mod support;

use howdah_client::NewJob;

pub(crate) fn named(name: &str) -> NewJob {
    NewJob::new(name)
}

pub(crate) fn types(jobs: &[howdah_client::proto::NewJob]) -> Vec<&str> {
    jobs.iter().map(|job| job.task_type.as_str()).collect()
}

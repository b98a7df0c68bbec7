//! Tests the operator page in a browser without scripts. Tests that need a real browser are in tests/system/browser.

mod actions; // confirmation and call
mod bulks; // changes of many jobs
pub mod client; // the browser
mod failures; // groups of failures
mod hostile; // hostile requests
mod jobs; // lists of jobs, and new jobs
mod limits; // limits and limit keys
mod live; // live figures
mod overview; // the last hour, missing workers, error groups
mod reading; // a read-only page
mod records; // audit, tokens, brokers, storage
mod rights; // hidden data and actions
mod schedules; // schedules and their actions
mod scripts; // user input is escaped
mod search; // search for jobs
mod sessions; // login and cookies
mod stores; // several databases
mod type_settings; // settings of a task type
mod views; // views
mod watching; // workers, events, explanations

use howdah_proto::v1::{LeasedJob, ProgressReport};

fn progress(job: &LeasedJob, fraction: f64, text: &str) -> ProgressReport {
    let (fraction, text) = (Some(fraction), Some(text.into()));
    ProgressReport { id: job.id, token: job.token, fraction, text, ..Default::default() }
}

//! The page for operators, as a browser without scripts gets it. What needs a real browser is in tests/browser.

mod actions; // a question, then a call
mod bulks; // changes of many jobs
pub mod client; // the browser
mod failures; // the same error many times
mod hostile; // what does not belong here
mod limits; // limit keys that wait
mod live; // figures that change
mod reading; // a page that changes nothing
mod records; // audit, tokens, brokers, storage
mod rights; // what one may not see is not there
mod schedules; // plans, and what is done with them
mod scripts; // what others have written
mod search; // jobs by what they carry
mod sessions; // a token becomes a cookie
mod stores; // several databases
mod views; // what is shown
mod watching; // who works, what happened, why not

use howdah_proto::v1::{LeasedJob, ProgressReport};

/// A progress report.
fn progress(job: &LeasedJob, fraction: f64, text: &str) -> ProgressReport {
    let (fraction, text) = (Some(fraction), Some(text.into()));
    ProgressReport { id: job.id, token: job.token, fraction, text, ..Default::default() }
}

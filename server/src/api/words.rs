//! Jobs from names and values of options, as HTTP and the page get them.

use bytes::Bytes;
use howdah_core::error::Error;
use howdah_proto::{
    json::{WordError, from_words},
    v1,
};

/// Builds the protocol message of a job from names and values of options.
pub(crate) fn job_of_words(given: &[(String, String)], task_type: String, payload: Bytes) -> Result<v1::NewJob, Error> {
    let job = from_words("NewJob", given).map_err(|error| match error {
        WordError::Unknown { name, known } => {
            let problem = format!("is not an option of a job; use {}, headers.NAME or request_key", known.join(", "));
            Error::invalid(name, problem)
        }
        WordError::Wrong { name, problem } => Error::invalid(name, problem),
        WordError::Contradiction(problem) => Error::invalid("options", format!("contradict each other: {problem}")),
    })?;
    Ok(v1::NewJob { task_type, payload, ..job })
}

//! Checks of an enqueue request, from a call or from a pipeline.

use std::time::SystemTime;

use howdah_core::{
    error::Error,
    job::{ClusterSettings, NewJob, RequestKey},
};
use howdah_proto::v1;

use super::{body_hash::body_hash, local_names::LocalNames, new_job::new_job, numbers, text};

/// Checks the jobs. Returns them with the request key and the hash of the jobs.
pub(crate) fn enqueue(
    mut jobs: Vec<v1::NewJob>,
    request_key: String,
    limits: &ClusterSettings,
) -> Result<(Vec<NewJob>, Option<RequestKey>), Error> {
    numbers::entries("jobs", jobs.len(), 1..=limits.batch)?;
    let request = text::optional("request_key", request_key, limits.key_bytes)?
        .map(|key| RequestKey { key, body_hash: body_hash(&mut jobs) });
    let now = SystemTime::now();
    let mut names = LocalNames::default();
    let mut jobs = jobs
        .into_iter()
        .enumerate()
        .map(|(i, mut job)| {
            names
                .take(i, &mut job, limits)
                .and_then(|()| new_job(job, limits, now))
                .map_err(|error| error.within(&format!("jobs[{i}]")))
        })
        .collect::<Result<Vec<_>, _>>()?;
    names.resolve(&mut jobs)?;
    Ok((jobs, request))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> v1::NewJob {
        v1::NewJob { task_type: "email.send".into(), ..Default::default() }
    }

    fn field_of(jobs: Vec<v1::NewJob>, request_key: &str) -> String {
        let error = enqueue(jobs, request_key.into(), &ClusterSettings::DEFAULT).unwrap_err();
        error.field().unwrap().to_owned()
    }

    #[test]
    fn a_bad_job_is_named_with_its_index() {
        let bad = v1::NewJob { task_type: "a b".into(), ..Default::default() };
        assert_eq!(field_of(vec![job(), job(), job(), bad], ""), "jobs[3].task_type");
        let bad = v1::NewJob { headers: [("a".into(), "\0".into())].into(), ..job() };
        assert_eq!(field_of(vec![bad], ""), "jobs[0].headers");
    }

    #[test]
    fn no_jobs_and_too_many_are_refused() {
        assert_eq!(field_of(vec![], ""), "jobs");
        assert_eq!(field_of(vec![job(); 10_001], ""), "jobs");
        assert!(enqueue(vec![job(); 10_000], String::new(), &ClusterSettings::DEFAULT).is_ok());
    }

    #[test]
    fn a_request_key_is_short_plain_text() {
        assert_eq!(field_of(vec![job()], &"k".repeat(201)), "request_key");
        assert_eq!(field_of(vec![job()], "a\u{1b}"), "request_key");
        let (_, request) = enqueue(vec![job()], "k".repeat(200), &ClusterSettings::DEFAULT).unwrap();
        assert!(request.is_some());
        let (_, request) = enqueue(vec![job()], String::new(), &ClusterSettings::DEFAULT).unwrap();
        assert!(request.is_none());
    }
}

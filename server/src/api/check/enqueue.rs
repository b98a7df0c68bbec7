//! Checks of an enqueue request, from a call or from a pipeline: its jobs, and the local names by which they refer to each
//! other. Also the hash of the jobs, which shows whether a request key is reused with other jobs.

use std::{
    collections::{HashMap, HashSet},
    mem,
    time::SystemTime,
};

use howdah_core::{
    error::Error,
    job::{ClusterSettings, NewJob, RequestKey},
};
use howdah_proto::v1;
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use crate::api::check::{new_job::new_job, numbers, text};

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

/// Local names of the jobs of one request.
#[derive(Default)]
pub(super) struct LocalNames {
    // Names of jobs, each with the index of the job.
    names: Vec<(usize, String)>,
    after: Vec<(usize, Vec<String>)>,
}

impl LocalNames {
    /// Checks and keeps the local names of the job with the index `i`.
    pub(super) fn take(&mut self, i: usize, job: &mut v1::NewJob, limits: &ClusterSettings) -> Result<(), Error> {
        if !job.local_name.is_empty() {
            text::plain("local_name", &job.local_name, limits.key_bytes)?;
            self.names.push((i, std::mem::take(&mut job.local_name)));
        }
        if !job.after_local.is_empty() {
            numbers::entries("after_local", job.after_local.len(), 0..=limits.batch)?;
            self.after.push((i, job.after_local.clone()));
        }
        Ok(())
    }

    /// Replaces each local name in a dependency by the index of the job that has the name.
    pub(super) fn resolve(&self, jobs: &mut [NewJob]) -> Result<(), Error> {
        if self.after.is_empty() && self.names.is_empty() {
            return Ok(());
        }
        let mut named: HashMap<&str, usize> = HashMap::new();
        for (i, name) in &self.names {
            if let Some(first) = named.insert(name, *i) {
                let problem = format!(
                    "is {}, which is also the name of jobs[{first}]; give each job its own name",
                    text::shown(name)
                );
                return Err(Error::invalid(format!("jobs[{i}].local_name"), problem));
            }
        }
        let mut after = vec![Vec::new(); jobs.len()];
        for (i, names) in &self.after {
            let index = |(n, name): (usize, &String)| {
                named.get(name.as_str()).copied().ok_or_else(|| {
                    let problem = format!("is {}, which is not a job's local_name in this request", text::shown(name));
                    Error::invalid(format!("jobs[{i}].after_local[{n}]"), problem)
                })
            };
            let mut those = names.iter().enumerate().map(index).collect::<Result<Vec<_>, _>>()?;
            let mut seen = HashSet::new();
            those.retain(|index| seen.insert(*index));
            after[*i] = those;
        }
        if let Some(i) = in_cycle(&after) {
            let problem =
                "leads back to this job, so these jobs would wait for each other forever; remove one dependency";
            return Err(Error::invalid(format!("jobs[{i}].after_local"), problem));
        }
        for (job, those) in jobs.iter_mut().zip(after).filter(|(_, those)| !those.is_empty()) {
            let options = job.options_mut();
            options.after_ordinals = those.into_iter().map(|index| index + 1).collect();
            options.on_dependency_failure.get_or_insert_default();
        }
        Ok(())
    }
}

/// Finds a job that is in a dependency cycle or depends on one. Repeatedly removes jobs without remaining dependencies, and
/// returns a job that is left (Kahn 1962).
fn in_cycle(after: &[Vec<usize>]) -> Option<usize> {
    let mut left: Vec<usize> = after.iter().map(Vec::len).collect();
    let mut behind: Vec<Vec<usize>> = vec![Vec::new(); after.len()];
    for (i, those) in after.iter().enumerate() {
        those.iter().for_each(|&index| behind[index].push(i));
    }
    let mut free: Vec<usize> = (0..after.len()).filter(|&i| left[i] == 0).collect();
    while let Some(i) = free.pop() {
        for &next in &behind[i] {
            left[next] -= 1;
            if left[next] == 0 {
                free.push(next);
            }
        }
    }
    left.iter().position(|&n| n > 0)
}

/// SHA-256 of the jobs. It does not depend on the order of headers or fields, nor on the trace context, because a client may
/// repeat a request in another trace span.
///
/// The hash covers prost's encoding. Equal messages have equal encodings except for maps, so the headers are sorted and hashed
/// separately. The payload is hashed in place, without a copy. Never change the hash: brokers of different versions share a
/// database, and requests repeated during an upgrade would be rejected.
pub(in crate::api) fn body_hash(jobs: &mut [v1::NewJob]) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut rest = Vec::new();
    for job in jobs {
        // These fields are removed before encoding and restored below.
        let (headers, payload) = (mem::take(&mut job.headers), mem::take(&mut job.payload));
        let trace = (mem::take(&mut job.traceparent), mem::take(&mut job.tracestate));
        rest.clear();
        // Encoding into a Vec cannot fail.
        let _ = job.encode(&mut rest);
        part(&mut hash, &rest);
        part(&mut hash, &payload);
        let mut sorted: Vec<_> = headers.iter().collect();
        sorted.sort_unstable();
        hash.update((sorted.len() as u64).to_be_bytes());
        for (name, value) in sorted {
            part(&mut hash, name.as_bytes());
            part(&mut hash, value.as_bytes());
        }
        (job.headers, job.payload) = (headers, payload);
        (job.traceparent, job.tracestate) = trace;
    }
    hash.finalize().into()
}

/// Hashes one part, preceded by its length, so that two different lists of parts never give the same bytes.
fn part(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_be_bytes());
    hash.update(bytes);
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn plain() -> v1::NewJob {
        v1::NewJob { task_type: "email.send".into(), ..Default::default() }
    }

    fn field_of(jobs: Vec<v1::NewJob>, request_key: &str) -> String {
        let error = enqueue(jobs, request_key.into(), &ClusterSettings::DEFAULT).unwrap_err();
        error.field().unwrap().to_owned()
    }

    #[test]
    fn a_bad_job_is_named_with_its_index() {
        let bad = v1::NewJob { task_type: "a b".into(), ..Default::default() };
        assert_eq!(field_of(vec![plain(), plain(), plain(), bad], ""), "jobs[3].task_type");
        let bad = v1::NewJob { headers: [("a".into(), "\0".into())].into(), ..plain() };
        assert_eq!(field_of(vec![bad], ""), "jobs[0].headers");
    }

    #[test]
    fn no_jobs_and_too_many_are_refused() {
        assert_eq!(field_of(vec![], ""), "jobs");
        assert_eq!(field_of(vec![plain(); 10_001], ""), "jobs");
        assert!(enqueue(vec![plain(); 10_000], String::new(), &ClusterSettings::DEFAULT).is_ok());
    }

    #[test]
    fn a_request_key_is_short_plain_text() {
        assert_eq!(field_of(vec![plain()], &"k".repeat(201)), "request_key");
        assert_eq!(field_of(vec![plain()], "a\u{1b}"), "request_key");
        let (_, request) = enqueue(vec![plain()], "k".repeat(200), &ClusterSettings::DEFAULT).unwrap();
        assert!(request.is_some());
        let (_, request) = enqueue(vec![plain()], String::new(), &ClusterSettings::DEFAULT).unwrap();
        assert!(request.is_none());
    }

    fn job(headers: &[(&str, &str)]) -> v1::NewJob {
        let headers: HashMap<_, _> = headers.iter().map(|&(n, v)| (n.to_owned(), v.to_owned())).collect();
        v1::NewJob { task_type: "t".into(), payload: "p".into(), headers, ..Default::default() }
    }

    #[test]
    fn the_order_of_headers_does_not_matter() {
        let names: Vec<String> = (0..64).map(|i| i.to_string()).collect();
        let forward: Vec<_> = names.iter().map(|name| (name.as_str(), "v")).collect();
        let backward: Vec<_> = forward.iter().rev().copied().collect();
        // Each `HashMap` iterates in a different random order.
        assert_eq!(body_hash(&mut [job(&forward)]), body_hash(&mut [job(&backward)]));
    }

    #[test]
    fn hashing_leaves_the_jobs_unchanged() {
        let whole = || v1::NewJob { traceparent: "t".into(), tracestate: "s".into(), ..job(&[("a", "b")]) };
        let mut jobs = [whole()];
        body_hash(&mut jobs);
        assert_eq!(jobs, [whole()]);
    }

    #[test]
    fn a_repeat_within_another_trace_is_the_same_request() {
        let mut traced = [v1::NewJob { traceparent: "t".into(), tracestate: "s".into(), ..job(&[]) }];
        assert_eq!(body_hash(&mut traced), body_hash(&mut [job(&[])]));
    }

    #[test]
    fn different_bodies_have_different_hashes() {
        let plain = || job(&[]);
        let mut bodies = vec![
            vec![plain()],
            vec![plain(), plain()],
            vec![job(&[("a", "bc")])],
            vec![job(&[("ab", "c")])],
            vec![job(&[("a", ""), ("b", "")])],
            vec![v1::NewJob { payload: "q".into(), ..plain() }],
            vec![v1::NewJob { task_type: "tp".into(), payload: "".into(), ..plain() }],
            vec![v1::NewJob { key: "p".into(), payload: "".into(), ..plain() }],
            vec![v1::NewJob { priority: 1, ..plain() }],
        ];
        let mut hashes: Vec<_> = bodies.iter_mut().map(|jobs| body_hash(jobs)).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), bodies.len());
    }

    #[test]
    fn the_hash_is_the_same_in_every_release() {
        let mut jobs = [job(&[("a", "1"), ("b", "2")]), v1::NewJob { key: "k".into(), ..job(&[]) }];
        assert_eq!(
            hex::encode(body_hash(&mut jobs)),
            "237dbdaf96d61b8afa8714bf5a2df2e5ef4103108d0aa921dcd31a4cd686c413"
        );
    }
}

//! Hash of the jobs of an enqueue. It detects a request key that is reused with other jobs.

use std::mem;

use howdah_proto::v1;
use prost::Message as _;
use sha2::{Digest as _, Sha256};

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

//! Limits of calls and of what they carry.

use howdah_proto::codec;

use super::{CLUSTER, Limit, bytes, fixed, of, time};
use crate::{
    api::{
        check::{job_query, limits as limit_keys, pull, type_query},
        receive::{budget::WAITING_PER_CONNECTION, frames::SMALL},
        server::{CALL, PATIENCE},
    },
    config::Config,
    operate::{jobs::LIST_BYTES, priority, selection, wait},
    waiters,
};

pub(super) fn limits(config: &Config) -> Vec<Limit> {
    let mut rows = messages(config);
    rows.extend(calls(config));
    rows.extend(waiting());
    rows.extend(pages());
    rows
}

fn messages(config: &Config) -> Vec<Limit> {
    let limits = of(config);
    let large = bytes(SMALL);
    vec![
        fixed("gRPC message, in and out", format!("{}, also after decompression", bytes(limits.message_bytes)))
            .by(&["limits.message_bytes"]),
        fixed(
            format!("messages of {large} and more, of all clients, received or worked on at once"),
            bytes(limits.received_bytes),
        )
        .by(&["limits.received_bytes"]),
        fixed(
            "of these, how long a message waits for memory",
            format!(
                "{}, then UNAVAILABLE; at once if as much waits already, or {} of one connection",
                time(PATIENCE.room),
                bytes(WAITING_PER_CONNECTION)
            ),
        ),
        fixed(
            format!("a message of {large} and more must arrive within"),
            format!("{}, and {} for each MiB", time(PATIENCE.message), time(PATIENCE.mib)),
        ),
        fixed("entries in a message; fields inside them", format!("{}; {}", codec::ENTRIES, codec::NESTED)),
        fixed("a call, streams excepted", time(CALL)),
    ]
}

fn calls(config: &Config) -> Vec<Limit> {
    let limits = of(config);
    vec![
        fixed(
            "jobs in an enqueue; outcomes in a settle; ids in a cancel or a change of priority; extensions, progress \
             reports",
            format!("1 to {}", CLUSTER.batch),
        )
        .by_cluster(&["batch"]),
        fixed(
            "jobs that a retry, discard or cancel by type handles in a call; in a statement",
            format!("{}; {}", selection::JOBS_A_CALL, selection::BATCH),
        ),
        fixed("`error_group` in a filter", format!("{} bytes, no NUL", job_query::ERROR_GROUP)),
        fixed("`ReprioritizeJobs` of a type", format!("{} a call, then a token to continue", time(priority::LONGEST))),
        fixed("requests of a `StreamEnqueue` worked on at once", "50000, and `limits.message_bytes` bytes"),
        fixed("types of a `PullJobs`", limits.stream_types.to_string()).by(&["limits.stream_types"]),
        fixed("jobs of a `PullJobs`", CLUSTER.batch.to_string()).by_cluster(&["batch"]),
        fixed(
            "`PullJobs`: lease, wait",
            format!(
                "{} to {}, default {}; {} to {}, default none",
                time(*pull::LEASE.start()),
                time(*pull::LEASE.end()),
                time(pull::DEFAULT_LEASE),
                time(*pull::WAIT.start()),
                time(*pull::WAIT.end())
            ),
        ),
    ]
}

fn waiting() -> Vec<Limit> {
    vec![
        fixed(
            "jobs in a `WaitJobs`; how long it waits",
            format!("1 to {}; {}, default {}", CLUSTER.batch, time(job_query::LONGEST_WAIT), time(job_query::WAIT)),
        )
        .by_cluster(&["batch"]),
        fixed(
            "jobs that all `WaitJobs` callers of a broker wait for",
            format!("{}, then RESOURCE_EXHAUSTED, reason `TOO_MANY_WAIT`", waiters::MOST_WAITED),
        ),
        fixed(
            "ended jobs that these callers have not received yet",
            format!(
                "{} together; a caller that takes nothing for {} is ended",
                bytes(waiters::UNTAKEN_KIB << 10),
                time(wait::PATIENCE)
            ),
        ),
    ]
}

fn pages() -> Vec<Limit> {
    vec![
        fixed(
            "jobs on a page; task types on a page",
            format!("{}, default {}; {}", job_query::MAX_PAGE, job_query::PAGE, type_query::MAX_PAGE),
        ),
        fixed(
            "bytes of a page",
            format!("about {}; a page may be shorter than asked for and not be the last", bytes(LIST_BYTES)),
        ),
        fixed("limit keys on a page", format!("{}, default {}", limit_keys::MAX_PAGE, limit_keys::DEFAULT_PAGE)),
        fixed(
            "error groups in an answer; retrying jobs considered for it",
            format!("{}, default {}; 20000", job_query::MAX_PAGE, job_query::PAGE),
        ),
    ]
}

//! Limits of calls and of what they carry.

use howdah_proto::codec;

use super::{CLUSTER, Limit, bytes, fixed, of, time};
use crate::{
    api::{
        answer,
        check::{audit, bulk as bulk_query, job_query, limits as limit_keys, pull, search_query, type_query},
        receive::{
            budget::WAITING_PER_CONNECTION,
            frames::{FREE, SMALL},
            pace, weight,
        },
        server::{CALL, PATIENCE},
    },
    config::Config,
    maintain::retention,
    memory::answers::ROOM_WITHIN,
    operate::{bulk, jobs::LIST_BYTES, priority, search, selection, wait},
    session::pull::PULL_BYTES,
    waiters,
};

pub(super) fn limits(config: &Config) -> Vec<Limit> {
    let mut rows = messages(config);
    rows.extend(calls(config));
    rows.extend(waiting());
    rows.extend(pages());
    rows.extend(bulks());
    rows
}

fn messages(config: &Config) -> Vec<Limit> {
    let limits = of(config);
    let large = bytes(SMALL);
    vec![
        fixed("gRPC message, in and out", format!("{}, also after decompression", bytes(limits.message_bytes)))
            .by(&["limits.message_bytes"]),
        fixed(
            format!("memory for messages of {large} and more, of all clients, received or worked on at once"),
            format!(
                "{}; at most a quarter, or one message, for a connection or a principal",
                bytes(limits.received_bytes)
            ),
        )
        .by(&["limits.received_bytes"]),
        fixed(
            format!("the same for smaller messages that take more than {} in memory", bytes(FREE)),
            format!(
                "{}; at most a quarter, or one message, for a connection or a principal",
                bytes(limits.received_bytes)
            ),
        )
        .by(&["limits.received_bytes"]),
        fixed(
            "what a message takes in memory",
            format!(
                "its bytes, {} for each job as received and checked, {} for each string or header in a job, {} for each \
                 outcome",
                bytes(weight::JOB),
                bytes(weight::FIELD),
                bytes(weight::OUTCOME)
            ),
        ),
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
            format!(
                "{}, and {} for each MiB, without the time that it waits for memory; while others wait for memory, {} a \
                 second",
                time(PATIENCE.message),
                time(PATIENCE.mib),
                bytes(pace::LEAST)
            ),
        ),
        fixed("a request of one message must end after the message within", time(PATIENCE.end)),
        fixed(
            "memory for answers that are not read yet, and for requests of pipelines that are not answered yet",
            format!(
                "{}; at most a quarter, or one answer, for a connection or a principal",
                bytes(limits.answer_bytes)
            ),
        )
        .by(&["limits.answer_bytes"]),
        fixed("of these, how long a call waits for memory", format!("{}, then UNAVAILABLE", time(ROOM_WITHIN))),
        fixed(
            "an answer must be read within",
            format!(
                "{}, and after that at {} a second; a stream of answers must not be left unread for {}; then it ends \
                 with DEADLINE_EXCEEDED",
                time(answer::TAKEN_WITHIN),
                bytes(answer::RATE),
                time(answer::TAKEN_WITHIN)
            ),
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
        fixed(
            "`SearchJobs` by header or payload: a call; of it, a statement",
            format!(
                "{}, then a token to continue; {}, {} jobs, {} of payloads",
                time(search::LOOKS_FOR),
                time(search::STEP),
                search::STEP_JOBS,
                bytes(search::STEP_BYTES as usize)
            ),
        ),
        fixed("such calls that a broker works on at once; the others wait", search::AT_ONCE.to_string()),
        fixed(
            "text and path of a `SearchJobs`; jobs of a key or tag that a call looks at",
            format!("{} and {} bytes; {}", search_query::TEXT, search_query::PATH, search::INDEX_JOBS),
        ),
        fixed(
            "`GetJob` of a job that is in the archive: files that it looks at; how long; such calls that a broker works on at once",
            "2000; 10 s; 4".to_owned(),
        ),
        fixed(
            "the same when the archive does not answer: how long its first answer is waited for",
            "4 s, then UNAVAILABLE; clients do not repeat it by themselves",
        ),
        fixed("`ReprioritizeJobs` of a type", format!("{} a call, then a token to continue", time(priority::LONGEST))),
        fixed("requests of a `StreamEnqueue` worked on at once", "50000, and `limits.message_bytes` bytes"),
        fixed("types of a `PullJobs`", limits.stream_types.to_string()).by(&["limits.stream_types"]),
        fixed("jobs of a `PullJobs`", format!("{}; about {} of payloads", CLUSTER.batch, bytes(PULL_BYTES)))
            .by_cluster(&["batch"]),
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
            format!(
                "{}, those of one connection or principal for a quarter of them; then RESOURCE_EXHAUSTED, reason \
                 `TOO_MANY_WAIT`",
                waiters::MOST_WAITED
            ),
        ),
        fixed(
            "ended jobs that these callers have not received yet",
            format!(
                "{} together; a caller that takes nothing for {} is ended",
                bytes(waiters::UNTAKEN_BYTES),
                time(wait::PATIENCE)
            ),
        ),
    ]
}

fn bulks() -> Vec<Limit> {
    vec![
        fixed("bulk operations that are running or paused", format!("{}, then RESOURCE_EXHAUSTED", bulk::MOST_OPEN)),
        fixed(
            "bulk operations that have ended",
            format!("kept for as long as history, and the last {}", retention::BULKS),
        )
        .by(&["history_days"]),
        fixed("how long a bulk cancel or discard can be undone", "as long as history is kept, of each of its jobs")
            .by(&["history_days"]),
        fixed("bulk operations on a page", format!("{}, default {}", bulk_query::MAX_PAGE, bulk_query::PAGE)),
        fixed(
            "jobs that a preview of a bulk operation counts; that it shows",
            format!("{}; {}", bulk::COUNTED, bulk::EXAMPLES),
        ),
        fixed(
            "jobs in a transaction of a bulk operation; jobs a second that one may ask for",
            format!("{}; {}", bulk::BATCH, bulk_query::JOBS_PER_S),
        ),
        fixed(
            "how long a broker works on bulk operations",
            format!("one part in {} of the time, with one connection", bulk::SHARE),
        ),
        fixed("how often a bulk operation looks for jobs that moved or were locked", format!("{} times", bulk::ROUNDS)),
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
            "entries of the audit on a page; reason of a change",
            format!("{}, default {}; {} bytes", audit::MAX_PAGE, audit::PAGE, audit::REASON_BYTES),
        ),
        fixed(
            "error groups in an answer; retrying jobs considered for it",
            format!("{}, default {}; 1000", job_query::MAX_PAGE, job_query::PAGE),
        ),
    ]
}

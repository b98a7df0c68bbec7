//! Limits of calls and their messages.

use howdah_core::config::Config;
use howdah_engine::{
    maintain::retention,
    memory::answers::ROOM_WITHIN,
    operate::{bulk, jobs::LIST_BYTES, search, selection, wait},
    session::pull::PULL_BYTES,
    waiters,
};
use howdah_proto::codec;

use super::{CLUSTER, Limit, bytes, fixed, limits_of, time};
use crate::api::{
    answer,
    check::{JOBS_PER_S, job_filter::ERROR_GROUP},
    receive::{
        budget::WAITING_PER_CONNECTION,
        frames::{FREE, SMALL},
        pace, weight,
    },
    server::{CALL, RECEIVE_TIMEOUTS},
    verbs::{
        REASON_BYTES,
        access::audit,
        bulks::list as bulk_list,
        jobs::{list, rerun, search as search_jobs, wait as wait_jobs},
        types::{limit_keys, list as type_list},
        workers::pull,
    },
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
    let limits = limits_of(config);
    let large = bytes(SMALL);
    vec![
        fixed("gRPC message, in and out", format!("{}, also after decompression", bytes(limits.message_bytes)))
            .by(&["limits.message_bytes"]),
        fixed(
            format!("memory for messages of {large} or more from all clients, while received and processed"),
            format!(
                "{}; at most a quarter, or one message, for a connection or a principal",
                bytes(limits.received_bytes)
            ),
        )
        .by(&["limits.received_bytes"]),
        fixed(
            format!("memory for smaller messages that use more than {} of memory", bytes(FREE)),
            format!(
                "{}; at most a quarter, or one message, for a connection or a principal",
                bytes(limits.received_bytes)
            ),
        )
        .by(&["limits.received_bytes"]),
        fixed(
            "memory that a message uses",
            format!(
                "its bytes, {} for each job as received and checked, {} for each string or header in a job, {} for each \
                 outcome",
                bytes(weight::JOB),
                bytes(weight::FIELD),
                bytes(weight::OUTCOME)
            ),
        ),
        fixed(
            "time that a message waits for memory (`limits.received_bytes`)",
            format!(
                "{}, then UNAVAILABLE; refused at once if as many bytes wait already, or {} of one connection",
                time(RECEIVE_TIMEOUTS.room),
                bytes(WAITING_PER_CONNECTION)
            ),
        ),
        fixed(
            format!("a message of {large} or more must arrive within"),
            format!(
                "{}, and {} for each MiB, without the time that it waits for memory; at least {} a second while other \
                 messages wait for memory",
                time(RECEIVE_TIMEOUTS.message),
                time(RECEIVE_TIMEOUTS.mib),
                bytes(pace::LEAST)
            ),
        ),
        fixed("a request with one message must end after the message within", time(RECEIVE_TIMEOUTS.end)),
        fixed(
            "memory for unread answers, and for unanswered requests of pipelines",
            format!(
                "{}; at most a quarter, or one answer, for a connection or a principal",
                bytes(limits.answer_bytes)
            ),
        )
        .by(&["limits.answer_bytes"]),
        fixed("time that a call waits for memory for its answer", format!("{}, then UNAVAILABLE", time(ROOM_WITHIN))),
        fixed(
            "memory for jobs that wait to be sent to workers",
            format!(
                "{}; about a quarter for a session or a principal; then no more jobs are claimed",
                bytes(limits.answer_bytes)
            ),
        )
        .by(&["limits.answer_bytes"]),
        fixed(
            "an answer must be read within",
            format!(
                "{}, and after that at {} a second; the answers of a stream must not stay unread for {}; otherwise the \
                 call ends with DEADLINE_EXCEEDED",
                time(answer::TAKEN_WITHIN),
                bytes(answer::RATE),
                time(answer::TAKEN_WITHIN)
            ),
        ),
        fixed("entries in a message; fields inside them", format!("{}; {}", codec::ENTRIES, codec::NESTED)),
        fixed("duration of a call, except streams", time(CALL)),
    ]
}

fn calls(config: &Config) -> Vec<Limit> {
    let limits = limits_of(config);
    vec![
        fixed(
            "jobs in an enqueue; outcomes in a settle; ids in a cancel or a change of priority; extensions, progress \
             reports",
            format!("1 to {}", CLUSTER.batch),
        )
        .by_cluster(&["batch"]),
        fixed(
            "jobs that a retry, discard, cancel or change of priority by type handles in a call; in a statement",
            format!("{}; {}", selection::JOBS_A_CALL, selection::BATCH),
        ),
        fixed("`error_group` in a filter", format!("{ERROR_GROUP} bytes, no NUL")),
        fixed(
            "`SearchJobs` by header or payload: one call; one statement of a call",
            format!(
                "{}, then a token to continue; {}, {} jobs, {} of payloads",
                time(search::LOOKS_FOR),
                time(search::STEP),
                search::STEP_JOBS,
                bytes(search::STEP_BYTES as usize)
            ),
        ),
        fixed("concurrent `SearchJobs` by header or payload per broker; other calls wait", search::AT_ONCE.to_string()),
        fixed(
            "text and path of a `SearchJobs`; jobs of a key or tag that a call looks at",
            format!("{} and {} bytes; {}", search_jobs::TEXT, search_jobs::PATH, search::INDEX_JOBS),
        ),
        fixed(
            "`GetJob` of an archived job: files searched; time; concurrent calls per broker",
            "2000; 10 s; 4".to_owned(),
        ),
        fixed(
            "`GetJob` while the archive does not answer: time until its first response",
            "4 s, then UNAVAILABLE; clients do not retry it automatically",
        ),
        fixed("archived jobs that a `RerunJobs` reads; other jobs are answered REFUSED", rerun::ARCHIVED.to_string()),
        fixed(
            "concurrent requests of a `StreamEnqueue`",
            "50000 requests or `limits.message_bytes` bytes, then the broker reads no more",
        ),
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
            format!("1 to {}; {}, default {}", CLUSTER.batch, time(wait_jobs::LONGEST_WAIT), time(wait_jobs::WAIT)),
        )
        .by_cluster(&["batch"]),
        fixed(
            "jobs that all `WaitJobs` callers of a broker wait for",
            format!(
                "{}, a quarter of them for one connection or principal; then RESOURCE_EXHAUSTED, reason \
                 `TOO_MANY_WAIT`",
                waiters::MOST_WAITED
            ),
        ),
        fixed(
            "ended jobs that `WaitJobs` callers have not received yet",
            format!(
                "{} in total; the call of a caller that reads nothing for {} ends",
                bytes(waiters::UNTAKEN_BYTES),
                time(wait::READ_TIMEOUT)
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
        fixed("time in which a bulk cancel or discard can be undone", "as long as the history of its jobs is kept")
            .by(&["history_days"]),
        fixed("bulk operations on a page", format!("{}, default {}", bulk_list::MAX_PAGE, bulk_list::PAGE)),
        fixed(
            "jobs that a preview of a bulk operation counts; jobs that it shows",
            format!("{}; {}", bulk::COUNTED, bulk::EXAMPLES),
        ),
        fixed(
            "jobs in a transaction of a bulk operation; maximum rate in jobs per second",
            format!("{}; {}", bulk::BATCH, JOBS_PER_S),
        ),
        fixed(
            "share of time that a broker works on bulk operations",
            format!("one part in {} of the time, with one connection", bulk::SHARE),
        ),
        fixed("how often a bulk operation looks for jobs that moved or were locked", format!("{} times", bulk::ROUNDS)),
    ]
}

fn pages() -> Vec<Limit> {
    vec![
        fixed(
            "jobs on a page; task types on a page",
            format!("{}, default {}; {}", list::MAX_PAGE, list::PAGE, type_list::MAX_PAGE),
        ),
        fixed(
            "bytes of a page",
            format!("about {}; a page that is shorter than requested may not be the last", bytes(LIST_BYTES)),
        ),
        fixed("limit keys on a page", format!("{}, default {}", limit_keys::MAX_PAGE, limit_keys::PAGE)),
        fixed(
            "entries of the audit on a page; reason of a change",
            format!("{}, default {}; {REASON_BYTES} bytes", audit::MAX_PAGE, audit::PAGE),
        ),
        fixed(
            "error groups in an answer; retrying jobs considered for it",
            format!("{}, default {}; 1000", list::MAX_PAGE, list::PAGE),
        ),
    ]
}

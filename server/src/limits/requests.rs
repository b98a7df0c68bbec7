//! Limits of calls and their messages, and of the streams of workers.

use howdah_core::{config::Config, job::Limits};
use howdah_engine::{
    dispatch::UNSENT_AFTER,
    maintain::retention,
    memory::answers::ROOM_WITHIN,
    operate::{bulk, jobs::LIST_BYTES, search, selection, wait},
    session::{JOB_OVERHEAD, ping_interval, pull::PULL_BYTES, reader::MOST_UNANSWERED},
    waiters,
};
use howdah_proto::codec;

use super::{CLUSTER, Limit, bytes, rows, time};
use crate::api::{
    answer,
    check::{job_filter::ERROR_GROUP, outcomes::LATER},
    receive::{
        budget::WAITING_PER_CONNECTION,
        frames::{self, FREE, SMALL},
        pace,
    },
    server::{CALL, RECEIVE_TIMEOUTS},
    verbs::{
        REASON_BYTES,
        access::audit,
        bulks::{self, spec::JOBS_PER_S},
        jobs::{list, rerun, search as search_jobs, wait as wait_jobs},
        types::{limit_keys, list as type_list},
        workers::{messages as subscribe, pull},
    },
};

pub(super) fn requests(config: &Config) -> Vec<Limit> {
    let limits = &config.limits;
    let (large, free) = (bytes(SMALL), bytes(FREE));
    let mut rows = rows! {
        "gRPC message, in and out": "{}, also after decompression",
            bytes(limits.message_bytes) => Broker["limits.message_bytes"];
        "memory for messages of {large} or more from all clients, while received and processed":
            "{}; at most a quarter, or one message, for a connection or a principal",
            bytes(limits.received_bytes) => Broker["limits.received_bytes"];
        "memory for smaller messages that use more than {free} of memory":
            "{}; at most a quarter, or one message, for a connection or a principal",
            bytes(limits.received_bytes) => Broker["limits.received_bytes"];
        "memory that a message uses": "its bytes, {} for each job as received and checked, {} for each string or \
            header in a job, {} for each outcome", bytes(frames::JOB), bytes(frames::FIELD), bytes(frames::OUTCOME);
        "time that a message waits for memory (`limits.received_bytes`)":
            "{}, then UNAVAILABLE; refused at once if as many bytes wait already, or {} of one connection",
            time(RECEIVE_TIMEOUTS.room), bytes(WAITING_PER_CONNECTION);
        "a message of {large} or more must arrive within": "{}, and {} for each MiB, without the time that it waits \
            for memory; at least {} a second while other messages wait for memory",
            time(RECEIVE_TIMEOUTS.message), time(RECEIVE_TIMEOUTS.mib), bytes(pace::LEAST);
        "a request with one message must end after the message within": "{}", time(RECEIVE_TIMEOUTS.end);
        "memory for unread answers, and for unanswered requests of pipelines":
            "{}; at most a quarter, or one answer, for a connection or a principal",
            bytes(limits.answer_bytes) => Broker["limits.answer_bytes"];
        "time that a call waits for memory for its answer": "{}, then UNAVAILABLE", time(ROOM_WITHIN);
        "memory for jobs that wait to be sent to workers":
            "{}; about a quarter for a session or a principal; then no more jobs are claimed",
            bytes(limits.answer_bytes) => Broker["limits.answer_bytes"];
        "an answer must be read within": "{0}, and after that at {1} a second; the answers of a stream must not stay \
            unread for {0}; otherwise the call ends with DEADLINE_EXCEEDED",
            time(answer::TAKEN_WITHIN), bytes(answer::RATE);
        "entries in a message; fields inside them": "{}; {}", codec::ENTRIES, codec::NESTED;
        "duration of a call, except streams": "{}", time(CALL);
    };
    rows.extend(calls(config));
    rows.extend(lists());
    rows
}

fn calls(config: &Config) -> Vec<Limit> {
    rows! {
        "jobs in an enqueue; outcomes in a settle; ids in a cancel or a change of priority; extensions, progress \
            reports": "1 to {}", CLUSTER.batch => Cluster["batch"];
        "jobs that a retry, discard, cancel or change of priority by type handles in a call; in a statement":
            "{}; {}", selection::JOBS_A_CALL, selection::BATCH;
        "`error_group` in a filter": "{ERROR_GROUP} bytes, no NUL";
        "`SearchJobs` by header or payload: one call; one statement of a call":
            "{}, then a token to continue; {}, {} jobs, {} of payloads",
            time(search::LOOKS_FOR), time(search::STEP), search::STEP_JOBS, bytes(search::STEP_BYTES as usize);
        "concurrent `SearchJobs` by header or payload per broker; other calls wait": "{}", search::AT_ONCE;
        "text and path of a `SearchJobs`; jobs of a key or tag that a call looks at": "{} and {} bytes; {}",
            search_jobs::TEXT, search_jobs::PATH, search::INDEX_JOBS;
        "`GetJob` of an archived job: files searched; time; concurrent calls per broker": "2000; 10 s; 4";
        "`GetJob` while the archive does not answer: time until its first response":
            "4 s, then UNAVAILABLE; clients do not retry it automatically";
        "archived jobs that a `RerunJobs` reads; other jobs are answered REFUSED": "{}", rerun::ARCHIVED;
        "concurrent requests of a `StreamEnqueue`":
            "50000 requests or `limits.message_bytes` bytes, then the broker reads no more";
        "types of a `PullJobs`": "{}", config.limits.stream_types => Broker["limits.stream_types"];
        "jobs of a `PullJobs`": "{}; about {} of payloads", CLUSTER.batch, bytes(PULL_BYTES) => Cluster["batch"];
        "`PullJobs`: lease, wait": "{} to {}, default {}; {} to {}, default none",
            time(*pull::LEASE.start()), time(*pull::LEASE.end()), time(pull::DEFAULT_LEASE),
            time(*pull::WAIT.start()), time(*pull::WAIT.end());
        "jobs in a `WaitJobs`; how long it waits": "1 to {}; {}, default {}",
            CLUSTER.batch, time(wait_jobs::LONGEST_WAIT), time(wait_jobs::WAIT) => Cluster["batch"];
        "jobs that all `WaitJobs` callers of a broker wait for": "{}, a quarter of them for one connection or \
            principal; then RESOURCE_EXHAUSTED, reason `TOO_MANY_WAIT`", waiters::MOST_WAITED;
        "ended jobs that `WaitJobs` callers have not received yet":
            "{} in total; the call of a caller that reads nothing for {} ends",
            bytes(waiters::UNTAKEN_BYTES), time(wait::READ_TIMEOUT);
    }
}

fn lists() -> Vec<Limit> {
    rows! {
        "jobs on a page; task types on a page": "{}, default {}; {}", list::MAX_PAGE, list::PAGE, type_list::MAX_PAGE;
        "bytes of a page": "about {}; a page that is shorter than requested may not be the last", bytes(LIST_BYTES);
        "limit keys on a page": "{}, default {}", limit_keys::MAX_PAGE, limit_keys::PAGE;
        "entries of the audit on a page; reason of a change": "{}, default {}; {REASON_BYTES} bytes",
            audit::MAX_PAGE, audit::PAGE;
        "error groups in an answer; retrying jobs considered for it": "{}, default {}; 1000",
            list::MAX_PAGE, list::PAGE;
        "bulk operations that are running or paused": "{}, a quarter of them by one principal; then RESOURCE_EXHAUSTED",
            bulk::MOST_OPEN;
        "bulk operations that have ended": "kept for as long as history, and the last {}",
            retention::BULKS => Broker["history_days"];
        "time in which a bulk cancel or discard can be undone": "as long as the history of its jobs is kept"
            => Broker["history_days"];
        "bulk operations on a page": "{}, default {}", bulks::MAX_PAGE, bulks::PAGE;
        "jobs that a preview of a bulk operation counts; jobs that it shows": "{}; {}", bulk::COUNTED, bulk::EXAMPLES;
        "jobs in a transaction of a bulk operation; maximum rate in jobs per second": "{}; {}",
            bulk::BATCH, JOBS_PER_S;
        "maximum share of time that a broker works on bulk operations":
            "one part in {} of the time, with one connection", bulk::SHARE;
        "how often a bulk operation looks for jobs that moved or were locked": "{} times", bulk::ROUNDS;
    }
}

pub(super) fn workers(config: &Config) -> Vec<Limit> {
    let limits = &config.limits;
    rows! {
        "first message on a stream": "{}", time(limits.first_message) => Broker["limits.first_message"];
        "task types on a stream": "{}", limits.stream_types => Broker["limits.stream_types"];
        "window of a type, in jobs": "0 to {}", limits.window_jobs => Broker["limits.window_jobs"];
        "window of a type, in bytes": "{}; default {}",
            bytes(limits.window_bytes), bytes(Limits::DEFAULT_WINDOW_BYTES) => Broker["limits.window_bytes"];
        "leases held at a resume": "{}", limits.window_jobs => Broker["limits.window_jobs"];
        "labels": "{}, name and value {} each", subscribe::LABELS, bytes(CLUSTER.key_bytes) => Cluster["key_bytes"];
        "largest message of a worker, given in `subscribe`":
            "{} to {}; default {}; each job counts {} plus its payload and headers",
            bytes(*subscribe::MESSAGE_RANGE.start()), bytes(*subscribe::MESSAGE_RANGE.end()),
            bytes(subscribe::MESSAGE_BYTES), bytes(JOB_OVERHEAD);
        "snooze, `retry_after`": "{} to {}", time(*LATER.start()), time(*LATER.end());
        "an extension": "1 ms to {}", time(CLUSTER.max_timeout) => Cluster["max_timeout"];
        "unanswered outcomes and extensions": "{MOST_UNANSWERED}; then the stream is not read";
        "a job claimed but not sent": "{}, then it is released", time(UNSENT_AFTER);
        "liveness: silence after which a worker is lost": "{}; a worker may ask for {} to {}",
            time(config.liveness), time(*subscribe::LIVENESS.start()), time(*subscribe::LIVENESS.end())
            => Broker["liveness"];
        "Ping to a silent worker": "after {}", time(ping_interval(config.liveness));
        "grace time after a broken stream": "{}", time(config.session_grace) => Broker["session_grace"];
    }
}

//! Limits of a job and of its type, and of schedules.

use std::time::Duration;

use howdah_core::{
    config::Config,
    job::{
        Limits, PRIORITY_STEP, TaskTypeName, TypeSettings,
        options::OPTIONS,
        schedule::{MAX_SCHEDULES, MOST_OF_PRINCIPAL, Missed, fire, plan},
    },
};
use howdah_engine::{
    maintain::{retention::UNUSED_DAYS, schedules as firing},
    operate::jobs::LIST_BYTES,
    store::{SENT_RESULT, SENT_RESULTS},
};

use super::{CLUSTER, Limit, bytes, rows, time};
use crate::api::verbs::schedules::{MAX_PAGE, NEXT_TIMES, PAGE, definition as check};

/// Returns the accepted values of a job option, as text.
fn option(name: &str) -> String {
    let found = OPTIONS.iter().find(|option| option.name == name);
    found.map(|option| option.kind.to_string()).unwrap_or_default()
}

pub(super) fn jobs(config: &Config) -> Vec<Limit> {
    let retry = &config.retry;
    rows! {
        "task type": "1 to {} of `A-Z a-z 0-9 . _ : / -`", bytes(TaskTypeName::MAX_BYTES);
        "task types": "{}, a quarter of them created by one principal, then RESOURCE_EXHAUSTED; a type without jobs, \
            settings and schedules is deleted {UNUSED_DAYS} days after its last job left the history",
            CLUSTER.task_types => Cluster["task_types"];
        "payload; result": "{} each; a type may allow less for its payloads (`max_payload_bytes`)",
            bytes(CLUSTER.payload_bytes) => Cluster["payload_bytes"];
        "headers of a job": "{}, names and values together {}, no NUL",
            CLUSTER.headers, bytes(CLUSTER.header_bytes) => Cluster["headers", "header_bytes"];
        "job key, request key, `limit_key`, `fair_key`, `local_name`": "{}, no control characters",
            bytes(CLUSTER.key_bytes) => Cluster["key_bytes"];
        "tags of a job": "{}, no control characters; duplicates count once", option("tags");
        "a request key is remembered": "24 h";
        "trace context": "`traceparent` {}, `tracestate` {}", option("traceparent"), option("tracestate");
        "priority": "{} to {}; default 0; lower goes first", Limits::PRIORITY.start(), Limits::PRIORITY.end();
        "priority step of a type (ageing)": "1 ms to 2^{} µs, about 407 days, the default",
            PRIORITY_STEP.trailing_zeros();
        "delay, `run_at` and `expire_at` ahead": "{}", time(CLUSTER.max_delay) => Cluster["max_delay"];
        "backlog of a type (`max_backlog`)": "1 to {} jobs; default no limit; then RESOURCE_EXHAUSTED",
            TypeSettings::MAX_BACKLOG;
        "history kept": "{} days, in whole days; by type 1 to {}",
            config.history_days, TypeSettings::MAX_HISTORY_DAYS => Default["history_days"];
        "dead jobs kept": "no limit, in whole days; by type or cluster 1 to {}",
            TypeSettings::MAX_HISTORY_DAYS => Cluster["dead_days"];
        "timeout of an attempt": "1 ms to {}; default none, or the type's",
            time(CLUSTER.max_timeout) => Cluster["max_timeout"];
        "attempts": "1 to {}; default {}", Limits::MAX_ATTEMPTS, config.max_attempts => Default["max_attempts"];
        "retry delay: first, longest": "{}; default {}, {}",
            option("retry_policy.max_delay"), time(retry.initial), time(retry.max)
            => Default["retry.initial", "retry.max"];
        "retry multiplier; jitter": "{}; {}; default {}; {}",
            option("retry_policy.multiplier"), option("retry_policy.jitter"), retry.multiplier, retry.jitter
            => Default["retry.multiplier", "retry.jitter"];
        "delays of a retry policy of kind `list`": "{}", option("retry_policy.delays");
        "error text": "{}; longer texts are cut and end in `… [truncated]`",
            bytes(config.limits.error_bytes) => Broker["limits.error_bytes"];
        "failures kept with a job": "the last 100";
        "name of an error group": "300 characters; the first 1000 of the error's line are considered";
        "progress text; checkpoint": "{}, no control characters; {}",
            bytes(Limits::PROGRESS_TEXT_BYTES), bytes(Limits::CHECKPOINT_BYTES);
        "fallbacks of a job": "1; a fallback job has no fallback";
        "next stages": "{}", option("next_stages");
        "dependencies of a job": "{0} ids, {0} local names", CLUSTER.batch => Cluster["batch"];
        "results of dependencies that come with a job": "{} each, {} in all; `GetResults` returns all",
            bytes(SENT_RESULT), bytes(SENT_RESULTS);
        "hold of a key; limit of a debounce": "{}; {}", option("key_hold"), option("key_debounce_limit");
    }
}

pub(super) fn schedules(_: &Config) -> Vec<Limit> {
    rows! {
        "schedules": "{MAX_SCHEDULES}, {MOST_OF_PRINCIPAL} of them created by one principal, then RESOURCE_EXHAUSTED";
        "name": "1 to {} of `A-Z a-z 0-9 . _ : / -`", bytes(check::NAME_BYTES);
        "template": "limits of a job; {} headers, because the broker adds two",
            CLUSTER.headers.saturating_sub(2) => Cluster["headers"];
        "period": "{} to {}", time(check::SECOND), time(check::LONGEST);
        "cron expression; time zone": "{}; {}", bytes(plan::EXPRESSION), bytes(plan::ZONE);
        "jitter": "0 s to {}, at most the period", time(check::DAY);
        "missed times for which a job is enqueued after an outage": "1, or with `all` 1 to {}, default {}",
            Missed::MAX_LIMIT, Missed::DEFAULT_LIMIT;
        "a planned time counts as missed": "when it is {} late",
            time(Duration::from_micros(fire::MISSED_AFTER.unsigned_abs()));
        "planned times shown": "{NEXT_TIMES}; in a list 1";
        "schedules on a page": "{}; default {}; about {}, without payloads",
            MAX_PAGE, PAGE, bytes(LIST_BYTES);
        "jobs in a transaction that fires schedules": "{}, about {}, of {} schedules",
            firing::JOBS, bytes(firing::BYTES), firing::SCHEDULES;
    }
}

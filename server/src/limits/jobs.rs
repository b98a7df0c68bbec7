//! Limits of a job and of its type.

use howdah_core::{
    config::Config,
    job::{Limits, PRIORITY_STEP, TaskTypeName, TypeSettings},
};
use howdah_engine::{
    maintain::retention::UNUSED_DAYS,
    store::{SENT_RESULT, SENT_RESULTS},
};

use super::{CLUSTER, Limit, bytes, fixed, limits_of, option, time};

pub(super) fn limits(config: &Config) -> Vec<Limit> {
    let mut rows = content(config);
    rows.extend(attempts(config));
    rows.extend(coordination());
    rows
}

fn content(config: &Config) -> Vec<Limit> {
    let (low, high) = (Limits::PRIORITY.start(), Limits::PRIORITY.end());
    let key = format!("{}, no control characters", bytes(CLUSTER.key_bytes));
    vec![
        fixed("task type", format!("1 to {} of `A-Z a-z 0-9 . _ : / -`", bytes(TaskTypeName::MAX_BYTES))),
        fixed(
            "task types",
            format!(
                "{}, a quarter of them created by one principal, then RESOURCE_EXHAUSTED; a type without jobs, settings and schedules is deleted {} days after its \
                 last job left the history",
                CLUSTER.task_types,
                UNUSED_DAYS
            ),
        )
        .by_cluster(&["task_types"]),
        fixed(
            "payload; result",
            format!(
                "{} each; a type may allow less for its payloads (`max_payload_bytes`)",
                bytes(CLUSTER.payload_bytes)
            ),
        )
        .by_cluster(&["payload_bytes"]),
        fixed(
            "headers of a job",
            format!("{}, names and values together {}, no NUL", CLUSTER.headers, bytes(CLUSTER.header_bytes)),
        )
        .by_cluster(&["headers", "header_bytes"]),
        fixed("job key, request key, `limit_key`, `fair_key`, `local_name`", key).by_cluster(&["key_bytes"]),
        fixed("tags of a job", format!("{}, no control characters; duplicates count once", option("tags"))),
        fixed("a request key is remembered", "24 h"),
        fixed(
            "trace context",
            format!("`traceparent` {}, `tracestate` {}", option("traceparent"), option("tracestate")),
        ),
        fixed("priority", format!("{low} to {high}; default 0; lower goes first")),
        fixed(
            "priority step of a type (ageing)",
            format!("1 ms to 2^{} µs, about 407 days, the default", PRIORITY_STEP.trailing_zeros()),
        ),
        fixed("delay, `run_at` and `expire_at` ahead", time(CLUSTER.max_delay)).by_cluster(&["max_delay"]),
        fixed(
            "backlog of a type (`max_backlog`)",
            format!("1 to {} jobs; default no limit; then RESOURCE_EXHAUSTED", TypeSettings::MAX_BACKLOG),
        ),
        fixed(
            "history kept",
            format!("{} days, in whole days; by type 1 to {}", config.history_days, TypeSettings::MAX_HISTORY_DAYS),
        )
        .default_by(&["history_days"]),
        fixed(
            "dead jobs kept",
            format!("no limit, in whole days; by type or cluster 1 to {}", TypeSettings::MAX_HISTORY_DAYS),
        )
        .by_cluster(&["dead_days"]),
    ]
}

fn attempts(config: &Config) -> Vec<Limit> {
    let limits = limits_of(config);
    let retry = &config.retry;
    vec![
        fixed("timeout of an attempt", format!("1 ms to {}; default none, or the type's", time(CLUSTER.max_timeout)))
            .by_cluster(&["max_timeout"]),
        fixed("attempts", format!("1 to {}; default {}", Limits::MAX_ATTEMPTS, config.max_attempts))
            .default_by(&["max_attempts"]),
        fixed(
            "retry delay: first, longest",
            format!("{}; default {}, {}", option("retry_policy.max_delay"), time(retry.initial), time(retry.max)),
        )
        .default_by(&["retry.initial", "retry.max"]),
        fixed(
            "retry multiplier; jitter",
            format!(
                "{}; {}; default {}; {}",
                option("retry_policy.multiplier"),
                option("retry_policy.jitter"),
                retry.multiplier,
                retry.jitter
            ),
        )
        .default_by(&["retry.multiplier", "retry.jitter"]),
        fixed("delays of a retry policy of kind `list`", option("retry_policy.delays")),
        fixed("error text", format!("{}; longer texts are cut and end in `… [truncated]`", bytes(limits.error_bytes)))
            .by(&["limits.error_bytes"]),
        fixed("failures kept with a job", "the last 100"),
        fixed("name of an error group", "300 characters; the first 1000 of the error's line are considered"),
        fixed(
            "progress text; checkpoint",
            format!(
                "{}, no control characters; {}",
                bytes(Limits::PROGRESS_TEXT_BYTES),
                bytes(Limits::CHECKPOINT_BYTES)
            ),
        ),
        fixed("fallbacks of a job", "1; a fallback job has no fallback"),
    ]
}

fn coordination() -> Vec<Limit> {
    let most = CLUSTER.batch;
    vec![
        fixed("next stages", option("next_stages")),
        fixed("dependencies of a job", format!("{most} ids, {most} local names")).by_cluster(&["batch"]),
        fixed(
            "results of dependencies that come with a job",
            format!("{} each, {} in all; `GetResults` returns all", bytes(SENT_RESULT), bytes(SENT_RESULTS)),
        ),
        fixed(
            "hold of a key; limit of a debounce",
            format!("{}; {}", option("key_hold"), option("key_debounce_limit")),
        ),
    ]
}

//! Limits of a worker's stream.

use howdah_core::{config::Config, job::Limits};
use howdah_engine::{
    dispatch::UNSENT_AFTER,
    session::{JOB_OVERHEAD, ping_interval, reader::MOST_UNANSWERED},
};

use super::{CLUSTER, Limit, bytes, fixed, limits_of, time};
use crate::api::check::{settle::LATER, subscribe};

pub(super) fn limits(config: &Config) -> Vec<Limit> {
    let limits = limits_of(config);
    vec![
        fixed("first message on a stream", time(limits.first_message)).by(&["limits.first_message"]),
        fixed("task types on a stream", limits.stream_types.to_string()).by(&["limits.stream_types"]),
        fixed("window of a type, in jobs", format!("0 to {}", limits.window_jobs)).by(&["limits.window_jobs"]),
        fixed(
            "window of a type, in bytes",
            format!("{}; default {}", bytes(limits.window_bytes), bytes(Limits::DEFAULT_WINDOW_BYTES)),
        )
        .by(&["limits.window_bytes"]),
        fixed("leases held at a resume", limits.window_jobs.to_string()).by(&["limits.window_jobs"]),
        fixed("labels", format!("{}, name and value {} each", subscribe::LABELS, bytes(CLUSTER.key_bytes)))
            .by_cluster(&["key_bytes"]),
        fixed(
            "largest message of a worker, given in `subscribe`",
            format!(
                "{} to {}; default {}; each job counts {} plus its payload and headers",
                bytes(*subscribe::MESSAGE_RANGE.start()),
                bytes(*subscribe::MESSAGE_RANGE.end()),
                bytes(subscribe::MESSAGE_BYTES),
                bytes(JOB_OVERHEAD)
            ),
        ),
        fixed("snooze, `retry_after`", format!("{} to {}", time(*LATER.start()), time(*LATER.end()))),
        fixed("an extension", format!("1 ms to {}", time(CLUSTER.max_timeout))).by_cluster(&["max_timeout"]),
        fixed("unanswered outcomes and extensions", format!("{MOST_UNANSWERED}; then the stream is not read")),
        fixed("a job claimed but not sent", format!("{}, then it is released", time(UNSENT_AFTER))),
        fixed(
            "liveness: silence after which a worker is lost",
            format!(
                "{}; a worker may ask for {} to {}",
                time(config.liveness),
                time(*subscribe::LIVENESS.start()),
                time(*subscribe::LIVENESS.end())
            ),
        )
        .by(&["liveness"]),
        fixed("Ping to a silent worker", format!("after {}", time(ping_interval(config.liveness)))),
        fixed("grace time after a broken stream", time(config.session_grace)).by(&["session_grace"]),
    ]
}

//! Limits of a worker's stream.

use super::{CLUSTER, Limit, bytes, fixed, of, time};
use crate::{
    api::check::{settle::LATER, subscribe},
    config::Config,
    dispatch::UNSENT_AFTER,
    job::Limits,
    session::{JOB_OVERHEAD, reader::MOST_UNANSWERED},
};

pub(super) fn limits(config: &Config) -> Vec<Limit> {
    let limits = of(config);
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
                "{} to {}; default {}; a job in it costs {} besides its payload and headers",
                bytes(*subscribe::MESSAGE_RANGE.start()),
                bytes(*subscribe::MESSAGE_RANGE.end()),
                bytes(subscribe::MESSAGE_BYTES),
                bytes(JOB_OVERHEAD)
            ),
        ),
        fixed("snooze, `retry_after`", format!("{} to {}", time(*LATER.start()), time(*LATER.end()))),
        fixed("an extension", format!("1 ms to {}", time(CLUSTER.max_timeout))).by_cluster(&["max_timeout"]),
        fixed("outcomes and extensions not answered yet", format!("{MOST_UNANSWERED}; then the stream is not read")),
        fixed("a job claimed but not sent", format!("{}, then it is released", time(UNSENT_AFTER))),
        fixed("grace time after a broken stream", time(config.session_grace)).by(&["session_grace"]),
        fixed("Ping on an idle stream", format!("every {}", time(config.ping_interval))).by(&["ping_interval"]),
    ]
}

//! Limits of a schedule.

use std::time::Duration;

use howdah_core::{
    config::Config,
    job::schedule::{MAX_SCHEDULES, MOST_OF_PRINCIPAL, Missed, fire, plan},
};
use howdah_engine::{maintain::schedules as firing, operate::jobs::LIST_BYTES};

use super::{CLUSTER, Limit, bytes, fixed, time};
use crate::api::{
    check::schedule as check,
    verbs::schedules::{NEXT_TIMES, list},
};

pub(super) fn limits(_: &Config) -> Vec<Limit> {
    let missed_after = Duration::from_micros(fire::MISSED_AFTER.unsigned_abs());
    vec![
        fixed(
            "schedules",
            format!("{MAX_SCHEDULES}, {MOST_OF_PRINCIPAL} of them created by one principal, then RESOURCE_EXHAUSTED"),
        ),
        fixed("name", format!("1 to {} of `A-Z a-z 0-9 . _ : / -`", bytes(check::NAME_BYTES))),
        fixed(
            "template",
            format!("limits of a job; {} headers, because the broker adds two", CLUSTER.headers.saturating_sub(2)),
        )
        .by_cluster(&["headers"]),
        fixed("period", format!("{} to {}", time(check::SECOND), time(check::LONGEST))),
        fixed("cron expression; time zone", format!("{}; {}", bytes(plan::EXPRESSION), bytes(plan::ZONE))),
        fixed("jitter", format!("0 s to {}, at most the period", time(check::DAY))),
        fixed(
            "missed times for which a job is enqueued after an outage",
            format!("1, or with `all` 1 to {}, default {}", Missed::MAX_LIMIT, Missed::DEFAULT_LIMIT),
        ),
        fixed("a planned time counts as missed", format!("when it is {} late", time(missed_after))),
        fixed("planned times shown", format!("{NEXT_TIMES}; in a list 1")),
        fixed(
            "schedules on a page",
            format!("{}; default {}; about {}, without payloads", list::MAX_PAGE, list::PAGE, bytes(LIST_BYTES)),
        ),
        fixed(
            "jobs in a transaction that fires schedules",
            format!("{}, about {}, of {} schedules", firing::JOBS, bytes(firing::BYTES), firing::SCHEDULES),
        ),
    ]
}

//! View of one task type: job counts, settings and actions.

use std::time::SystemTime;

use askama::Template;
use axum::response::Response;
use howdah_proto::v1::{self, HistoryMode, RetryPolicyKind};

use crate::{
    access::Operation,
    page::{
        PageError, PageRequest,
        layout::{Layout, render},
        words::{State, When, number, size, span, wire_span},
    },
};

#[derive(Template)]
#[template(path = "task_type.html")]
struct View {
    layout: Layout,
    name: String,
    /// Names of the stores that have the task type; empty if there is only one store.
    store: String,
    paused: bool,
    operates: bool,
    counts: Vec<(State, String, bool)>,
    oldest: String,
    next_due: String,
    /// Age of the job counts; empty if there are no counts.
    age: String,
    braked: Option<BrakedSince>,
    settings: Vec<(&'static str, String)>,
}

/// State of the brake of a braked type.
struct BrakedSince {
    since: Option<When>,
    failures: String,
    /// Time of the next trial; `None` if it may start now.
    next: Option<When>,
}

impl BrakedSince {
    fn new(braked: v1::Braked) -> Self {
        let next = braked
            .next_attempt_time
            .filter(|next| SystemTime::try_from(*next).is_ok_and(|next| next > SystemTime::now()));
        Self { since: When::new(braked.since_time), failures: number(braked.failures_in_a_row), next: When::new(next) }
    }
}

/// Renders the task type with the requested name.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    let (view, age) = req.calls().counted_type(&req.by, req.params.get("name")).await?;
    let settings = view.settings.clone().unwrap_or_default();
    let counts = super::parts::counts(view.counts.unwrap_or_default());
    let view = View {
        layout: req.layout("types"),
        operates: req.by.may(Operation::Operate, &view.name),
        paused: settings.paused,
        counts: counts.into_iter().map(|(word, count)| (State { word }, number(count), count == 0)).collect(),
        oldest: view.oldest_ready_age.map(wire_span).unwrap_or_default(),
        next_due: view.next_due_in.map(wire_span).unwrap_or_default(),
        age: age.map(span).unwrap_or_default(),
        braked: view.braked.map(BrakedSince::new),
        settings: describe(&settings),
        name: view.name,
        store: view.store,
    };
    render(&view)
}

/// Returns the type's settings that differ from the broker's defaults, as names and texts.
fn describe(settings: &v1::TaskTypeSettings) -> Vec<(&'static str, String)> {
    let count = |n: u32| if n == 0 { String::new() } else { number(n.into()) };
    let time = |time: Option<prost_types::Duration>| time.map(wire_span).unwrap_or_default();
    let rate = |rate: &Option<v1::Rate>| {
        rate.as_ref().map(|rate| format!("{} per second, burst {}", rate.per_second, rate.burst)).unwrap_or_default()
    };
    let history = match settings.history() {
        HistoryMode::Unspecified => "",
        HistoryMode::Full => "all jobs",
        HistoryMode::Failures => "jobs with a failed attempt",
        HistoryMode::None => "no succeeded jobs",
        HistoryMode::WithoutEmpty => "jobs with a result or a failed attempt",
    };
    let brake = |brake: &v1::Brake| {
        let pauses = [brake.initial_delay, brake.max_delay].map(time);
        format!("after {} failures in a row, pauses from {} to {}", number(brake.failures.into()), pauses[0], pauses[1])
    };
    let bytes = settings.max_payload_bytes;
    let all = [
        ("Attempts", count(settings.max_attempts)),
        ("Retries", settings.retry_policy.as_ref().map(retries).unwrap_or_default()),
        ("Timeout of an attempt", time(settings.timeout)),
        ("Fallback type", settings.fallback.clone()),
        ("Concurrent jobs", count(settings.max_running)),
        ("Rate", rate(&settings.rate)),
        ("Concurrent jobs per limit key", count(settings.key_max_running)),
        ("Rate of a limit key", rate(&settings.key_rate)),
        ("Gap between jobs of a limit key", time(settings.key_min_gap)),
        ("Strict order in a limit key", if settings.key_strict_order { "yes".into() } else { String::new() }),
        ("Brake", settings.brake.as_ref().map(brake).unwrap_or_default()),
        ("Ageing by one priority", time(settings.priority_step)),
        ("Largest payload", if bytes == 0 { String::new() } else { size(bytes as usize) }),
        ("Largest backlog", if settings.max_backlog == 0 { String::new() } else { number(settings.max_backlog) }),
        ("History keeps", history.to_owned()),
        ("Days of history", count(settings.history_days)),
        ("Days of dead jobs", count(settings.dead_days)),
    ];
    all.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

fn retries(policy: &v1::RetryPolicy) -> String {
    let kind = match policy.kind() {
        RetryPolicyKind::Unspecified => "",
        RetryPolicyKind::Exponential => "exponential",
        RetryPolicyKind::Linear => "linear",
        RetryPolicyKind::Fixed => "fixed",
        RetryPolicyKind::List => "list",
    };
    let mut parts = vec![kind.to_owned()];
    parts.extend(policy.initial_delay.map(|delay| format!("first after {}", wire_span(delay))));
    parts.extend(policy.multiplier.map(|factor| format!("then × {factor}")));
    parts.extend(policy.max_delay.map(|delay| format!("at most {}", wire_span(delay))));
    let delays: Vec<String> = policy.delays.iter().copied().map(wire_span).collect();
    parts.push(delays.join(", "));
    parts.extend(policy.jitter.map(|jitter| format!("± {} %", jitter * 100.0)));
    parts.retain(|part| !part.is_empty());
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_settings_that_were_set_are_shown() {
        assert!(describe(&v1::TaskTypeSettings::default()).is_empty());
        let retry_policy = Some(v1::RetryPolicy {
            initial_delay: Some(prost_types::Duration { seconds: 90, nanos: 0 }),
            jitter: Some(0.5),
            kind: RetryPolicyKind::Linear as i32,
            ..Default::default()
        });
        let settings = v1::TaskTypeSettings { retry_policy, max_running: 1_000, ..Default::default() };
        let expected = [("Retries", "linear, first after 1m 30s, ± 50 %"), ("Concurrent jobs", "1,000")];
        assert_eq!(describe(&settings), expected.map(|(name, value)| (name, value.to_owned())));
    }
}

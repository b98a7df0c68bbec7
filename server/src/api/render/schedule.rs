//! Schedules for operators.

use howdah_core::job::schedule::{Drift, Missed, Overlap, PlanText, Schedule};
use howdah_proto::v1::{self, schedule::Plan as WirePlan};

use super::time::{duration, micros, time};

/// Converts a schedule, with up to `next_times` planned times.
pub(crate) fn schedule(schedule: Schedule, next_times: usize) -> v1::Schedule {
    let next_times = schedule.next_times(next_times).into_iter().map(micros).collect();
    let Schedule { spec, state, created, updated } = schedule;
    // If the stored template cannot be decoded, the answer has only its task type and payload.
    let template = spec.template.job().unwrap_or_else(|_| v1::NewJob {
        task_type: spec.template.task_type,
        payload: spec.template.payload,
        ..v1::NewJob::default()
    });
    let millis = |ms: i64| duration(std::time::Duration::from_millis(ms.unsigned_abs()));
    let missed_limit = if let Missed::All(limit) = spec.missed { limit } else { 0 };
    v1::Schedule {
        name: spec.name,
        template: Some(template),
        plan: Some(match spec.plan {
            PlanText::Period(ms) => WirePlan::Period(millis(ms)),
            PlanText::Cron { expression, time_zone } => WirePlan::Cron(v1::Cron { expression, time_zone }),
        }),
        drift: drift(spec.drift) as i32,
        overlap: overlap(spec.overlap) as i32,
        missed: missed(spec.missed) as i32,
        missed_limit,
        start_time: spec.start.map(micros),
        end_time: spec.end.map(micros),
        jitter: (spec.jitter_ms > 0).then(|| millis(spec.jitter_ms)),
        paused: state.paused,
        next_times,
        waiting_time: state.held.map(micros),
        last_planned_time: state.last_planned.map(micros),
        last_fire_time: state.last_fired.map(micros),
        last_job_id: state.last_job_id.unwrap_or_default(),
        fired: state.fired,
        skipped: state.skipped,
        last_error: state.last_error.unwrap_or_default(),
        create_time: Some(time(created)),
        update_time: Some(time(updated)),
        store: String::new(),
    }
}

fn drift(drift: Drift) -> v1::Drift {
    match drift {
        Drift::Plan => v1::Drift::Plan,
        Drift::End => v1::Drift::End,
    }
}

fn overlap(overlap: Overlap) -> v1::OverlapPolicy {
    match overlap {
        Overlap::Allow => v1::OverlapPolicy::Allow,
        Overlap::Skip => v1::OverlapPolicy::Skip,
        Overlap::OneWaiting => v1::OverlapPolicy::OneWaiting,
    }
}

fn missed(missed: Missed) -> v1::MissedPolicy {
    match missed {
        Missed::Skip => v1::MissedPolicy::Skip,
        Missed::One => v1::MissedPolicy::One,
        Missed::All(_) => v1::MissedPolicy::All,
    }
}

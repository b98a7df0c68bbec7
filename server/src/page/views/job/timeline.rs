//! Events of a job, in chronological order.

use howdah_proto::v1::{self, JobState};

use crate::page::words::{When, between};

/// One entry of a job's timeline.
pub(super) struct Event {
    /// Style of the entry: `plain`, `good`, `bad` or `now`.
    pub(super) kind: &'static str,
    pub(super) title: String,
    pub(super) at: Option<When>,
    /// Duration of the attempt or state; empty if unknown.
    pub(super) took: String,
    /// Error of the attempt; empty on success.
    pub(super) error: String,
    /// Details of the error, such as a stack trace; may be empty.
    pub(super) details: String,
    /// Time of the event in µs, by which the timeline is sorted.
    order: i64,
}

/// Returns the entries of a job's timeline.
pub(super) fn events(job: &v1::Job) -> Vec<Event> {
    let mut events = vec![event("plain", "Enqueued".into(), job.create_time)];
    for stage in &job.completed_stages {
        let title = format!("Stage {} succeeded, attempt {}", stage.task_type, stage.attempt);
        let took = between(stage.start_time, stage.finish_time).unwrap_or_default();
        events.push(Event { took, ..event("good", title, stage.finish_time) });
    }
    for failure in &job.failures {
        let took = between(failure.start_time, failure.finish_time).unwrap_or_default();
        let place = if failure.place.is_empty() { String::new() } else { format!(" at {}", failure.place) };
        events.push(Event {
            took,
            error: format!("{}{place}", failure.error),
            details: failure.details.clone(),
            ..event("bad", format!("Attempt {} failed", failure.attempt), failure.finish_time)
        });
    }
    events.sort_by_key(|event| event.order);
    events.extend(last(job));
    events
}

/// Returns the entry for the job's current or final state.
fn last(job: &v1::Job) -> Option<Event> {
    let took = between(job.start_time, job.finish_time).unwrap_or_default();
    Some(match job.state() {
        JobState::Leased => event("now", format!("Attempt {} runs", job.attempt), job.start_time),
        JobState::Ready => event("now", "Ready to run".into(), None),
        JobState::Scheduled => event("now", "Will be ready".into(), job.run_time),
        JobState::Waiting => event("now", "Waits for other jobs, or for a limit".into(), None),
        JobState::Succeeded => {
            Event { took, ..event("good", format!("Attempt {} succeeded", job.attempt), job.finish_time) }
        }
        JobState::Dead => event("bad", "Dead: kept until an operator retries or discards it".into(), job.finish_time),
        JobState::Cancelled => event("plain", "Cancelled".into(), job.finish_time),
        JobState::Expired => event("plain", "Expired before it started".into(), job.finish_time),
        JobState::Discarded => event("plain", "Discarded".into(), job.finish_time),
        JobState::Unspecified => return None,
    })
}

fn event(kind: &'static str, title: String, time: Option<prost_types::Timestamp>) -> Event {
    let order = time.map_or(i64::MAX, |time| time.seconds.saturating_mul(1_000_000) + i64::from(time.nanos / 1_000));
    Event { kind, title, at: When::new(time), took: String::new(), error: String::new(), details: String::new(), order }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_in_the_order_in_which_they_happened() {
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let failure = |attempt, seconds| v1::AttemptFailure {
            attempt,
            error: "no".into(),
            start_time: at(seconds - 2),
            finish_time: at(seconds),
            details: "stack".into(),
            place: "mail.send".into(),
        };
        let stage = v1::CompletedStage { task_type: "a".into(), attempt: 1, start_time: at(19), finish_time: at(20) };
        let job = v1::Job {
            state: JobState::Dead as i32,
            create_time: at(1),
            finish_time: at(30),
            failures: vec![failure(1, 10), failure(2, 30)],
            completed_stages: vec![stage],
            ..Default::default()
        };
        let events = super::events(&job);
        let titles: Vec<_> = events.iter().map(|event| event.title.as_str()).collect();
        let expected = ["Enqueued", "Attempt 1 failed", "Stage a succeeded, attempt 1", "Attempt 2 failed"];
        assert_eq!(titles[..4], expected);
        assert!(titles[4].starts_with("Dead"));
        let first = &events[1];
        assert_eq!((&*first.took, &*first.error, &*first.details), ("2s", "no at mail.send", "stack"));
    }
}

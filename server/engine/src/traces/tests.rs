//! Tests of sampled attempts in progress and of their spans.

use opentelemetry::trace::TraceState;

use super::{context::Creation, *};

/// Creates a sampled attempt of the job with this id, with token 1.
pub(super) fn attempt(job: i64) -> Attempt {
    let (trace_id, span_id) = (TraceId::from(job as u128 + 1), SpanId::from(1));
    Attempt {
        job,
        token: 1,
        task_type: "mail".into(),
        number: 1,
        creation: Creation { trace_id, span_id, state: TraceState::default() },
        span_id: SpanId::from(2),
        started: UNIX_EPOCH,
        since: Instant::now(),
        until: None,
    }
}

#[test]
fn an_attempt_ends_once_and_only_with_its_own_token() {
    let open = OpenAttempts::default();
    assert!(open.is_empty());
    open.insert(attempt(1)).unwrap();
    let take = |token| open.take([(Lease { id: 1, token }, ())].into_iter()).len();
    assert_eq!((take(2), take(1), take(1)), (0, 1, 0));
    assert!(open.is_empty());
}

#[test]
fn a_second_attempt_of_a_job_ends_the_first() {
    let open = OpenAttempts::default();
    open.insert(attempt(1)).unwrap();
    assert!(open.insert(attempt(1)).unwrap().is_some());
    assert_eq!(open.take_all().len(), 1);
    assert!(open.is_empty());
}

#[test]
fn an_attempt_of_which_nothing_is_heard_ends_unless_it_is_extended() {
    let open = OpenAttempts::default();
    let past = Instant::now().checked_sub(Duration::from_secs(1));
    for job in 1..=3 {
        open.insert(Attempt { until: past.filter(|_| job < 3), ..attempt(job) }).unwrap();
    }
    let later = Instant::now() + Duration::from_secs(60);
    // The third attempt has no `until`, because a session reports its end.
    open.extend([1, 3].into_iter().map(|id| (Lease { id, token: 1 }, later)));
    let late: Vec<i64> = open.take_late().iter().map(|attempt| attempt.job).collect();
    assert_eq!((late, open.take_all().len()), (vec![2], 2));
}

#[test]
fn an_error_is_cut_between_two_letters() {
    let error = "x".to_owned() + &"é".repeat(1_000);
    let span = attempt(1).span(Ending::failed("dead", &error));
    let opentelemetry::trace::Status::Error { description } = span.status else { panic!("no error") };
    assert_eq!((description.len(), error.starts_with(&*description)), (1_023, true));
}

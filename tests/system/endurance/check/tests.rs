//! Tests the checks of the endurance tests: each check must find its violation.

use super::*;

fn job(state: &str, attempt: i32) -> Stored {
    Stored { task_type: "plain".into(), state: state.into(), attempt, max_attempts: 3, payload: "r-0".into() }
}

const fn lease(token: i64) -> Lease {
    Lease { id: 1, token }
}

fn begun(at: u64, token: i64, attempt: u32) -> Line {
    Line::Begun { at, lease: lease(token), attempt, task_type: "plain".into(), name: "r-0".into() }
}

fn sent(at: u64, token: i64, outcome: &str) -> Line {
    Line::Sent { at, lease: lease(token), outcome: outcome.into() }
}

fn settled(at: u64, token: i64, status: &str) -> Line {
    Line::Settled { at, lease: lease(token), status: status.into() }
}

fn enqueued() -> Vec<Line> {
    let request = || "r".to_owned();
    vec![
        Line::Requested { at: 1, request: request() },
        Line::Accepted { at: 2, request: request(), after: 1, ids: vec![1] },
    ]
}

/// Returns the violations found in these jobs and records, in one line.
fn wrong(jobs: Vec<(i64, Stored)>, more: Vec<Line>) -> String {
    wrong_of(jobs, vec![], more)
}

/// Returns the violations found when some jobs have moved to another store. `moved` has pairs of old and new id.
fn wrong_of(jobs: Vec<(i64, Stored)>, moved: Vec<(i64, i64)>, more: Vec<Line>) -> String {
    let stored = (jobs.into_iter().collect(), moved.into_iter().collect());
    let mut findings = Findings::read(stored, [enqueued(), more].concat());
    findings.check(Mix::All, "poison");
    findings.wrong.join("; ")
}

fn fine() -> Vec<Line> {
    vec![begun(3, 7, 1), sent(5, 7, "ack"), settled(6, 7, "Ok")]
}

#[test]
fn a_job_that_went_well_is_fine() {
    assert_eq!(wrong(vec![(1, job("succeeded", 1))], fine()), "");
}

#[test]
fn lost_unexpected_dead_and_unanswered_jobs_are_found() {
    assert!(wrong(vec![], fine()).contains("lost: 1"));
    let two = || vec![(1, job("succeeded", 1)), (2, job("succeeded", 1))];
    assert!(wrong(two(), fine()).contains("unexpected: 2"));
    assert!(wrong(vec![(1, job("dead", 2))], vec![]).contains("dead with attempts left: 1"));
    assert!(wrong(vec![(1, job("dead", 3))], vec![]).contains("dead: 1"));
    assert!(wrong(vec![(1, job("succeeded", 1))], vec![]).contains("no worker acked"));
    let unanswered = [fine(), vec![Line::Requested { at: 9, request: "s".into() }]].concat();
    assert!(wrong(vec![(1, job("succeeded", 1))], unanswered).contains("never answered: s"));
}

#[test]
fn a_job_that_has_moved_is_one_job_whatever_its_ids() {
    let moved = || vec![(1, 5), (5, 9)];
    let last = || (9, job("succeeded", 2));
    let id = |id: i64| Lease { id, token: 8 };
    let again = || {
        let lease = id(9);
        let begun = Line::Begun { at: 10, lease, attempt: 2, task_type: "plain".into(), name: "r-0".into() };
        let end = Line::Sent { at: 11, lease, outcome: "ack".into() };
        vec![begun, end, Line::Settled { at: 12, lease, status: "Ok".into() }]
    };
    let before = |outcome: &str| vec![begun(3, 7, 1), sent(5, 7, outcome), settled(6, 7, "Ok")];
    assert_eq!(wrong_of(vec![last()], moved(), [before("nack"), again()].concat()), "");
    assert!(wrong_of(vec![last()], moved(), [before("ack"), again()].concat()).contains("accepted twice"));
    assert!(wrong_of(vec![], moved(), again()).contains("lost: 9"));
    let both = vec![last(), (5, job("succeeded", 1))];
    assert!(wrong_of(both, moved(), [before("nack"), again()].concat()).contains("unexpected: 5"));
}

#[test]
fn outcomes_accepted_twice_or_after_a_lost_lease_are_found() {
    let twice = [fine(), vec![begun(10, 8, 2), sent(11, 8, "ack"), settled(12, 8, "Ok")]].concat();
    assert!(wrong(vec![(1, job("succeeded", 2))], twice).contains("accepted twice"));
    let late = vec![begun(3, 7, 1), Line::Lost { at: 4, lease: lease(7) }, sent(5, 7, "ack"), settled(6, 7, "Ok")];
    assert!(wrong(vec![(1, job("succeeded", 1))], late).contains("was lost, and then settled"));
}

#[test]
fn overlapping_leases_are_found_unless_the_late_outcome_was_refused() {
    let jobs = || vec![(1, job("succeeded", 2))];
    let overlap = vec![
        begun(3, 7, 1),
        begun(4, 8, 2),
        sent(5, 7, "nack"),
        settled(6, 7, "Ok"),
        sent(7, 8, "ack"),
        settled(8, 8, "Ok"),
    ];
    assert!(wrong(jobs(), overlap).contains("overlapping"));
    let late = vec![
        begun(3, 7, 1),
        begun(4, 8, 2),
        sent(5, 8, "ack"),
        settled(6, 8, "Ok"),
        sent(9, 7, "ack"),
        settled(10, 7, "LeaseLost"),
    ];
    assert_eq!(wrong(jobs(), late), "");
    let alive = vec![
        begun(3, 7, 1),
        begun(4, 8, 2),
        Line::Alive { at: 5, lease: lease(7) },
        sent(9, 8, "ack"),
        settled(10, 8, "Ok"),
    ];
    assert!(wrong(jobs(), alive).contains("overlapping"));
}

#[test]
fn an_attempt_that_is_delivered_twice_is_found_unless_it_was_released() {
    let jobs = || vec![(1, job("succeeded", 1))];
    let mut again = vec![begun(3, 7, 1), begun(10, 8, 1), sent(11, 8, "ack"), settled(12, 8, "Ok")];
    assert!(wrong(jobs(), again.clone()).contains("attempt 1 delivered twice"));
    again.insert(1, sent(4, 7, "release"));
    assert_eq!(wrong(jobs(), again), "");
}

#[test]
fn more_running_jobs_than_a_limit_allows_are_found() {
    let limited = |token: i64| {
        let id = token;
        let lease = Lease { id, token };
        let name = format!("{token}");
        vec![
            Line::Begun { at: 10 + token as u64, lease, attempt: 1, task_type: "limited".into(), name },
            Line::Sent { at: 100, lease, outcome: "ack".into() },
            Line::Settled { at: 101, lease, status: "Ok".into() },
        ]
    };
    let lines = |count: i64| (1..=count).flat_map(limited).collect::<Vec<_>>();
    assert!(!wrong(vec![], lines(5)).contains("at once"));
    assert!(wrong(vec![], lines(6)).contains("6 jobs of a type with a limit of 5 at once"));
}

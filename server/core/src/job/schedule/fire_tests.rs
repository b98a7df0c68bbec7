use bytes::Bytes;
use proptest::prelude::*;

use super::{super::*, MISSED_AFTER};

const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3_600 * SECOND;

fn every(seconds: i64) -> ScheduleSpec {
    ScheduleSpec {
        name: "s".into(),
        template: Template { message: String::new(), payload: Bytes::new(), task_type: "t".into() },
        plan: PlanText::Period(seconds * 1000),
        drift: Drift::Plan,
        overlap: Overlap::Allow,
        missed: Missed::One,
        start: Some(0),
        end: None,
        jitter_ms: 0,
    }
}

fn begun(spec: &ScheduleSpec) -> ScheduleState {
    ScheduleState { next: Some(0), ..spec.planned_from(&spec.plan.parse().unwrap(), 0).unwrap() }
}

fn fire(spec: &ScheduleSpec, state: &ScheduleState, now: i64, busy: bool) -> Firing {
    spec.fire(&spec.plan.parse().unwrap(), state, now, busy, None, 1_000)
}

#[test]
fn due_times_fire_and_the_next_time_is_planned() {
    let spec = every(10);
    let firing = fire(&spec, &begun(&spec), 25 * SECOND, false);
    assert_eq!(firing.planned, [0, 10 * SECOND, 20 * SECOND]);
    assert_eq!((firing.state.next, firing.state.skipped, firing.state.watching), (Some(30 * SECOND), 0, false));
}

#[test]
fn missed_times_are_made_up_for_as_the_missed_policy_says() {
    // Planned from 0 h to 10 h; no broker ran until a second after that.
    let now = 10 * HOUR + SECOND;
    for (missed, made_up) in [(Missed::Skip, 0), (Missed::One, 1), (Missed::All(3), 3), (Missed::All(100), 10)] {
        for plan in [every(3600).plan, PlanText::Cron { expression: "0 * * * *".into(), time_zone: "UTC".into() }] {
            let spec = ScheduleSpec { plan, missed, ..every(3600) };
            let firing = fire(&spec, &ScheduleState { next: Some(0), ..ScheduleState::default() }, now, false);
            let expected: Vec<i64> = (10 - made_up..=10).map(|hour| hour * HOUR).collect();
            assert_eq!(firing.planned, expected, "{missed:?}: 10 h is in time");
            assert_eq!((firing.state.next, firing.state.skipped), (Some(11 * HOUR), 10 - made_up), "{missed:?}");
        }
    }
}

#[test]
fn after_a_long_outage_only_the_newest_missed_times_of_a_calendar_of_seconds_fire() {
    let plan = PlanText::Cron { expression: "* * * * 1 *".into(), time_zone: "UTC".into() };
    let spec = ScheduleSpec { missed: Missed::All(3), plan, ..every(1) };
    let state = ScheduleState { next: Some(0), ..ScheduleState::default() };
    // It is 1 July, long after January, when the schedule fired each second.
    let firing = fire(&spec, &state, 181 * 24 * HOUR, false);
    let end = 31 * 24 * HOUR;
    assert_eq!(firing.planned, [end - 3 * SECOND, end - 2 * SECOND, end - SECOND]);
    assert_eq!(firing.state.next, Some(365 * 24 * HOUR));
}

#[test]
fn while_a_job_runs_the_next_is_left_out_or_one_waits() {
    let skip = ScheduleSpec { overlap: Overlap::Skip, ..every(10) };
    let firing = fire(&skip, &begun(&skip), 25 * SECOND, true);
    assert_eq!((firing.planned.len(), firing.state.skipped, firing.state.held), (0, 3, None));
    let firing = fire(&skip, &begun(&skip), 25 * SECOND, false);
    assert_eq!((&firing.planned[..], firing.state.skipped), (&[0][..], 2));

    let wait = ScheduleSpec { overlap: Overlap::OneWaiting, ..every(10) };
    let firing = fire(&wait, &begun(&wait), 25 * SECOND, true);
    assert_eq!((firing.planned.len(), firing.state.skipped, firing.state.held), (0, 2, Some(0)));
    assert!(firing.state.watching);
    // The running job has finished.
    let firing = fire(&wait, &firing.state, 26 * SECOND, false);
    assert_eq!((&firing.planned[..], firing.state.held, firing.state.watching), (&[0][..], None, false));
    assert_eq!(firing.state.next, Some(30 * SECOND));
}

#[test]
fn a_period_from_the_end_begins_when_the_job_has_ended() {
    let spec = ScheduleSpec { drift: Drift::End, ..every(10) };
    let plan = spec.plan.parse().unwrap();
    let firing = fire(&spec, &begun(&spec), 25 * SECOND, false);
    assert_eq!((&firing.planned[..], firing.state.next, firing.state.watching), (&[0][..], None, true));
    let still = fire(&spec, &firing.state, 30 * SECOND, true);
    assert_eq!((still.planned.len(), still.state.next, still.state.watching), (0, None, true));
    let ended = spec.fire(&plan, &still.state, 50 * SECOND, false, Some(47 * SECOND), 10);
    assert_eq!((ended.planned.len(), ended.state.next, ended.state.watching), (0, Some(57 * SECOND), false));
    // If the end of the job is noticed only after the next time was due, that time fires immediately.
    let late = spec.fire(&plan, &still.state, 58 * SECOND, false, Some(47 * SECOND), 10);
    assert_eq!((&late.planned[..], late.state.watching), (&[57 * SECOND][..], true));
}

#[test]
fn nothing_is_planned_from_the_end_on() {
    let spec = ScheduleSpec { end: Some(20 * SECOND), ..every(10) };
    let firing = fire(&spec, &begun(&spec), 25 * SECOND, false);
    assert_eq!((&firing.planned[..], firing.state.next), (&[0, 10 * SECOND][..], None));
    let late = ScheduleSpec { end: Some(5), start: Some(3), ..every(10) };
    assert_eq!(late.planned_from(&late.plan.parse().unwrap(), 7).unwrap_err().0, "end_time");
}

#[test]
fn the_jitter_of_a_planned_time_never_changes_and_jitters_spread_over_their_range() {
    let spec = ScheduleSpec { jitter_ms: 5_000, ..every(10) };
    let draws: Vec<i64> = (0..100).map(|n| spec.jitter_of(n * 10 * SECOND)).collect();
    assert_eq!(draws, (0..100).map(|n| spec.jitter_of(n * 10 * SECOND)).collect::<Vec<_>>());
    assert!(draws.iter().all(|draw| (0..=5 * SECOND).contains(draw)));
    assert!(draws.iter().any(|draw| *draw < SECOND) && draws.iter().any(|draw| *draw > 4 * SECOND));
    let firing = fire(&spec, &begun(&spec), spec.jitter_of(0) - 1, false);
    assert_eq!((firing.planned.len(), firing.state.next), (0, Some(0)));
    assert_eq!(fire(&spec, &begun(&spec), spec.jitter_of(0), false).planned, [0]);
}

#[test]
fn a_paused_schedule_fires_nothing_and_makes_up_for_nothing() {
    let spec = every(10);
    let clock = std::time::SystemTime::UNIX_EPOCH;
    let mut schedule = Schedule { state: begun(&spec), spec, created: clock, updated: clock };
    schedule.pause();
    assert_eq!(fire(&schedule.spec, &schedule.state, HOUR, false).planned, [0; 0]);
    assert_eq!((schedule.next_at(), schedule.next_times(10).len()), (None, 0));
    schedule.resume(HOUR + 1).unwrap();
    assert_eq!(schedule.state.next, Some(HOUR + 10 * SECOND));
    assert_eq!(schedule.next_times(3), [HOUR + 10 * SECOND, HOUR + 20 * SECOND, HOUR + 30 * SECOND]);
}

/// Returns a schedule without a start time that was created at 0.
fn unplanned(spec: ScheduleSpec) -> Schedule {
    let clock = std::time::SystemTime::UNIX_EPOCH;
    let spec = ScheduleSpec { start: None, ..spec };
    let state = spec.planned_from(&spec.plan.parse().unwrap(), 0).unwrap();
    Schedule { spec, state, created: clock, updated: clock }
}

#[test]
fn a_period_begins_at_the_creation_unless_it_has_a_start_time() {
    let begins = |spec: &ScheduleSpec, now| spec.planned_from(&spec.plan.parse().unwrap(), now).unwrap().next;
    let spec = ScheduleSpec { start: None, ..every(10) };
    assert_eq!(begins(&spec, 7), Some(7));
    assert_eq!(begins(&ScheduleSpec { drift: Drift::End, ..spec.clone() }, 7), Some(7));
    assert_eq!(begins(&ScheduleSpec { start: Some(20 * SECOND), ..spec.clone() }, 7), Some(20 * SECOND));
    assert_eq!(begins(&ScheduleSpec { start: Some(0), ..spec.clone() }, 7), Some(10 * SECOND));
    let over = ScheduleSpec { end: Some(7), ..spec };
    assert_eq!(over.planned_from(&over.plan.parse().unwrap(), 7).unwrap_err().0, "end_time");
}

#[test]
fn a_changed_period_counts_from_the_last_planned_time() {
    for (period, now, next) in [(60, 25, 80), (22, 25, 42), (4, 25, 25), (60, 90, 90)] {
        let mut schedule = unplanned(every(10));
        schedule.state.last_planned = Some(20 * SECOND);
        schedule.state.next = Some(30 * SECOND);
        schedule.redefine(ScheduleSpec { start: None, ..every(period) }, now * SECOND).unwrap();
        assert_eq!(schedule.state.next, Some(next * SECOND), "{period} {now}");
    }
    // Nothing has fired yet, so the changed period begins at once.
    let mut schedule = unplanned(every(10));
    schedule.redefine(ScheduleSpec { start: None, ..every(60) }, 5 * SECOND).unwrap();
    assert_eq!(schedule.state.next, Some(5 * SECOND));
}

#[test]
fn a_changed_period_from_the_end_counts_from_the_end_of_the_last_job() {
    let slower = ScheduleSpec { start: None, drift: Drift::End, ..every(60) };
    let mut schedule = unplanned(ScheduleSpec { drift: Drift::End, ..every(10) });
    // The job of the planned time 0 ended at 20 s.
    schedule.state.last_planned = Some(0);
    schedule.state.next = Some(30 * SECOND);
    schedule.redefine(slower.clone(), 25 * SECOND).unwrap();
    assert_eq!(schedule.state.next, Some(80 * SECOND));
    // A job is unfinished, so the new period counts from its end.
    (schedule.state.next, schedule.state.watching) = (None, true);
    schedule.redefine(ScheduleSpec { plan: PlanText::Period(5_000), ..slower }, 100 * SECOND).unwrap();
    assert_eq!((schedule.state.next, schedule.state.watching), (None, true));
    let plan = schedule.spec.plan.parse().unwrap();
    let ended = schedule.spec.fire(&plan, &schedule.state, 120 * SECOND, false, Some(118 * SECOND), 10);
    assert_eq!(ended.state.next, Some(123 * SECOND));
}

#[test]
fn a_schedule_that_is_created_paused_begins_when_it_is_resumed() {
    let mut schedule = unplanned(every(10));
    schedule.pause();
    schedule.resume(25 * SECOND).unwrap();
    assert_eq!(schedule.state.next, Some(25 * SECOND));
    // Once it has fired, it keeps its times.
    schedule.state.last_planned = Some(25 * SECOND);
    schedule.pause();
    schedule.resume(41 * SECOND).unwrap();
    assert_eq!(schedule.state.next, Some(45 * SECOND));
    let mut over = unplanned(ScheduleSpec { end: Some(SECOND), ..every(10) });
    over.pause();
    over.resume(2 * SECOND).unwrap();
    assert_eq!(over.state.next, None);
}

#[test]
fn a_new_definition_keeps_its_times_unless_the_plan_changes() {
    let clock = std::time::SystemTime::UNIX_EPOCH;
    let spec = ScheduleSpec { start: None, ..every(10) };
    let state = ScheduleState {
        anchor: 3,
        next: Some(3 + 10 * SECOND),
        last_planned: Some(3),
        fired: 5,
        ..ScheduleState::default()
    };
    let mut schedule = Schedule { spec: spec.clone(), state, created: clock, updated: clock };
    schedule.redefine(ScheduleSpec { overlap: Overlap::Skip, ..spec.clone() }, 5 * SECOND).unwrap();
    assert_eq!((schedule.state.next, schedule.state.fired), (Some(3 + 10 * SECOND), 5));
    let slower = ScheduleSpec { plan: PlanText::Period(60_000), ..spec };
    schedule.redefine(slower.clone(), 5 * SECOND).unwrap();
    assert_eq!((schedule.state.next, schedule.state.fired), (Some(3 + 60 * SECOND), 5));
    let over = ScheduleSpec { end: Some(6 * SECOND), ..slower };
    assert_eq!(schedule.redefine(over, 7 * SECOND).unwrap_err().0, "end_time");
}

fn plans() -> impl Strategy<Value = PlanText> {
    let cron = |expression: &str| PlanText::Cron { expression: expression.into(), time_zone: "Europe/Berlin".into() };
    prop_oneof![
        (1_000..200_000_i64).prop_map(PlanText::Period),
        Just(cron("*/7 * * * * *")),
        Just(cron("* * * * *")),
        Just(cron("17,48 2-5 * * *")),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Checks at any times and with any room fire each planned time once, in order.
    #[test]
    fn checking_a_schedule_more_often_fires_the_same_times(
        plan in plans(),
        jitter_ms in prop_oneof![Just(0_i64), 0..1_000_i64],
        steps in prop::collection::vec((1..50_i64, 1..30_usize), 1..40),
    ) {
        // 29 March 2026, an hour before the clocks change in Berlin.
        let start = 1_774_742_400 * SECOND;
        let spec = ScheduleSpec { plan, jitter_ms, start: Some(start), missed: Missed::All(1_000), ..every(1) };
        let plan = spec.plan.parse().unwrap();
        let first = spec.planned_from(&plan, start - 1).unwrap();
        let mut state = first.clone();
        let (mut now, mut fired) = (start, Vec::new());
        for (seconds, room) in steps {
            now += seconds * SECOND;
            let firing = spec.fire(&plan, &state, now, true, None, room);
            prop_assert!(firing.planned.len() <= room);
            fired.extend(firing.planned);
            state = firing.state;
        }
        loop {
            let firing = spec.fire(&plan, &state, now, true, None, 7);
            state = firing.state;
            if firing.planned.is_empty() {
                break;
            }
            fired.extend(firing.planned);
        }
        let once = spec.fire(&plan, &first, now, true, None, usize::MAX);
        prop_assert!(fired.is_sorted_by(|a, b| a < b), "strictly later");
        prop_assert_eq!(&fired, &once.planned);
        prop_assert_eq!((state.next, state.skipped), (once.state.next, 0));
        let next = |time: &i64| spec.next_after(&plan, first.anchor, *time);
        let all: Vec<i64> = std::iter::successors(first.next, next).take(fired.len()).collect();
        prop_assert_eq!(fired, all);
    }

    /// With any policy and history, each planned time is fired, skipped or held: never lost, never fired twice.
    #[test]
    fn each_planned_time_has_one_outcome(
        overlap in prop::sample::select(vec![Overlap::Allow, Overlap::Skip, Overlap::OneWaiting]),
        missed in prop::sample::select(vec![Missed::Skip, Missed::One, Missed::All(5)]),
        steps in prop::collection::vec((1..200_i64, any::<bool>()), 1..60),
    ) {
        let spec = ScheduleSpec { overlap, missed, ..every(10) };
        let plan = spec.plan.parse().unwrap();
        let (mut state, mut now, mut fired) = (begun(&spec), 0, Vec::new());
        for (seconds, busy) in steps {
            now += seconds * SECOND;
            let firing = spec.fire(&plan, &state, now, busy && overlap != Overlap::Allow, None, 1_000);
            prop_assert!(overlap == Overlap::Allow || firing.planned.len() <= usize::from(!busy));
            fired.extend(firing.planned);
            state = firing.state;
            let passed = state.next.unwrap() / (10 * SECOND);
            prop_assert_eq!(passed, fired.len() as i64 + state.skipped + i64::from(state.held.is_some()));
            prop_assert!(state.next.unwrap() > now);
            prop_assert_eq!(state.watching, state.held.is_some());
        }
        prop_assert!(fired.is_sorted_by(|a, b| a < b));
        prop_assert!(MISSED_AFTER > 10 * SECOND);
    }
}

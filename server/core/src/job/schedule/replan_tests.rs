use bytes::Bytes;
use jiff::{Timestamp, tz::TimeZone};

use super::super::{Missed, Overlap, PlanText, ScheduleSpec, ScheduleState, Template};
use super::*;

const SECOND: i64 = 1_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

fn at(text: &str) -> i64 {
    text.parse::<Timestamp>().unwrap().as_microsecond()
}

fn schedule(plan: PlanText, now: i64, change: impl FnOnce(&mut ScheduleSpec)) -> (Schedule, Plan) {
    let mut spec = ScheduleSpec {
        name: "s".into(),
        template: Template { message: String::new(), payload: Bytes::new(), task_type: "t".into() },
        plan,
        drift: Drift::Plan,
        overlap: Overlap::Allow,
        missed: Missed::One,
        start: None,
        end: None,
        jitter_ms: 0,
    };
    change(&mut spec);
    let plan = spec.plan.parse().unwrap();
    let state = spec.planned_from(&plan, now).unwrap();
    let clock = std::time::SystemTime::UNIX_EPOCH;
    (Schedule { spec, state, created: clock, updated: clock }, plan)
}

fn cron(expression: &str) -> PlanText {
    PlanText::Cron { expression: expression.into(), time_zone: "Europe/Berlin".into() }
}

/// Returns the plan with other time zone rules.
fn by_rules(plan: &PlanText, rules: &str) -> Plan {
    let Plan::Cron(calendar) = plan.parse().unwrap() else { panic!("a period") };
    Plan::Cron(Box::new(calendar.in_zone(TimeZone::posix(rules).unwrap())))
}

/// Returns the planned times that a schedule fires until `until`, each when it is due.
fn fired(schedule: &mut Schedule, plan: &Plan, until: i64) -> Vec<i64> {
    let mut planned = Vec::new();
    while let Some(next) = schedule.state.next.filter(|next| *next <= until) {
        schedule.follow_zone(plan, next);
        let firing = schedule.spec.fire(plan, &schedule.state, next, false, None, 10);
        schedule.state = ScheduleState {
            last_planned: firing.planned.last().copied().or(schedule.state.last_planned),
            ..firing.state
        };
        planned.extend(firing.planned);
    }
    planned
}

/// Stores the time zone offset as a broker with these time zone rules would.
fn stored(schedule: &mut Schedule, rules: &Plan) {
    schedule.state.zone_offset = schedule.state.next.map(|next| (next, rules.offset_at(next).unwrap()));
}

fn shown(times: &[i64]) -> Vec<String> {
    times.iter().map(|time| Timestamp::from_microsecond(*time).unwrap().strftime("%d %H:%M").to_string()).collect()
}

#[test]
fn when_the_rules_of_a_zone_change_each_time_of_the_wall_clock_fires_once() {
    let text = cron("24 7 * * *");
    for (before, after, changed, expected) in [
        // The new rules make times three minutes earlier: once before, and once after the firing of that day.
        ("XXX-1", "XXX-1:03", "2026-11-10T05:00:00Z", ["09 06:24", "10 06:21", "11 06:21"]),
        ("XXX-1", "XXX-1:03", "2026-11-10T07:00:00Z", ["09 06:24", "10 06:24", "11 06:21"]),
        // The new rules make times three minutes later. At 06:25 UTC the schedule has fired on that day, so it does not
        // fire again at the new 07:24 local time.
        ("XXX-1", "XXX-0:57", "2026-11-10T05:00:00Z", ["09 06:24", "10 06:27", "11 06:27"]),
        ("XXX-1", "XXX-0:57", "2026-11-10T06:25:00Z", ["09 06:24", "10 06:24", "11 06:27"]),
        // The rules change between the new time and the old time of that day: the schedule fires immediately, for the
        // new time.
        ("XXX-1", "XXX-1:03", "2026-11-10T06:22:00Z", ["09 06:24", "10 06:21", "11 06:21"]),
    ] {
        let (old, new) = (by_rules(&text, before), by_rules(&text, after));
        let (mut schedule, _) = schedule(text.clone(), at("2026-11-09T00:00:00Z"), |_| {});
        let mut times = fired(&mut schedule, &old, at(changed));
        stored(&mut schedule, &old);
        assert!(schedule.replan(&new, at(changed)), "{after} {changed}");
        stored(&mut schedule, &new);
        times.extend(fired(&mut schedule, &new, at("2026-11-11T23:00:00Z")));
        assert_eq!(shown(&times), expected, "{after} {changed}");
        assert!(!schedule.replan(&new, at("2026-11-11T23:00:00Z")));
    }
}

#[test]
fn a_time_that_is_due_by_old_rules_is_moved_when_it_would_fire() {
    let text = cron("24 7 * * *");
    let (old, new) = (by_rules(&text, "XXX-1"), by_rules(&text, "XXX-0:57"));
    let (mut schedule, _) = schedule(text, at("2026-11-09T00:00:00Z"), |_| {});
    schedule.state.next = Some(at("2026-11-09T06:24:00Z"));
    stored(&mut schedule, &old);
    schedule.follow_zone(&new, at("2026-11-09T06:24:01Z"));
    assert_eq!(schedule.state.next, Some(at("2026-11-09T06:27:00Z")));
    assert_eq!(schedule.zone_offset(), schedule.spec.plan.parse().unwrap().offset_at(at("2026-11-09T06:27:00Z")));
}

#[test]
fn an_hourly_schedule_goes_on_by_the_new_zone_rules_in_real_time() {
    let text = cron("0 * * * *");
    let (old, new) = (by_rules(&text, "XXX-1"), by_rules(&text, "XXX-1:30"));
    let (mut schedule, _) = schedule(text, at("2026-11-09T00:10:00Z"), |_| {});
    let mut times = fired(&mut schedule, &old, at("2026-11-09T02:10:00Z"));
    stored(&mut schedule, &old);
    assert!(schedule.replan(&new, at("2026-11-09T02:10:00Z")));
    times.extend(fired(&mut schedule, &new, at("2026-11-09T04:00:00Z")));
    assert_eq!(shown(&times), ["09 01:00", "09 02:00", "09 02:30", "09 03:30"]);
}

#[test]
fn without_a_change_nothing_is_planned_anew() {
    for (text, by_end) in [(cron("24 7 * * *"), false), (cron("*/5 * * * *"), false), (PlanText::Period(60_000), true)]
    {
        let start = at("2026-03-28T00:00:00Z");
        let (mut schedule, plan) = schedule(text, start, |spec| {
            if by_end {
                spec.drift = Drift::End;
            }
        });
        for hour in 0..60 {
            let now = start + hour * HOUR;
            if !by_end {
                fired(&mut schedule, &plan, now);
            }
            schedule.state.zone_offset = schedule.zone_offset().map(|offset| (schedule.state.next.unwrap(), offset));
            assert!(!schedule.replan(&plan, now), "{:?} {hour}", schedule.spec.plan);
        }
    }
}

/// Returns the next planned time of a schedule that fired while the clock was ahead, after the clock was corrected.
fn after_a_clock_ahead(text: PlanText, ahead: i64, change: impl FnOnce(&mut ScheduleSpec)) -> (i64, Schedule) {
    let now = at("2026-11-09T12:00:30Z");
    let (mut schedule, plan) = schedule(text, now - 2 * DAY, change);
    let firing = schedule.spec.fire(&plan, &schedule.state, now + ahead, false, Some(now + ahead), 10);
    schedule.state = firing.state;
    schedule.replan(&plan, now);
    (schedule.state.next.unwrap() - now, schedule)
}

#[test]
fn after_a_clock_that_was_far_ahead_the_next_time_is_that_of_the_plan() {
    let ahead = 40 * DAY;
    let daily = after_a_clock_ahead(cron("30 2 * * *"), ahead, |_| {}).0;
    assert_eq!(daily, at("2026-11-10T01:30:00Z") - at("2026-11-09T12:00:30Z"));
    assert!((0..=5 * MINUTE + SLACK).contains(&after_a_clock_ahead(cron("*/5 * * * *"), ahead, |_| {}).0));
    let (period, floating) = after_a_clock_ahead(PlanText::Period(60_000), ahead, |_| {});
    assert_eq!((period, floating.state.next), (MINUTE + SLACK, Some(floating.state.anchor)));
    let start = at("2026-11-01T00:00:00Z");
    let (aligned, by_start) = after_a_clock_ahead(PlanText::Period(3_600_000), ahead, |spec| spec.start = Some(start));
    assert!((HOUR..=2 * HOUR + SLACK).contains(&aligned) && (by_start.state.next.unwrap() - start) % HOUR == 0);
    // The period starts at the end of a job, and the job ended while the clock was ahead.
    let now = at("2026-11-09T12:00:30Z");
    let (mut schedule, plan) = schedule(PlanText::Period(60_000), now, |spec| spec.drift = Drift::End);
    schedule.state = ScheduleState { next: None, watching: true, ..schedule.state };
    schedule.state = schedule.spec.fire(&plan, &schedule.state, now + ahead, false, Some(now + ahead), 10).state;
    assert_eq!(schedule.state.next, Some(now + ahead + MINUTE));
    assert!(schedule.replan(&plan, now) && schedule.state.next == Some(now + MINUTE + SLACK));
}

#[test]
fn a_schedule_created_while_the_clock_was_ahead_begins_now() {
    let now = at("2026-11-09T12:00:30Z");
    for text in [cron("30 2 * * *"), cron("* * * * *"), PlanText::Period(60_000)] {
        let (mut schedule, plan) = schedule(text, now + 40 * DAY, |_| {});
        assert!(schedule.replan(&plan, now));
        assert!(schedule.state.next.unwrap() - now < DAY, "{:?}", schedule.spec.plan);
    }
    // A start time in the future is intended by the creator.
    let (mut schedule, plan) = schedule(PlanText::Period(60_000), now, |spec| spec.start = Some(now + 40 * DAY));
    assert!(!schedule.replan(&plan, now));
}

#[test]
fn a_clock_that_goes_back_by_less_than_three_hours_repeats_no_fixed_time_and_stops_no_short_period() {
    // The schedule has fired at 02:30; ten minutes later the clock shows 02:25 again.
    let fired_at = at("2026-11-10T01:30:00Z");
    for (back, next) in
        [(10 * MINUTE, "2026-11-11T01:30:00Z"), (2 * HOUR, "2026-11-11T01:30:00Z"), (4 * HOUR, "2026-11-10T01:30:00Z")]
    {
        let (mut schedule, plan) = schedule(cron("30 2 * * *"), fired_at - DAY / 2, |_| {});
        assert_eq!(fired(&mut schedule, &plan, fired_at), [fired_at]);
        schedule.replan(&plan, fired_at + 5 * MINUTE - back);
        assert_eq!(schedule.state.next, Some(at(next)), "{back}");
    }
    for text in [PlanText::Period(60_000), cron("* * * * *")] {
        let (mut schedule, plan) = schedule(text, fired_at, |_| {});
        fired(&mut schedule, &plan, fired_at + HOUR);
        let now = fired_at + 50 * MINUTE;
        assert!(schedule.replan(&plan, now));
        assert!(schedule.state.next.unwrap() <= now + MINUTE + SLACK);
    }
}

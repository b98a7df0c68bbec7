use jiff::civil::date;
use proptest::prelude::*;

use super::*;

fn at(text: &str) -> i64 {
    text.parse::<Timestamp>().unwrap().as_microsecond()
}

fn calendar(expression: &str, time_zone: &str) -> Plan {
    PlanText::Cron { expression: expression.into(), time_zone: time_zone.into() }.parse().unwrap()
}

/// Planned times after one time and up to another, as wall clock times.
fn times(expression: &str, time_zone: &str, after: &str, until: &str) -> Vec<String> {
    let plan = calendar(expression, time_zone);
    let zone = TimeZone::get(time_zone).unwrap();
    let next = |time: &i64| plan.next_after(i64::MIN + 1, *time);
    let shown = |time: i64| Timestamp::from_microsecond(time).unwrap().to_zoned(zone.clone());
    std::iter::successors(next(&at(after)), next)
        .take_while(|time| *time <= at(until))
        .map(|time| shown(time).strftime("%d %H:%M %:z").to_string())
        .collect()
}

#[test]
fn a_daily_job_in_the_hour_that_is_left_out_runs_at_its_end() {
    // Berlin, 29 March 2026: the clocks go from 02:00 to 03:00.
    let found = times("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", "2026-03-30T12:00:00Z");
    assert_eq!(found, ["28 02:30 +01:00", "29 03:00 +02:00", "30 02:30 +02:00"]);
    // New York, 8 March 2026.
    let found = times("30 2 * * *", "America/New_York", "2026-03-07T00:00:00Z", "2026-03-09T12:00:00Z");
    assert_eq!(found, ["07 02:30 -05:00", "08 03:00 -04:00", "09 02:30 -04:00"]);
}

#[test]
fn a_daily_job_in_the_hour_that_comes_twice_runs_in_the_first() {
    // Berlin, 25 October 2026: the clocks go from 03:00 to 02:00.
    let found = times("30 2 * * *", "Europe/Berlin", "2026-10-24T00:00:00Z", "2026-10-26T12:00:00Z");
    assert_eq!(found, ["24 02:30 +02:00", "25 02:30 +02:00", "26 02:30 +01:00"]);
    // New York, 1 November 2026: the clocks go from 02:00 to 01:00.
    let found = times("30 1 * * *", "America/New_York", "2026-10-31T00:00:00Z", "2026-11-02T12:00:00Z");
    assert_eq!(found, ["31 01:30 -04:00", "01 01:30 -04:00", "02 01:30 -05:00"]);
}

#[test]
fn several_set_times_a_day_run_once_each_whatever_the_clocks_do() {
    let found = times("0,30 2,14 * * *", "Europe/Berlin", "2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00");
    assert_eq!(found, ["25 02:00 +02:00", "25 02:30 +02:00", "25 14:00 +01:00", "25 14:30 +01:00"]);
    // The clocks skip both 02:00 and 02:30. One job fires at the end of the gap, because both are the same planned
    // time.
    let found = times("0,30 2,14 * * *", "Europe/Berlin", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00");
    assert_eq!(found, ["29 03:00 +02:00", "29 14:00 +02:00", "29 14:30 +02:00"]);
}

#[test]
fn an_hourly_job_runs_in_each_real_hour() {
    for (zone, after, until) in [
        ("Europe/Berlin", "2026-03-28T23:30:00Z", "2026-03-29T23:30:00Z"),
        ("Europe/Berlin", "2026-10-24T23:30:00Z", "2026-10-25T23:30:00Z"),
        ("America/New_York", "2026-03-08T00:30:00Z", "2026-03-09T00:30:00Z"),
        ("America/New_York", "2026-11-01T00:30:00Z", "2026-11-02T00:30:00Z"),
    ] {
        let found = times("0 * * * *", zone, after, until);
        assert_eq!(found.len(), 24, "{zone} {after}: {found:?}");
        assert_eq!(times("@hourly", zone, after, until), found);
        assert_eq!(times("*/15 * * * *", zone, after, until).len(), 96, "{zone} {after}");
    }
}

#[test]
fn a_period_counts_from_its_anchor() {
    let plan = PlanText::Period(5_000).parse().unwrap();
    assert_eq!(plan.next_after(100, 0), Some(100));
    assert_eq!(plan.next_after(100, 100), Some(5_000_100));
    assert_eq!(plan.next_after(100, 5_000_099), Some(5_000_100));
    assert_eq!(plan.next_after(100, i64::MAX - 1), None);
}

#[test]
fn the_error_names_the_invalid_field_of_a_plan() {
    let problem = |expression: &str, zone: &str| {
        let text = PlanText::Cron { expression: expression.into(), time_zone: zone.into() };
        text.parse().err().map(|(field, _)| field)
    };
    for zone in ["", "Europe/Atlantis", "../../etc/passwd", "UTC\0", "+25:00", "Etc/Unknown", &"x".repeat(10_000)] {
        assert_eq!(problem("* * * * *", zone), Some("cron.time_zone"), "{zone:?}");
    }
    // Files in the zone directory of some machines that are not IANA zones.
    for zone in ["localtime", "LocalTime", "posixrules", "Factory", "posix/Europe/Berlin", "right/UTC"] {
        assert_eq!(problem("* * * * *", zone), Some("cron.time_zone"), "{zone:?}");
    }
    for expression in
        ["", "* * * *", "60 * * * *", "* 24 * * *", "* * 32 * *", "* * * 13 *", "* * * * 8", "a b c d e", "@reboot"]
    {
        assert_eq!(problem(expression, "UTC"), Some("cron.expression"), "{expression:?}");
    }
    for expression in ["* * * * * * *", "*/0 * * * *", "5-1 * * * *", "é * * * *", "* * * * *\0", &"1,".repeat(200)] {
        assert_eq!(problem(expression, "UTC"), Some("cron.expression"), "{expression:?}");
    }
    assert_eq!(problem("0 0 L * FRI#2", "utc"), None);
}

/// Matching days in November 2026, which starts on a Sunday.
fn days(expression: &str) -> Vec<String> {
    let found = times(expression, "UTC", "2026-10-31T23:59:59Z", "2026-11-30T23:59:59Z");
    found.iter().map(|time| time[..2].trim_start_matches('0').to_owned()).collect()
}

#[test]
fn both_day_fields_must_match_if_one_of_them_begins_with_a_star() {
    // Mondays on odd days.
    assert_eq!(days("0 0 */2 * 1"), ["9", "23"]);
    assert_eq!(days("0 0 */2 * MON"), days("0 0 1-31/2 * +1"));
    // The 15th is a Sunday; Sundays, Wednesdays and Saturdays are */3.
    assert_eq!((days("0 0 15 * */3"), days("0 0 16 * */3")), (vec!["15".to_owned()], vec![]));
    assert_eq!(days("0 0 */10 * */3"), ["1", "11", "21"]);
    assert_eq!(days("0 0 ?/2 * 1"), days("0 0 */2 * 1"));
    assert_eq!(days("0 0 * * 1"), days("0 0 ? * 1"));
    assert_eq!(days("0 0 0 */2 * 1"), days("0 0 */2 * 1"));
    // Without a leading star, one matching field is enough. A star later in a list does not count.
    assert_eq!(days("0 0 15 * 1"), ["2", "9", "15", "16", "23", "30"]);
    assert_eq!(days("0 0 1-31/10 * 1"), ["1", "2", "9", "11", "16", "21", "23", "30"]);
}

#[test]
fn cron_syntax_is_accepted_or_refused_as_documented() {
    for expression in
        ["0 0 LW * *", "0 0 15W * *", "0 0 * * 5L", "0 0 * * 5#2", "10-50/10 0 1,15 JAN-MAR 0-7", "0 0 1 * +MON"]
    {
        assert!(cron(expression).is_ok(), "{expression}");
    }
    for expression in ["5/10 * * * *", "H * * * *", "0~30 * * * *", "0 0 *,5 * *", "0 0 0 1 1 * 2027", "@every 5m"] {
        assert!(cron(expression).is_err(), "{expression}");
    }
}

#[test]
fn two_day_fields_that_never_fit_together_are_refused() {
    let plan = PlanText::Cron { expression: "0 0 30 2 */2".into(), time_zone: "UTC".into() };
    assert!(plan.parse().expect_err("no date").1.contains("no date matches"));
}

#[test]
fn nicknames_are_those_of_vixie_cron_but_reboot() {
    for (name, fields) in [
        ("@midnight", "0 0 * * *"),
        ("@Daily", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
        ("@weekly", "0 0 * * SUN"),
        (" @monthly ", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 JAN *"),
    ] {
        let next = |expression| calendar(expression, "Europe/Berlin").next_after(0, at("2026-03-28T12:34:56Z"));
        assert_eq!(next(name), next(fields), "{name}");
        assert_eq!(cron_in_words(name), cron_in_words(fields));
    }
    for (name, help) in [
        ("@reboot", "enqueue the job where the program starts"),
        ("@every 5m", "set a period instead"),
        ("@fortnightly", "@midnight"),
        ("@", "@hourly"),
        ("@daily @hourly", "@midnight"),
    ] {
        let plan = PlanText::Cron { expression: name.into(), time_zone: "UTC".into() };
        let (field, problem) = plan.parse().expect_err(name);
        assert!(field == "cron.expression" && problem.contains(help), "{name}: {problem}");
    }
}

#[test]
fn a_list_with_nothing_between_commas_is_refused() {
    // Such a cron field never matches, so a search would go through thousands of years.
    for expression in ["0 , 1 * *", "0, 0 1 * *", "0 ,5 * * *", "0 0 1,,2 * *", "0 0 * * ,"] {
        let plan = PlanText::Cron { expression: expression.into(), time_zone: "UTC".into() };
        let (field, problem) = plan.parse().expect_err(expression);
        assert!(field == "cron.expression" && problem.contains("comma"), "{expression}: {problem}");
    }
}

#[test]
fn a_day_that_never_comes_is_refused_before_a_time_is_searched_and_a_rare_one_is_found() {
    for expression in ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "* * * 30 2 *"] {
        let plan = PlanText::Cron { expression: expression.into(), time_zone: "UTC".into() };
        let (field, problem) = plan.parse().expect_err(expression);
        assert!(field == "cron.expression" && problem.contains("no date matches"), "{expression}: {problem}");
    }
    let from = at("2026-01-01T00:00:00Z");
    for (expression, next) in [
        ("0 0 29 2 *", "2028-02-29T00:00:00Z"),
        ("0 0 * 2 TUE#5", "2028-02-29T00:00:00Z"),
        ("0 0 30 2 MON", "2026-02-02T00:00:00Z"),
        ("0 0 31 1,2 *", "2026-01-31T00:00:00Z"),
    ] {
        assert_eq!(calendar(expression, "UTC").next_after(0, from), Some(at(next)), "{expression}");
    }
}

/// Returns every minute between two days whose wall clock time matches the expression, by checking each minute.
fn by_looking(expression: &str, zone: &TimeZone, from: Timestamp, to: Timestamp) -> Vec<i64> {
    let (cron, _) = cron(expression).unwrap();
    (from.as_second() + 1..=to.as_second())
        .filter(|second| second.rem_euclid(60) == 0)
        .filter(|second| {
            let wall = Timestamp::from_second(*second).unwrap().to_zoned(zone.clone()).datetime();
            cron.is_time_matching(&wall).unwrap()
        })
        .map(|second| second * 1_000_000)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Compares planned times around every kind of clock change: by half an hour, at midnight, by whole days.
    #[test]
    fn a_repeating_job_runs_whenever_the_wall_clock_fits(
        zone in prop::sample::select(vec![
            "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Asia/Beirut",
            "Africa/Casablanca", "America/Scoresbysund", "UTC", "Asia/Kathmandu",
        ]),
        change in 0..6_usize,
        minute in prop::sample::select(vec!["*", "*/7", "0", "30", "*/15", "15-45/10"]),
        hour in prop::sample::select(vec!["*", "*/2", "*/3", "*"]),
        offset in 0..86_400_i64,
    ) {
        let expression = format!("{minute} {hour} * * *");
        let tz = TimeZone::get(zone).unwrap();
        let start = date(2026, 1, 1).at(0, 0, 0, 0).to_zoned(TimeZone::UTC).unwrap().timestamp();
        let middle = tz.following(start).nth(change).map_or(start, |change| change.timestamp());
        let from = Timestamp::from_second(middle.as_second() - offset).unwrap();
        let to = Timestamp::from_second(middle.as_second() + 100_000).unwrap();
        let plan = calendar(&expression, zone);
        let next = |time: &i64| plan.next_after(i64::MIN + 1, *time);
        let found: Vec<i64> = std::iter::successors(next(&from.as_microsecond()), next)
            .take_while(|time| *time <= to.as_microsecond())
            .collect();
        prop_assert_eq!(found, by_looking(&expression, &tz, from, to), "{} {} from {}", zone, expression, from);
    }

    #[test]
    fn set_times_of_the_day_come_once_a_day_and_always_later(
        zone in prop::sample::select(vec!["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Beirut"]),
        hour in 0..24_i8, minute in 0..60_i8, day in 0..360_i64,
    ) {
        let plan = calendar(&format!("{minute} {hour} * * *"), zone);
        let start = date(2026, 1, 1).at(12, 0, 0, 0).to_zoned(TimeZone::get(zone).unwrap()).unwrap();
        let from = start.checked_add(jiff::Span::new().days(day)).unwrap();
        let mut time = from.timestamp().as_microsecond();
        for n in 1..=20 {
            let next = plan.next_after(i64::MIN + 1, time).unwrap();
            prop_assert!(next > time);
            let shown = Timestamp::from_microsecond(next).unwrap().to_zoned(from.time_zone().clone());
            let days = from.date().until(shown.date()).unwrap().get_days();
            prop_assert!(days == n || days == n - 1, "{shown} is day {days}, not {n}");
            prop_assert_eq!(days == n, (hour, minute) <= (12, 0), "{}", shown);
            time = next;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn parsing_an_arbitrary_cron_expression_never_panics(
        fields in prop::collection::vec("[*0-9]|[0-9*LW,/#?+-]{1,6}|[*0-9]{1,2}[-/,#LW][0-9]{1,2}", 5..=6),
        junk in "[-0-9*,/?#+@LWA-Z ]{0,30}",
        zone in "[A-Za-z/_+-]{0,12}",
    ) {
        for expression in [fields.join(" "), junk] {
            let text = PlanText::Cron { expression, time_zone: "Europe/Berlin".into() };
            if let Ok(plan) = text.parse() {
                let _ = plan.next_after(0, 1_800_000_000_000_000);
            }
        }
        let _ = PlanText::Cron { expression: "* * * * *".into(), time_zone: zone }.parse();
    }
}

#[test]
fn no_planned_time_is_after_the_year_9999() {
    let second = 1_000_000;
    let day_before = date(9999, 12, 30).at(0, 0, 0, 0).to_zoned(TimeZone::UTC).unwrap().timestamp();
    assert_eq!(LATEST / second, day_before.as_second() + 2 * 86_400 - 1);
    let every_second = Plan::Period(second);
    assert_eq!(every_second.next_after(0, LATEST - second), Some(LATEST - LATEST % second));
    for after in [LATEST - second / 2, LATEST, i64::MAX / 2, i64::MAX - second] {
        assert_eq!(every_second.next_after(0, after), None);
        assert_eq!(calendar("* * * * *", "UTC").next_after(0, after), None);
    }
    let hundred_years = Plan::Period(100 * 365 * 86_400 * second);
    let times = std::iter::successors(Some(0), |time| hundred_years.next_after(0, *time));
    assert_eq!(times.count(), 81);
}

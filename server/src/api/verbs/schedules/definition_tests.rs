use prost_types::{Duration as WireDuration, Timestamp};

use super::*;

fn seconds(seconds: i64) -> WireDuration {
    WireDuration { seconds, nanos: 0 }
}

fn fine() -> v1::Schedule {
    v1::Schedule {
        name: "nightly".into(),
        template: Some(v1::NewJob { task_type: "report.make".into(), payload: "p".into(), ..Default::default() }),
        plan: Some(WirePlan::Period(seconds(60))),
        ..Default::default()
    }
}

fn cron(expression: &str, time_zone: &str) -> Option<WirePlan> {
    Some(WirePlan::Cron(v1::Cron { expression: expression.into(), time_zone: time_zone.into() }))
}

fn checked(wire: v1::Schedule) -> Result<ScheduleSpec, Error> {
    check(Some(wire), &ClusterSettings::DEFAULT).map(|(spec, _)| spec)
}

#[test]
fn a_schedule_needs_only_a_name_a_job_template_and_a_plan() {
    let spec = checked(fine()).unwrap();
    assert_eq!((spec.drift, spec.overlap, spec.missed), (Drift::Plan, Overlap::Allow, Missed::One));
    assert_eq!(spec.plan, PlanText::Period(60_000));
    let headers = [(SCHEDULE_HEADER, "nightly".to_owned()), (PLANNED_TIME_HEADER, "1970-01-01T00:00:00Z".to_owned())];
    let job = job_of_template(&spec.template, headers, &ClusterSettings::DEFAULT).unwrap();
    assert_eq!((job.task_type.as_str(), &job.payload[..], job.headers.len()), ("report.make", &b"p"[..], 2));
}

#[test]
fn the_error_names_the_invalid_field_of_a_schedule() {
    let template = |job: v1::NewJob| v1::Schedule { template: Some(job), ..fine() };
    let endless = prost_types::Duration { seconds: i64::MAX, nanos: 0 };
    let job = || v1::NewJob { task_type: "t".into(), ..Default::default() };
    let at = |seconds| Some(Timestamp { seconds, nanos: 0 });
    let headers = |names: Vec<String>| names.into_iter().map(|name| (name, "v".into())).collect();
    let cases = vec![
        ("name", v1::Schedule { name: String::new(), ..fine() }),
        ("name", v1::Schedule { name: "a b".into(), ..fine() }),
        ("name", v1::Schedule { name: "n".repeat(201), ..fine() }),
        ("template", v1::Schedule { template: None, ..fine() }),
        ("template.task_type", template(v1::NewJob::default())),
        ("template.payload", template(v1::NewJob { payload: vec![0; (1 << 20) + 1].into(), ..job() })),
        ("template.priority", template(v1::NewJob { priority: 1001, ..job() })),
        ("template.timeout", template(v1::NewJob { timeout: Some(endless), ..job() })),
        (
            "template.run_at",
            template(v1::NewJob { start: Some(v1::new_job::Start::RunAt(Timestamp::default())), ..job() }),
        ),
        ("template.headers", template(v1::NewJob { headers: headers(vec!["howdah-schedule".into()]), ..job() })),
        (
            "template.headers",
            template(v1::NewJob { headers: headers((0..63).map(|n| n.to_string()).collect()), ..job() }),
        ),
        ("plan", v1::Schedule { plan: None, ..fine() }),
        ("period", v1::Schedule { plan: Some(WirePlan::Period(seconds(0))), ..fine() }),
        ("period", v1::Schedule { plan: Some(WirePlan::Period(seconds(-1))), ..fine() }),
        ("period", v1::Schedule { plan: Some(WirePlan::Period(seconds(3651 * 24 * 3600))), ..fine() }),
        ("cron.time_zone", v1::Schedule { plan: cron("* * * * *", "Europe/Atlantis"), ..fine() }),
        ("cron.time_zone", v1::Schedule { plan: cron("* * * * *", ""), ..fine() }),
        ("cron.expression", v1::Schedule { plan: cron("every day", "UTC"), ..fine() }),
        ("cron.expression", v1::Schedule { plan: cron("", "UTC"), ..fine() }),
        ("drift", v1::Schedule { plan: cron("* * * * *", "UTC"), drift: 2, ..fine() }),
        ("drift", v1::Schedule { drift: 3, ..fine() }),
        ("overlap", v1::Schedule { overlap: -1, ..fine() }),
        ("missed", v1::Schedule { missed: 99, ..fine() }),
        ("missed_limit", v1::Schedule { missed_limit: 5, ..fine() }),
        ("missed_limit", v1::Schedule { missed: 3, missed_limit: 1001, ..fine() }),
        ("start_time", v1::Schedule { start_time: at(-1), ..fine() }),
        ("end_time", v1::Schedule { end_time: at(253_402_300_800), ..fine() }),
        ("end_time", v1::Schedule { start_time: at(10), end_time: at(10), ..fine() }),
        ("end_time", v1::Schedule { start_time: at(10), end_time: at(9), ..fine() }),
        ("jitter", v1::Schedule { jitter: Some(seconds(61)), ..fine() }),
        ("jitter", v1::Schedule { plan: cron("* * * * *", "UTC"), jitter: Some(seconds(86_401)), ..fine() }),
    ];
    for (field, wire) in cases {
        let error = checked(wire).expect_err(field);
        assert_eq!(error.field(), Some(&*format!("schedule.{field}")), "{error}");
        assert!(error.to_string().len() < 500, "{error}");
    }
    assert_eq!(check(None, &ClusterSettings::DEFAULT).unwrap_err().field(), Some("schedule"));
}

#[test]
fn the_ends_of_every_range_are_allowed() {
    let headers = (0..62).map(|n| (n.to_string(), "v".into())).collect();
    let job = v1::NewJob { task_type: "t".into(), headers, ..Default::default() };
    let wire = v1::Schedule {
        name: "n".repeat(200),
        template: Some(job),
        plan: Some(WirePlan::Period(seconds(3650 * 24 * 3600))),
        missed: 3,
        missed_limit: 1000,
        start_time: Some(Timestamp { seconds: 0, nanos: 0 }),
        end_time: Some(Timestamp { seconds: 253_402_300_799, nanos: 0 }),
        jitter: Some(seconds(86_400)),
        ..fine()
    };
    assert_eq!(checked(wire).unwrap().missed, Missed::All(1000));
    assert!(checked(v1::Schedule { plan: cron("*/5 * * * * *", "Europe/Berlin"), ..fine() }).is_ok());
}

//! Tests definitions of schedules: create, replace, read and refuse.

use std::time::Duration;

use howdah_client::{NewJob, NewSchedule, Plan};
use howdah_proto::v1::{
    CreateScheduleRequest, GetScheduleRequest, ListSchedulesRequest, OverlapPolicy, Schedule, UpdateScheduleRequest,
    schedule,
};
use serde_json::Value;
use tonic::Code;
use tonic_types::StatusExt as _;

use super::{client, hourly, hourly_job, number, pass, until_schedule};
use crate::support::*;

#[tokio::test]
async fn a_definition_is_made_once_replaced_and_deleted() {
    let broker = TestBroker::start().await;
    let client = client(&broker).await;
    let job = || NewJob::new("d").payload("p").header("a", "1").header("b", "2").header("c", "3");
    let schedule = || NewSchedule::new("d", job(), Plan::every(HOUR)).start(far());
    let made = client.create_schedule(schedule()).await.expect("create");
    let again = client.create_schedule(schedule()).await.expect("the same again");
    assert_eq!(again.next_times, made.next_times);
    let error = client.create_schedule(schedule().overlap(OverlapPolicy::Skip)).await.expect_err("another");
    assert_eq!(error.code(), Code::AlreadyExists);
    let updated = client.update_schedule(schedule().overlap(OverlapPolicy::Skip), false).await.expect("update");
    assert_eq!((&updated.next_times, updated.overlap()), (&made.next_times, OverlapPolicy::Skip));
    assert_eq!(&updated.template.unwrap().payload[..], b"p");
    let slower = NewSchedule::new("d", NewJob::new("d"), Plan::every(HOUR * 2)).start(far() + HOUR);
    let updated = client.update_schedule(slower, false).await.expect("update");
    assert_eq!(updated.next_times[0].seconds, made.next_times[0].seconds + 3600, "by the new plan");
    assert_eq!(client.update_schedule(hourly("n"), false).await.expect_err("none").code(), Code::NotFound);
    client.update_schedule(hourly("n"), true).await.expect("made");
    let names: Vec<String> = client.list_schedules().await.expect("list").into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["d", "n"]);
    assert!(client.delete_schedule("d").await.expect("delete"));
    assert!(!client.delete_schedule("d").await.expect("delete"));
    assert!(client.get_schedule("d").await.expect("get").is_none());
    assert_eq!(client.pause_schedule("d").await.expect_err("none").code(), Code::NotFound);
}

#[tokio::test]
async fn at_most_ten_thousand_schedules_can_exist() {
    let broker = TestBroker::start().await;
    let client = client(&broker).await;
    client.create_schedule(hourly("first")).await.expect("create");
    let fill = "INSERT INTO howdah.schedule
                SELECT (jsonb_populate_record(s, jsonb_build_object('name', 'n' || n))).*
                FROM howdah.schedule s, generate_series(1, 9998) n";
    broker.sql(fill).await;
    let last = hourly("last");
    client.create_schedule(last.clone()).await.expect("create");
    let error = client.create_schedule(hourly("more")).await.expect_err("too many");
    assert_eq!(error.code(), Code::ResourceExhausted);
    client.create_schedule(last).await.expect("it is there");
    assert_eq!(client.list_schedules().await.expect("list").len(), 10_000);
}

#[tokio::test]
async fn a_list_comes_in_pages_without_payloads() {
    let broker = TestBroker::start().await;
    let client = client(&broker).await;
    for n in 0..5 {
        let job = NewJob::new("l").payload(vec![b'x'; 1 << 20]).header("h", "x".repeat(6000));
        client.create_schedule(hourly_job(&format!("l{n}"), job)).await.expect("create");
    }
    let mut schedules = broker.schedules();
    let (mut names, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = ListSchedulesRequest { page_size: 2, page_token };
        let page = schedules.list_schedules(request).await.expect("list").into_inner();
        assert!(page.schedules.len() <= 2);
        for schedule in page.schedules {
            let template = schedule.template.unwrap();
            assert_eq!((template.payload.len(), template.headers.len(), schedule.next_times.len()), (0, 1, 1));
            names.push(schedule.name);
        }
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(names, ["l0", "l1", "l2", "l3", "l4"]);
    let whole = schedules.get_schedule(GetScheduleRequest { name: "l0".into() }).await.expect("get").into_inner();
    assert_eq!(whole.schedule.unwrap().template.unwrap().payload.len(), 1 << 20);
    let bad = ListSchedulesRequest { page_token: "0174".into(), ..Default::default() };
    assert_eq!(schedules.list_schedules(bad).await.expect_err("another list's").code(), Code::InvalidArgument);
}

#[tokio::test]
async fn an_invalid_schedule_is_refused_with_the_name_of_its_field_and_not_stored() {
    let broker = TestBroker::start().await;
    let mut schedules = broker.schedules();
    let good = || hourly("bad").into_proto();
    let cron = |expression: &str, time_zone: &str| {
        let cron = howdah_proto::v1::Cron { expression: expression.into(), time_zone: time_zone.into() };
        Schedule { plan: Some(schedule::Plan::Cron(cron)), ..good() }
    };
    let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
    let zero = prost_types::Duration { seconds: 0, nanos: 0 };
    let cases = [
        ("schedule.cron.time_zone", cron("0 3 * * *", "Europe/Atlantis")),
        ("schedule.cron.time_zone", cron("0 3 * * *", "")),
        ("schedule.cron.expression", cron("at three", "UTC")),
        ("schedule.cron.expression", cron("0 3 30 2 *", "UTC")),
        ("schedule.period", Schedule { plan: Some(schedule::Plan::Period(zero)), ..good() }),
        ("schedule.plan", Schedule { plan: None, ..good() }),
        ("schedule.end_time", Schedule { start_time: at(4_000_000_000), end_time: at(3_999_999_999), ..good() }),
        ("schedule.end_time", Schedule { end_time: at(1_000_000_000), ..good() }),
        ("schedule.name", Schedule { name: "a b".into(), ..good() }),
        ("schedule.template", Schedule { template: None, ..good() }),
        ("schedule.template.task_type", Schedule { template: Some(new_job("a b", "")), ..good() }),
        ("schedule.missed_limit", Schedule { missed_limit: 7, ..good() }),
    ];
    for (field, schedule) in cases {
        for update in [false, true] {
            let schedule = Some(schedule.clone());
            let status = if update {
                let request = UpdateScheduleRequest { schedule, allow_missing: true };
                schedules.update_schedule(request).await.map(drop)
            } else {
                schedules.create_schedule(CreateScheduleRequest { schedule }).await.map(drop)
            };
            let status = status.expect_err(field);
            assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
            let violations = status.get_error_details().bad_request().expect("a BadRequest").field_violations.clone();
            assert_eq!(violations[0].field, field, "{status:?}");
        }
    }
    let stored = "SELECT (SELECT count(*) FROM howdah.schedule) + (SELECT count(*) FROM howdah.task_type)";
    assert_eq!(broker.count(stored).await, 0);
}

#[tokio::test]
async fn a_cron_schedule_lists_its_next_ten_times_in_its_time_zone() {
    let broker = TestBroker::start().await;
    let nightly = NewSchedule::new("c", NewJob::new("c"), Plan::cron("30 2 * * *", "Europe/Berlin"));
    let start = std::time::UNIX_EPOCH + Duration::from_secs(2_468_620_800);
    let made = client(&broker).await.create_schedule(nightly.start(start)).await.expect("create");
    // The schedule starts on 24 March 2048. On Sunday the 29th, the time 02:30 does not exist in Berlin, so the
    // schedule fires at 03:00.
    let times: Vec<i64> = made.next_times.iter().map(|time| time.seconds).collect();
    assert_eq!(times.len(), 10);
    let sql =
        |time: &i64| format!("SELECT extract(hour FROM to_timestamp({time}) AT TIME ZONE 'Europe/Berlin')::bigint");
    let mut hours = Vec::new();
    for time in &times {
        hours.push(broker.count(&sql(time)).await);
    }
    assert_eq!(hours.iter().filter(|hour| **hour == 3).count(), 1, "{hours:?} {times:?}");
    assert_eq!(hours.iter().filter(|hour| **hour == 2).count(), 9, "{hours:?} {times:?}");
}

#[tokio::test]
async fn every_option_of_a_job_is_in_the_jobs_of_a_schedule() {
    let broker = TestBroker::start().await;
    let job = NewJob::new("o")
        .payload(vec![7; 5_000])
        .header("mine", "1")
        .priority(-3)
        .delay(HOUR)
        .max_attempts(4)
        .key("key")
        .timeout(Duration::from_secs(9));
    client(&broker).await.create_schedule(hourly_job("o", job)).await.expect("create");
    pass(&broker.database, "o", "1 hour").await;
    until_schedule(&broker.database, "o", "fired = 1").await;
    let wanted = "SELECT count(*) FROM howdah.scheduled s JOIN howdah.payload p USING (id)
                  WHERE priority = -3 AND max_attempts = 4 AND key = 'key' AND timeout_ms = 9000
                    AND headers ->> 'mine' = '1' AND octet_length(p.data) = 5000
                    AND run_at > now() + interval '59 minutes'";
    assert_eq!(broker.count(wanted).await, 1);
}

#[tokio::test]
async fn coordination_options_of_a_template_apply_to_the_jobs_of_a_schedule() {
    let broker = TestBroker::start().await;
    let mut schedules = broker.schedules();
    let schedule = |name: &str, change: &dyn Fn(&mut howdah_proto::v1::NewJob)| {
        let mut schedule = hourly(name).into_proto();
        schedule.template.iter_mut().for_each(change);
        CreateScheduleRequest { schedule: Some(schedule) }
    };
    let hour = || howdah_proto::v1::new_job::Expiry::ExpireAfter(HOUR.try_into().unwrap());
    let coordinated = schedule("x", &|job| {
        job.expiry = Some(hour());
        job.limit_key = "tenant".into();
        job.next_stages = vec!["second".into(), "third".into()];
        job.key = "k".into();
        job.set_key_policy(howdah_proto::v1::KeyPolicy::Replace);
    });
    schedules.create_schedule(coordinated).await.expect("create");
    pass(&broker.database, "x", "1 hour").await;
    until_schedule(&broker.database, "x", "fired = 1 AND last_error IS NULL").await;
    let options =
        "SELECT count(*) FROM (SELECT options FROM howdah.ready UNION ALL SELECT options FROM howdah.waiting) j
                   WHERE options ->> 'limit_key' = 'tenant' AND jsonb_array_length(options -> 'next_stages') = 2
                     AND options ? 'expire_at_us'";
    assert_eq!(broker.count(options).await, 1);
    // The job of the next planned time has the same key and replaces the first job.
    pass(&broker.database, "x", "1 hour").await;
    until_schedule(&broker.database, "x", "fired = 2 AND skipped = 0").await;
    assert_eq!(broker.count(options).await, 1);
    // An absolute time, or a key of a single job, is invalid in the job template of a schedule.
    let at =
        || howdah_proto::v1::new_job::Expiry::ExpireAt(prost_types::Timestamp { seconds: 4_000_000_000, nanos: 0 });
    for (field, request) in [
        ("schedule.template.expire_at", schedule("y", &|job| job.expiry = Some(at()))),
        ("schedule.template.local_name", schedule("y", &|job| job.local_name = "a".into())),
        ("schedule.template.after_local", schedule("y", &|job| job.after_local = vec!["a".into()])),
        ("schedule.template.key_policy", schedule("y", &|job| job.key_policy = 2)),
    ] {
        let status = schedules.create_schedule(request).await.expect_err(field);
        let violations = status.get_error_details().bad_request().expect(field).field_violations.clone();
        assert_eq!(violations[0].field, field, "{status:?}");
    }
}

#[tokio::test]
async fn howdah_schedule_creates_lists_updates_pauses_runs_and_deletes_schedules() {
    let broker = TestBroker::start().await;
    let schedule = async |args: &[&str]| -> Result<String, (Option<i32>, String)> {
        let (status, out, err) = run(&[&["schedule"], args, &["--server", &broker.grpc]].concat(), b"").await;
        if status.success() { Ok(out) } else { Err((status.code(), err)) }
    };
    let json = |text: String| serde_json::from_str::<Value>(&text).expect("JSON");
    let create = ["create", "n", "report", "daily", "--cron", "30 2 * * *", "--time-zone", "Europe/Berlin", "--json"];
    let made = json(schedule(&[&create[..], &["--overlap", "skip", "--priority", "-5"]].concat()).await.unwrap());
    assert_eq!((&made["cron"]["expression"], &made["overlap"]), (&"30 2 * * *".into(), &"OVERLAP_POLICY_SKIP".into()));
    assert_eq!((made["next_times"].as_array().unwrap().len(), &made["template"]["priority"]), (10, &(-5).into()));
    schedule(&["create", "e", "tidy", "--every", "5m", "--jitter", "10s", "--drift", "end"]).await.unwrap();
    let list = schedule(&["list"]).await.unwrap();
    assert!(
        list.contains("every 5m from the end of the last job, delayed at random by up to 10s")
            && list.contains("30 2 * * *"),
        "{list}"
    );
    let updated = json(schedule(&["update", "n", "--cron", "0 4 * * *", "--json"]).await.unwrap());
    let daily = "ZGFpbHk=".into();
    assert_eq!((&updated["cron"]["expression"], &updated["template"]["payload"]), (&"0 4 * * *".into(), &daily));
    let shown = schedule(&["show", "n"]).await.unwrap();
    assert_eq!(shown.matches("T04:00:00+0").count(), 10, "{shown}");
    let paused = json(schedule(&["pause", "n", "--json"]).await.unwrap());
    assert_eq!((&paused["paused"], &paused["next_times"]), (&true.into(), &Value::Null));
    schedule(&["resume", "n"]).await.unwrap();
    let id: i64 = schedule(&["run", "n"]).await.unwrap().trim().parse().unwrap();
    assert_eq!(number(&broker.database, "n", "last_job_id").await, id);
    schedule(&["delete", "n"]).await.unwrap();
    assert_eq!(schedule(&["show", "n"]).await.unwrap_err().0, Some(1));
    let (status, error) =
        schedule(&["create", "x", "t", "--cron", "0 3 * * *", "--time-zone", "Mars"]).await.unwrap_err();
    assert!(status == Some(65) && error.contains("--time-zone is \"Mars\""), "{status:?} {error}");
    assert_eq!(schedule(&["create", "x", "t"]).await.unwrap_err().0, Some(2));
    assert_eq!(schedule(&["update", "e", "--priority", "3"]).await.unwrap_err().0, Some(2));
}

//! Tests time zones whose rules change, and time zones that a broker does not know.

use std::path::Path;

use super::*;

/// Name of a time zone that exists only in this test.
const ZONE: &str = "Test/Zone";

/// Writes the rules of the time zone, in the format of RFC 9636: always this many minutes ahead of UTC.
fn write_rules(directory: &Path, minutes: i32) {
    let counts: [u32; 6] = [0, 0, 0, 0, 1, 4];
    let header = [b"TZif2".as_slice(), &[0; 15], &counts.map(u32::to_be_bytes).concat()].concat();
    let block = [header.as_slice(), &(minutes * 60).to_be_bytes(), &[0, 0], b"TST\0"].concat();
    let rule = format!("\nTST-{}:{:02}\n", minutes / 60, minutes % 60);
    let file = directory.join(ZONE);
    std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
    std::fs::write(file, [block.as_slice(), &block, rule.as_bytes()].concat()).expect("a file");
}

/// Starts a broker with this name, which knows these time zones besides the bundled ones.
async fn broker_with_zones(database: &TestDatabase, name: &str, zones: &Path) -> ServingProgram {
    let zones = zones.to_str().expect("a path").to_owned();
    Program::serve_with(database, &[("TZDIR", zones), ("HOWDAH_NAME", name.to_owned())]).await
}

#[tokio::test]
async fn a_broker_with_newer_rules_of_a_zone_plans_the_next_time_by_them() {
    let (database, zones) = (database().await, tempfile::tempdir().expect("a directory"));
    write_rules(zones.path(), 60);
    let mut broker = broker_with_zones(&database, "old", zones.path()).await;
    let far = database.count("SELECT extract(hour FROM now() AT TIME ZONE 'UTC')::bigint + 12").await % 24;
    let daily = NewSchedule::new("d", NewJob::new("d"), Plan::cron(format!("24 {far} * * *"), ZONE));
    let before = client(&broker).await.create_schedule(daily).await.expect("create").next_times[0].seconds;
    let hourly = NewSchedule::new("h", NewJob::new("h"), Plan::cron("0 * * * *", "Europe/Berlin"));
    let berlin = client(&broker).await.create_schedule(hourly).await.expect("create").next_times[0].seconds;
    broker.kill().await;

    write_rules(zones.path(), 63);
    let broker = broker_with_zones(&database, "new", zones.path()).await;
    until_schedule(&database, "d", &format!("next_planned = to_timestamp({before} - 180) AND next_at = next_planned"))
        .await;
    assert!(number(&database, "h", "extract(epoch FROM next_planned)").await >= berlin);
    assert_eq!(number(&database, "d", "fired + skipped").await, 0);
    drop(broker);
}

#[tokio::test]
async fn a_schedule_that_a_broker_cannot_plan_is_fired_by_another_one_in_time() {
    let (database, zones) = (database().await, tempfile::tempdir().expect("a directory"));
    let without = tempfile::tempdir().expect("a directory");
    write_rules(zones.path(), 60);
    let mut knows = broker_with_zones(&database, "knows", zones.path()).await;
    let each_second = NewSchedule::new("s", NewJob::new("s"), Plan::cron("* * * * * *", ZONE)).missed_all(1000);
    client(&knows).await.create_schedule(each_second).await.expect("create");
    let mut lacks = broker_with_zones(&database, "lacks", without.path()).await;
    for _ in 0..5 {
        let fired = number(&database, "s", "fired").await;
        until_schedule(&database, "s", &format!("fired > {fired}")).await;
        assert_eq!(number(&database, "s", "(next_at > now() + interval '10 s')::integer").await, 0);
    }
    // Only the broker that does not know the time zone is left. It reports why the schedule does not fire, and keeps the
    // planned time.
    knows.kill().await;
    let reported =
        "last_error LIKE 'broker \"lacks\": cron.time_zone%Test/Zone%' AND next_at < now() AND next_at = next_planned";
    until_schedule(&database, "s", reported).await;
    let fired = number(&database, "s", "fired").await;
    let knows = broker_with_zones(&database, "knows", zones.path()).await;
    until_schedule(&database, "s", &format!("fired > {fired} + 2 AND skipped = 0")).await;
    let holes = "SELECT count(*) FROM (
        SELECT (headers ->> 'howdah-planned-time')::timestamptz AS at, lag((headers ->> 'howdah-planned-time')::timestamptz)
                   OVER (ORDER BY (headers ->> 'howdah-planned-time')::timestamptz) AS before FROM howdah.job) j
        WHERE at <> before + interval '1 second'";
    assert_eq!(database.count(holes).await, 0);
    lacks.kill().await;
    drop(knows);
}

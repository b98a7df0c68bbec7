//! The sample of backlogs, as brokers take it: each of them asks four times a minute, and one of them has its turn once.

use howdah_server::store::{Purpose, Statement};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::support::database;

/// A table of 90 days, 200,000 rows, that the planner knows. One row of it is too old.
const FILL: &str = "
    INSERT INTO howdah.task_type (name) SELECT 't' || i FROM generate_series(1, 100) i;
    INSERT INTO howdah.backlog SELECT t.id, 60, date_trunc('hour', now()) - h * interval '1 hour', 1, 1, 1, 1, 1
        FROM howdah.task_type t CROSS JOIN generate_series(1, 2000) h;
    INSERT INTO howdah.backlog SELECT min(id), 60, now() - interval '1 year', 1, 1, 1, 1, 1 FROM howdah.task_type;
    ANALYZE;";

/// What Postgres has done for a sample, and how often.
async fn run(client: &Client) -> String {
    let explain = "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) EXECUTE sample ('{t1}', '{1}', '{1}', '{1}', '{1}', '{1}')";
    let lines = client.simple_query(explain).await.expect("a plan");
    let lines = lines.iter().filter_map(|line| match line {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn a_broker_whose_turn_it_is_not_to_sample_reads_nothing_of_the_backlog_and_another_only_what_is_too_old() {
    let database = database().await;
    let client = database.connect().await;
    client.batch_execute(FILL).await.expect("rows");
    client.batch_execute(&Purpose::General.session()).await.expect("session");
    let prepare = format!("PREPARE sample AS {}", Statement::SampleBacklog.text());
    client.batch_execute(&prepare).await.expect("prepare");
    let looks = |plan: &str| -> Vec<String> {
        let of_backlog = plan.lines().filter(|line| line.contains("Scan") && line.contains("on backlog"));
        of_backlog.filter(|line| !line.contains("backlog_sample")).map(str::to_owned).collect()
    };
    // A plan is made for its values five times, and for any values from then on.
    for turn in 0..7 {
        client
            .batch_execute("UPDATE howdah.backlog_sample SET sampled = now() + interval '1 h'")
            .await
            .expect("update");
        let plan = run(&client).await;
        let scans = looks(&plan);
        assert!(!scans.is_empty(), "{plan}");
        assert!(scans.iter().all(|line| line.contains("never executed")), "{turn}: {plan}");

        client.batch_execute("UPDATE howdah.backlog_sample SET sampled = '-infinity'").await.expect("update");
        let plan = run(&client).await;
        let scans = looks(&plan);
        assert!(scans.iter().all(|line| line.contains("using backlog_by_start on backlog")), "{turn}: {plan}");
        assert!(!plan.contains("Rows Removed by Filter: 200"), "{turn}: {plan}");
    }
    let left = "SELECT count(*) FROM howdah.backlog WHERE starts < now() - interval '90 days'";
    assert_eq!(database.count(left).await, 0);
}

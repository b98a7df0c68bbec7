//! Tests the deletion of old backlog samples: every broker tries once a minute, and only one at a time deletes.

use howdah_engine::store::{Purpose, Statement};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::support::database;

/// SQL that fills 90 days of samples with 200,000 rows and analyzes the table. One row is old enough to be deleted.
const FILL: &str = "
    INSERT INTO howdah.task_type (name) SELECT 't' || i FROM generate_series(1, 100) i;
    INSERT INTO howdah.backlog SELECT t.id, 60, date_trunc('hour', now()) - h * interval '1 hour', 1, 1, 1, 1, 1
        FROM howdah.task_type t CROSS JOIN generate_series(1, 2000) h;
    INSERT INTO howdah.backlog SELECT min(id), 60, now() - interval '1 year', 1, 1, 1, 1, 1 FROM howdah.task_type;
    ANALYZE;";

/// Runs the statement that deletes old samples, and returns its plan.
async fn run(client: &Client) -> String {
    let lines = client.simple_query("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) EXECUTE forget").await.expect("a plan");
    let lines = lines.iter().filter_map(|line| match line {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn old_backlog_samples_are_deleted_by_index_and_by_one_broker_at_a_time() {
    let database = database().await;
    let (client, other) = (database.connect().await, database.connect().await);
    client.batch_execute(FILL).await.expect("rows");
    client.batch_execute(&Purpose::General.session(0)).await.expect("session");
    client.batch_execute(&format!("PREPARE forget AS {}", Statement::ForgetStatistics.text())).await.expect("prepare");
    let scans_of_backlog = |plan: &str| -> Vec<String> {
        let of_backlog = plan.lines().filter(|line| line.contains("Scan") && line.contains("on backlog"));
        of_backlog.filter(|line| !line.contains("backlog_sample")).map(str::to_owned).collect()
    };
    // Postgres makes a custom plan for each of the first five executions, and may use a generic plan later. Both kinds of plan
    // must be good.
    for execution in 0..7 {
        other.batch_execute("BEGIN; SELECT FROM howdah.backlog_sample FOR UPDATE").await.expect("a lock");
        let plan = run(&client).await;
        let scans = scans_of_backlog(&plan);
        assert!(!scans.is_empty(), "{plan}");
        assert!(scans.iter().all(|line| line.contains("never executed")), "{execution}: {plan}");

        other.batch_execute("ROLLBACK").await.expect("no lock");
        let plan = run(&client).await;
        let scans = scans_of_backlog(&plan);
        assert!(scans.iter().all(|line| line.contains("using backlog_by_start on backlog")), "{execution}: {plan}");
        assert!(!plan.contains("Rows Removed by Filter: 200"), "{execution}: {plan}");
    }
    let left = "SELECT count(*) FROM howdah.backlog WHERE starts < now() - interval '90 days'";
    assert_eq!(database.count(left).await, 0);
}

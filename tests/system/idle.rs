//! Tests the cost of an idle broker.

use crate::support::*;

#[tokio::test]
async fn an_idle_broker_with_a_hundred_workers_sends_at_most_two_statements_a_second() {
    // Uses a separate Postgres, and turns off autovacuum, whose commits would be counted too.
    let (_cluster, database) = crate::stores::unavailable::second_server().await;
    database.sql("ALTER SYSTEM SET autovacuum = off").await;
    database.sql("SELECT pg_reload_conf()").await;
    let broker = TestBroker::on(&database).await;
    let mut workers = Vec::new();
    for n in 0..100 {
        workers.push(broker.worker(&format!("type-{}", n % 10)).await);
    }
    let mut renewals = broker.database.changes("howdah.broker").await;
    let client = broker.database.connect().await;
    // Counts commits by the clock of the database, between renewals of the broker's row. Postgres counts the commits of
    // a connection up to 10 s late, or later on a slow machine. So the test waits for the first period with few
    // commits.
    let sql = "SELECT xact_commit + xact_rollback, extract(epoch FROM clock_timestamp())::float8
               FROM pg_stat_database WHERE datname = current_database()";
    let statement = client.prepare(sql).await.expect(sql);
    let mut samples: Vec<(i64, f64)> = Vec::new();
    with_timeout("a quiet time of three renewals", async {
        loop {
            let row = client.query_one(&statement, &[]).await.expect(sql);
            let (sent, at) = (row.get::<_, i64>(0), row.get::<_, f64>(1));
            samples.push((sent, at));
            // Subtracts the statements of the test itself: one per renewal in the period.
            if let [.., (earlier_sent, earlier), _, _, _] = samples[..]
                && (sent - earlier_sent - 3) as f64 <= 2.0 * (at - earlier)
            {
                return;
            }
            renewals.next().await;
        }
    })
    .await;
}

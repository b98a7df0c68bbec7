//! What waiting costs.

use crate::support::*;

#[tokio::test]
async fn an_idle_broker_with_a_hundred_workers_sends_at_most_two_statements_a_second() {
    // A Postgres of its own, in which autovacuum is off: it commits, too.
    let (_cluster, database) = crate::stores::away::apart().await;
    database.sql("ALTER SYSTEM SET autovacuum = off").await;
    database.sql("SELECT pg_reload_conf()").await;
    let broker = TestBroker::on(&database).await;
    let mut workers = Vec::new();
    for n in 0..100 {
        workers.push(broker.worker(&format!("type-{}", n % 10)).await);
    }
    let mut renewals = broker.database.changes("howdah.broker").await;
    let client = broker.database.connect().await;
    // The database's clock is the measure, and the broker's own renewals say when some seconds have passed. A
    // connection reports what it did within 10 s of falling idle, or later on a slow machine: so there is a first time
    // that is quiet, not each.
    let sql = "SELECT xact_commit + xact_rollback, extract(epoch FROM clock_timestamp())::float8
               FROM pg_stat_database WHERE datname = current_database()";
    let statement = client.prepare(sql).await.expect(sql);
    let mut looks: Vec<(i64, f64)> = Vec::new();
    soon("a quiet time of three renewals", async {
        loop {
            let row = client.query_one(&statement, &[]).await.expect(sql);
            let (sent, at) = (row.get::<_, i64>(0), row.get::<_, f64>(1));
            looks.push((sent, at));
            // One of each renewal, and one before, is this test's own.
            if let [.., (earlier_sent, earlier), _, _, _] = looks[..]
                && (sent - earlier_sent - 3) as f64 <= 2.0 * (at - earlier)
            {
                return;
            }
            renewals.next().await;
        }
    })
    .await;
}

//! Tests rules that every table, index, sequence and function of the schema must obey. The tests read the catalog, so they also
//! cover tables of later releases and partitions of later days.

mod replicated; // what logical replication leaves out
mod rights; // who may do what with which function and table

use howdah_core::config::Config;
use howdah_engine::store::Store;
use howdah_proto::v1::{BulkOperation, BulkSpec, JobFilter, RetryJobsRequest, StartBulkRequest};

use crate::support::*;

/// Runs a query and returns its rows as texts.
async fn texts(database: &TestDatabase, sql: &str) -> Vec<String> {
    let rows = database.connect().await.query(sql, &[]).await.expect(sql);
    rows.iter().map(|row| row.get(0)).collect()
}

/// Creates partitions of later days, and creates the default partitions again, as if an operator had dropped them.
async fn later_partitions(database: &TestDatabase) {
    let defaults = "SELECT c.oid::regclass::text FROM pg_class c
                    WHERE c.relnamespace = 'howdah'::regnamespace AND c.relkind = 'r' AND c.relname LIKE '%\\_default'";
    for default in texts(database, defaults).await {
        database.sql(&format!("DROP TABLE {default}")).await;
    }
    let store = Store::new(&Config::new(&database.url)).expect("store");
    assert!(store.make_partitions(6).await.expect("partitions") > 0);
}

/// Query for columns, attributes of types, and index expressions that are ordered by the database's collation. If the collation
/// changes (another C library, another server), such indexes are out of order, and lookups miss rows.
const COLLATED: &str = "
    SELECT c.relname || '.' || a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    WHERE c.relnamespace = 'howdah'::regnamespace AND c.relkind <> 'v' AND a.attnum > 0 AND NOT a.attisdropped
      AND a.attcollation NOT IN (SELECT 0 UNION ALL SELECT o.oid FROM pg_collation o WHERE o.collname IN ('C', 'POSIX'))
    ORDER BY 1";

#[tokio::test]
async fn no_table_type_or_index_is_ordered_by_the_collation_of_the_database() {
    let database = database().await;
    later_partitions(&database).await;
    assert_eq!(texts(&database, COLLATED).await, [""; 0]);
    // Checks that the query finds an index with the database's collation.
    database.sql("CREATE INDEX strange ON howdah.dead ((options ->> 'headers'))").await;
    assert_eq!(texts(&database, COLLATED).await, ["strange.expr"]);
}

#[tokio::test]
async fn keys_and_names_are_found_after_the_collation_of_the_database_has_changed() {
    let database = database().await;
    if !database.has_icu().await {
        return;
    }
    // The C collation sorts these keys by their bytes, ICU sorts them by letters.
    let key = "CASE n % 4 WHEN 0 THEN 'Key-' WHEN 1 THEN 'key_' WHEN 2 THEN 'ÄKey' ELSE '-KEY' END || n";
    let jobs = format!(
        "SELECT count(*) FROM generate_series(1, 400) n CROSS JOIN LATERAL (SELECT {key} AS k OFFSET 0) k
         WHERE howdah.enqueue('t', 'x', key => k.k, limit_key => k.k, request_key => 'r' || k.k) > 0"
    );
    let types = "SELECT count(howdah.enqueue(t, 'x'))
                 FROM unnest('{a-b,A_b,ab,aB,_x,-x,Zeta,alpha,z1,Z-2,z.3,a/4,Ab5,b:6}'::text[]) t";
    let stored = "SELECT (SELECT count(*) FROM howdah.ready WHERE key IS NOT NULL) * 1000
                  + (SELECT count(*) FROM howdah.job_key) + (SELECT count(*) FROM howdah.task_type) + (SELECT count(*) FROM howdah.request)";
    for sql in [&jobs[..], types] {
        assert!(database.count(sql).await > 0);
    }
    let before = database.count(stored).await;
    // Changes the collation of the database, as an upgrade of the C library does. Postgres does not rebuild indexes when the
    // collation changes.
    let change = "DO $$ BEGIN
        EXECUTE 'UPDATE pg_database SET datlocprovider = ''i'', '
            || (SELECT attname FROM pg_attribute WHERE attrelid = 'pg_database'::regclass AND attname IN ('daticulocale', 'datlocale'))
            || ' = ''und'' WHERE datname = current_database()';
    END $$";
    database.sql(change).await;
    // Connects under another application name, because existing sessions keep the collation with which they began.
    let database = database.named("after");
    assert_eq!(database.count("SELECT ('a' < 'B')::integer::bigint").await, 1, "the database does not sort by letters");
    for sql in [&jobs[..], types] {
        assert!(database.count(sql).await > 0);
    }
    assert_eq!(database.count(stored).await, before, "a repeated enqueue stored a key or a type twice");
    let broker = TestBroker::on(&database).await;
    let again = || broker.enqueue(new_job("Ab5", "x")).key("Key-4").request_key("ram");
    assert_eq!(again().await, again().await);
    let mut worker = broker.worker("t").await;
    worker.next().await;
}

/// Query for tables without a replica identity. If such tables are published, UPDATE and DELETE fail.
const WITHOUT_IDENTITY: &str = "
    SELECT c.relname::text FROM pg_class c
    WHERE c.relnamespace = 'howdah'::regnamespace AND c.relkind IN ('r', 'p') AND c.relreplident <> 'f'
      AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid
                      AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END)
    ORDER BY 1";

#[tokio::test]
async fn every_table_and_partition_has_a_replica_identity() {
    let database = database().await;
    later_partitions(&database).await;
    assert_eq!(texts(&database, WITHOUT_IDENTITY).await, [""; 0]);
    database.sql("CREATE PUBLICATION everything FOR ALL TABLES").await;
    let leaves = "SELECT c.oid::regclass::text FROM pg_class c WHERE c.relnamespace = 'howdah'::regnamespace AND c.relkind = 'r'";
    for table in texts(&database, leaves).await {
        database.sql(&format!("DELETE FROM ONLY {table} WHERE ctid IS NULL")).await;
    }
}

#[tokio::test]
async fn a_publication_of_all_tables_blocks_no_statement_of_a_broker() {
    let broker = TestBroker::start().await;
    broker.sql("CREATE PUBLICATION everything FOR ALL TABLES").await;
    // Runs a job, so that the broker aggregates statistics.
    let mut worker = broker.worker("t").await;
    broker.enqueue(new_job("t", "x")).await;
    let job = worker.next().await;
    worker.ack(&job).await;
    let summed = "SELECT NOT EXISTS (SELECT FROM howdah.statistics_change) AND EXISTS (SELECT FROM howdah.statistics)";
    broker.until("summed statistics", summed).await;
    // Retries a dead job with another large payload, which replaces the row in `howdah.payload`.
    let id = broker.enqueue(new_job("t", vec![7; 5_000])).await;
    let job = worker.next().await;
    worker.nack(&job, "broken").no_retry().await;
    let filter = Some(JobFilter { ids: vec![id], ..JobFilter::default() });
    let retry = RetryJobsRequest { filter, payload: Some(vec![8; 6_000].into()), ..RetryJobsRequest::default() };
    let retried = with_timeout("a retry", broker.jobs().retry_jobs(retry)).await.expect("retried").into_inner();
    assert_eq!((retried.retried_ids, worker.next().await.payload.len()), (vec![id], 6_000));
    // Cancels a job with a bulk operation, then undoes the bulk operation.
    broker.enqueue(new_job("other", "x")).await;
    let cancel = BulkSpec { operation: BulkOperation::Cancel as i32, task_type: "other".into(), ..BulkSpec::default() };
    let mut bulk_id = 0;
    for spec in [cancel, BulkSpec { operation: BulkOperation::Undo as i32, ..BulkSpec::default() }] {
        let spec = BulkSpec { undo_bulk_id: bulk_id, ..spec };
        let request = StartBulkRequest { spec: Some(spec), ..Default::default() };
        let started =
            with_timeout("a bulk operation", broker.bulks().start_bulk(request)).await.expect("started").into_inner();
        bulk_id = started.bulk.expect("a bulk operation").id;
        let ended = format!("SELECT state = 'completed' AND done = 1 FROM howdah.bulk WHERE id = {bulk_id}");
        broker.until("the end of the bulk operation", &ended).await;
    }
    assert_eq!(broker.count("SELECT count(*) FROM howdah.ready").await, 1);
    // Creates partitions for days whose rows are in the default partitions, so that the rows are moved.
    broker
        .sql(
            "INSERT INTO howdah.payload VALUES (1, now() + interval '5 days', 'x');
              INSERT INTO howdah.job_tag VALUES (1, now() + interval '5 days', 1, 1);
              INSERT INTO howdah.history (id, created, finished, type_id, outcome, attempt, max_attempts, priority)
              VALUES (1, now(), now() + interval '5 days', 1, 'succeeded', 1, 1, 0)",
        )
        .await;
    later_partitions_of(&broker.database, 6).await;
    let left = "SELECT (SELECT count(*) FROM howdah.payload_default) + (SELECT count(*) FROM howdah.job_tag_default)
                + (SELECT count(*) FROM howdah.history_default)";
    assert_eq!(broker.count(left).await, 0);
}

async fn later_partitions_of(database: &TestDatabase, days: i32) {
    let store = Store::new(&Config::new(&database.url)).expect("store");
    eventually("the partitions", async || match store.make_partitions(days).await {
        // Try again after a lock timeout, which happens when the broker creates the same partitions at the same time.
        Err(error) if error.to_string().contains("lock timeout") => false,
        made => made.is_ok(),
    })
    .await;
}

//! Tests a database whose rows were copied by logical replication, as in an upgrade to another Postgres version.

use howdah_cli::postgres::{Binaries, Cluster, ClusterConfig};

use super::*;

/// Pattern for names of sequences that hold hints and not ids.
const HINTS: &str = "'^(announced|fair_floor|fair_announced|fair_announced_from)_[0-9]$'";

/// Puts the database in the state of a copy by logical replication. Rows exist, but sequences restart at 1, and functions that
/// return a stored setting (`is_closed`, `has_grants`) return the default of a new schema.
async fn reset_all_but_rows(database: &TestDatabase) {
    database
        .sql(
            "DO $$ DECLARE s regclass; BEGIN
                FOR s IN SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'howdah'::regnamespace AND c.relkind = 'S' LOOP
                    EXECUTE format('ALTER SEQUENCE %s RESTART', s);
                END LOOP;
             END $$;
             CREATE OR REPLACE FUNCTION howdah.is_closed() RETURNS boolean LANGUAGE sql STABLE RETURN false;
             CREATE OR REPLACE FUNCTION howdah.has_grants() RETURNS boolean LANGUAGE sql STABLE RETURN false",
        )
        .await;
}

#[tokio::test]
async fn every_sequence_of_ids_is_compared_with_what_is_stored() {
    let database = database().await;
    let sequences = format!(
        "SELECT c.oid::regclass::text FROM pg_class c
         WHERE c.relnamespace = 'howdah'::regnamespace AND c.relkind = 'S' AND c.relname !~ {HINTS} ORDER BY 1"
    );
    let compared = "SELECT sequence::text FROM howdah.stored_ids() ORDER BY 1";
    assert_eq!(texts(&database, &sequences).await, texts(&database, compared).await);
}

#[tokio::test]
async fn a_broker_gives_out_no_id_that_is_stored() {
    let broker = TestBroker::start().await;
    for task_type in ["done", "ready", "later"] {
        broker.enqueue(task_type).await;
    }
    let mut worker = broker.worker("done").await;
    let job = worker.next().await;
    worker.ack(&job).await;
    // The job with the highest id is deleted and only its held key remains. The id sequence must continue after ids of held
    // keys too.
    let database = broker.database.clone();
    database.sql("SELECT howdah.enqueue('gone', 'x', key => 'k', key_hold => '1 day')").await;
    let highest = database.count("DELETE FROM howdah.ready WHERE key = 'k' RETURNING id").await;
    let spec = BulkSpec { operation: BulkOperation::Cancel as i32, task_type: "later".into(), ..BulkSpec::default() };
    let start = StartBulkRequest { spec: Some(spec), ..Default::default() };
    with_timeout("a bulk operation", broker.bulks().start_bulk(start)).await.expect("started");
    database.sql("SELECT howdah.grant_types('ann', 'work', 'done'); SELECT howdah.close_store('main', '')").await;
    drop(worker);
    broker.stop().await;
    let bulks = database.count("SELECT max(id) FROM howdah.bulk").await;
    let types = database.count("SELECT max(id)::bigint FROM howdah.task_type").await;

    reset_all_but_rows(&database).await;
    let broker = TestBroker::on(&database).await;
    assert_eq!(database.count("SELECT (howdah.has_grants() AND howdah.is_closed())::integer::bigint").await, 1);
    database.sql("SELECT howdah.open_store()").await;
    let mut id = 0;
    eventually("an open store", async || match broker.enqueue("new").answer().await {
        Ok(job) => {
            id = job.id;
            true
        }
        Err(_) => false,
    })
    .await;
    assert!(id > highest, "{id}");
    assert_eq!(database.count("SELECT nextval('howdah.bulk_id')").await, bulks + 1);
    assert!(database.count("SELECT id::bigint FROM howdah.task_type WHERE name = 'new'").await > types);
    let mut worker = broker.worker("new").await;
    worker.next().await;
}

#[tokio::test]
async fn a_broker_takes_the_number_of_a_copied_store_from_the_ids_of_its_jobs() {
    let database = database().await;
    database
        .sql(
            "SELECT howdah.enqueue('t', 'x');
             UPDATE howdah.ready SET id = 7 * howdah.ids_of_a_store() + 5",
        )
        .await;
    reset_all_but_rows(&database).await;
    let broker = TestBroker::on(&database).await;
    assert_eq!(broker.enqueue("t").await, 700_000_000_000_006);
}

/// Follows the steps of docs/operate/backup.md, between two databases of one server.
#[tokio::test]
async fn a_broker_goes_on_with_what_logical_replication_has_copied() {
    let dump = Binaries::find(None).expect("Postgres").program("pg_dump");
    if !dump.exists() {
        eprintln!("!!! {} is missing: logical replication is NOT tested", dump.display());
        return;
    }
    let mut config = ClusterConfig { max_connections: 100, ..cluster_config() };
    config.settings.push(("wal_level".into(), "logical".into()));
    let cluster = Cluster::start(config).await.expect("Postgres");
    for name in ["old", "new"] {
        cluster.create_database(name).await.expect(name);
    }
    let [old, new] = ["old", "new"].map(|name| TestDatabase { url: cluster.url(name) });
    let broker = TestBroker::on(&old).await;
    let waiting = broker.enqueue(new_job("t", vec![7; 5_000])).key("k").await;

    old.sql("CREATE PUBLICATION howdah FOR ALL TABLES WITH (publish_via_partition_root = true)").await;
    let mut command = tokio::process::Command::new(dump);
    let output = command.args(["--schema-only", "--no-publications", "--dbname", &old.url]).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    // Leaves out lines that begin with a backslash, because pg_dump writes commands there that only psql understands.
    let sql: Vec<&str> = text.lines().filter(|line| !line.starts_with('\\')).collect();
    new.sql(&sql.join("\n")).await;
    // Creates the replication slot first, because CREATE SUBSCRIPTION between two databases of one server would block
    // itself.
    old.sql("SELECT pg_create_logical_replication_slot('howdah', 'pgoutput')").await;
    let subscribe = format!(
        "CREATE SUBSCRIPTION howdah CONNECTION '{}' PUBLICATION howdah WITH (create_slot = false, slot_name = howdah)",
        keywords(&old.url)
    );
    new.sql(&subscribe).await;
    new.until("the initial copy of all tables", "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel").await;

    // Enqueues and runs a job after the initial copy. The job and its statistics must be replicated too.
    let mut worker = broker.worker("u").await;
    let finished = broker.enqueue(new_job("u", "x")).await;
    let job = worker.next().await;
    worker.ack(&job).await;
    let summed = "SELECT NOT EXISTS (SELECT FROM howdah.statistics_change) AND EXISTS (SELECT FROM howdah.statistics)";
    old.until("summed statistics", summed).await;
    drop(worker);
    broker.stop().await;
    let position: String =
        old.connect().await.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).await.unwrap().get(0);
    let arrived =
        format!("SELECT confirmed_flush_lsn >= '{position}' FROM pg_replication_slots WHERE slot_name = 'howdah'");
    old.until("the replication of all changes", &arrived).await;
    new.sql("DROP SUBSCRIPTION howdah").await;

    let broker = TestBroker::on(&new).await;
    let state = "SELECT count(*) FROM howdah.history WHERE id = ";
    assert_eq!(broker.count(&format!("{state}{finished}")).await, 1);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.statistics_change").await, 0);
    assert_eq!(
        broker.enqueue(new_job("t", "other")).key("k").outcome().await.id,
        waiting,
        "the replicated job holds its key"
    );
    assert!(broker.enqueue("new").await > finished);
    let mut worker = broker.worker("t").await;
    let job = worker.next().await;
    assert_eq!((job.id, job.payload.len()), (waiting, 5_000));
    worker.ack(&job).await;
}

/// Converts a URL to keywords for a subscription, because libpq of an old server may not know all parameters.
fn keywords(url: &str) -> String {
    let config: tokio_postgres::Config = url.parse().expect("a URL");
    let host = match &config.get_hosts()[0] {
        tokio_postgres::config::Host::Tcp(host) => host.clone(),
        tokio_postgres::config::Host::Unix(path) => path.to_string_lossy().into_owned(),
    };
    format!(
        "host={host} port={} user={} dbname={}",
        config.get_ports().first().unwrap_or(&5432),
        config.get_user().expect("a user"),
        config.get_dbname().expect("a database")
    )
}

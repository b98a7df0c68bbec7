//! Tests databases that were copied to another server, or whose server has default privileges.

use std::process::Command;

use howdah_cli::postgres::Binaries;

use super::*;

pub(super) const RESTORED: Condition = Condition {
    name: "Restored without privileges",
    cause: "`pg_restore --no-acl`, or a dump without `GRANT` and `REVOKE`: every role may then execute each function.",
    remedy: "`howdah migrate` sets the privileges again.",
    doctor: Doctor::FindsBeforeStart("rights"),
    probe: "second broker",
    exceptions: &[],
};

/// Copies a database with `pg_dump` and these options.
async fn dumped(database: &TestDatabase, options: &[&str]) -> TestDatabase {
    let dump = Command::new(Binaries::find(None).expect("Postgres").program("pg_dump"));
    let mut dump = dump;
    let output = dump.args(options).args(["--inserts", "--dbname", &database.url]).output().expect("pg_dump");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let sql = String::from_utf8(output.stdout).expect("a script");
    // Leaves out lines that begin with a backslash, because pg_dump writes commands there that only psql understands.
    let sql: Vec<&str> = sql.lines().filter(|line| !line.starts_with('\\')).collect();
    let copy = database.empty("copy", "").await;
    copy.connect().await.batch_execute(&sql.join("\n")).await.expect("a restore");
    copy
}

#[tokio::test]
async fn a_database_that_was_restored_without_privileges_works() {
    let database = database().await;
    let restored = dumped(&database, &["--no-acl", "--no-owner"]).await;
    RESTORED.diagnose(&["doctor", "--json", "--database-url", &restored.url]).await;
    let arena = Arena::on(&restored, |_| {}).await;
    RESTORED.hold(&arena, async || {}).await;
}

pub(super) const DEFAULT_PRIVILEGES: Condition = Condition {
    name: "Default privileges for another role",
    cause: "`ALTER DEFAULT PRIVILEGES … GRANT SELECT ON TABLES, EXECUTE ON FUNCTIONS TO report` before the first start of a broker.",
    remedy: "Nothing needs to be done: Howdah revokes such privileges on its own objects. Grant the roles of `howdah migrate --roles`.",
    doctor: Doctor::Nothing,
    probe: "retention",
    exceptions: &[],
};

#[tokio::test]
async fn default_privileges_for_another_role_open_nothing_and_stop_nothing() {
    let empty = database().await.empty("granted", "").await;
    let grant = "DO $$ BEGIN CREATE ROLE report_of_conditions; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;
                 ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO report_of_conditions;
                 ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO report_of_conditions;
                 ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO report_of_conditions";
    empty.sql(grant).await;
    let arena = Arena::on(&empty, |_| {}).await;
    DEFAULT_PRIVILEGES.hold(&arena, async || {}).await;
    let open =
        "SELECT count(*) FROM pg_class WHERE relnamespace = 'howdah'::regnamespace AND relkind IN ('r', 'p', 'v', 'S')
                AND (has_table_privilege('report_of_conditions', oid, 'SELECT'))";
    assert_eq!(empty.count(open).await, 0, "tables that the role may read");
    let open = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'howdah'::regnamespace
                AND has_function_privilege('report_of_conditions', oid, 'EXECUTE')";
    assert_eq!(empty.count(open).await, 0, "functions that the role may execute");
}

pub(super) const SEQUENCES: Condition = Condition {
    name: "Sequences behind their tables",
    cause: "Logical replication copies rows, but not the positions of sequences, so an upgraded server begins to count from 1.",
    remedy: "A broker that starts moves the sequences past the stored rows.",
    doctor: Doctor::FindsBeforeStart("sequences"),
    probe: "second broker",
    exceptions: &[],
};

#[tokio::test]
async fn a_broker_that_starts_moves_sequences_past_the_stored_rows() {
    let database = database().await;
    let before = Arena::on(&database, |_| {}).await;
    let behind = "SELECT setval(oid::regclass, (SELECT seqmin FROM pg_sequence WHERE seqrelid = oid), false)
                  FROM pg_class WHERE relnamespace = 'howdah'::regnamespace AND relkind = 'S'";
    // Stops the broker meanwhile, because the arena's schedule would enqueue jobs with ids that are already used.
    let arena = before
        .restarted(async |doctor| {
            database.sql(behind).await;
            SEQUENCES.diagnose(doctor).await;
        })
        .await;
    SEQUENCES.hold(&arena, async || {}).await;
}

//! Tests creation and replacement of the schema, also under another name.

use std::time::Duration;

use howdah_cli::postgres::Binaries;
use howdah_client::{NewJob, NewSchedule, Plan};
use howdah_core::config::Config;
use howdah_engine::store::{MigrationReport, Statement, Store};
use howdah_proto::v1::{self, JobState, TaskTypeSettings, UpdateTaskTypeRequest};

use crate::support::{TestBroker, TestDatabase, database, jobs_client, new_job, run, task_types_client, with_timeout};

/// Migrates a schema, as a broker does at its start.
async fn migrate(database: &TestDatabase, schema: &str) -> MigrationReport {
    let mut config = Config::new(&database.url);
    config.schema = schema.into();
    Store::new(&config).unwrap().migrate().await.unwrap()
}

/// Replaces a function by a stub and changes the stored hash, as if another release had created the schema's functions.
async fn pretend(database: &TestDatabase, release: &str) {
    let sql = format!(
        "CREATE OR REPLACE FUNCTION howdah.add_failure(failures jsonb, attempt smallint, error text, started timestamptz)
         RETURNS jsonb LANGUAGE sql STABLE AS 'SELECT NULL::jsonb';
         UPDATE howdah.schema_part SET hash = 'of another text', release = '{release}' WHERE part <> 'tables'"
    );
    database.connect().await.batch_execute(&sql).await.unwrap();
}

/// Whether `add_failure` is the function of this release and not the stub.
async fn is_ours(database: &TestDatabase) -> bool {
    database
        .count("SELECT coalesce(jsonb_array_length(howdah.add_failure('[]', 1::smallint, 'e', now())), 0)::bigint")
        .await
        == 1
}

#[tokio::test]
async fn a_new_schema_is_created_and_the_next_run_changes_nothing() {
    let database = database().await;
    let created = migrate(&database, "fresh").await;
    assert!(created.created && created.applied.is_empty() && created.replaced.is_empty(), "{created:?}");
    let written = "SELECT sum(xmin::text::bigint)::bigint FROM pg_proc WHERE pronamespace = 'fresh'::regnamespace";
    let before = database.count(written).await;
    let again = migrate(&database, "fresh").await;
    assert_eq!(again, MigrationReport { created: false, ..created });
    assert_eq!(database.count(written).await, before, "no function is written again");
}

#[tokio::test]
async fn functions_are_replaced_when_their_text_differs() {
    let database = database().await;
    pretend(&database, env!("CARGO_PKG_VERSION")).await;
    assert!(!is_ours(&database).await);
    let report = migrate(&database, "howdah").await;
    assert_eq!(report.replaced, ["functions", "view"]);
    assert!(is_ours(&database).await);
    pretend(&database, "0.0.9").await;
    assert_eq!(migrate(&database, "howdah").await.replaced, ["functions", "view"]);
    assert!(is_ours(&database).await);
    assert_eq!(migrate(&database, "howdah").await.replaced, [""; 0]);
}

#[tokio::test]
async fn an_older_release_leaves_newer_functions_alone() {
    let database = database().await;
    pretend(&database, "999.0.0-rc.1").await;
    let report = migrate(&database, "howdah").await;
    assert_eq!((report.newer.as_deref(), &report.replaced[..]), (Some("999.0.0-rc.1"), &[][..]));
    assert!(!is_ours(&database).await);
}

#[tokio::test]
async fn replacing_functions_keeps_rights_and_gives_none_to_public() {
    let database = database().await;
    database.connect().await.batch_execute("SELECT howdah.create_roles()").await.unwrap();
    pretend(&database, "0.0.9").await;
    migrate(&database, "howdah").await;
    let granted = "SELECT count(*) FROM pg_proc p WHERE pronamespace = 'howdah'::regnamespace
                   AND has_function_privilege('howdah_producer', p.oid, 'EXECUTE')";
    assert!(database.count(granted).await > 10);
    let public = "SELECT count(*) FROM pg_proc p CROSS JOIN LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
                  WHERE pronamespace = 'howdah'::regnamespace AND a.grantee = 0";
    assert_eq!(database.count(public).await, 0);
}

#[tokio::test]
async fn brokers_that_start_at_once_make_the_schema_once() {
    let database = database().await;
    let runs = (0..4).map(|_| migrate(&database, "shared"));
    let reports = with_timeout("the migrations", futures::future::join_all(runs)).await;
    assert_eq!(reports.iter().filter(|report| report.created).count(), 1, "{reports:?}");
    pretend(&database, "0.0.9").await;
    let runs = (0..4).map(|_| migrate(&database, "howdah"));
    let reports = with_timeout("the migrations", futures::future::join_all(runs)).await;
    assert_eq!(reports.iter().filter(|report| !report.replaced.is_empty()).count(), 1, "{reports:?}");
}

#[tokio::test]
async fn a_schema_of_a_development_version_is_refused_and_told_what_to_do() {
    let database = database().await;
    let client = database.connect().await;
    client
        .batch_execute("CREATE SCHEMA old; CREATE TABLE old.schema_history (version int4 PRIMARY KEY)")
        .await
        .unwrap();
    let (status, _, stderr) = run(&["migrate", "--database-url", &database.url, "--schema", "old"], b"").await;
    assert!(!status.success());
    assert!(stderr.contains("was made by a development version before 0.1.0"), "{stderr}");
    assert!(stderr.contains("another schema (--schema)"), "{stderr}");
}

#[tokio::test]
async fn howdah_migrate_says_what_it_did() {
    let database = database().await;
    let args = ["migrate", "--database-url", &database.url, "--schema", "told"];
    let (status, stdout, stderr) = run(&args, b"").await;
    assert!(status.success(), "{stderr}");
    assert_eq!(stdout, "created schema told\nschema told is up to date, its tables at version 0\n");
    database
        .connect()
        .await
        .batch_execute("UPDATE told.schema_part SET hash = '' WHERE part = 'functions'")
        .await
        .unwrap();
    let (_, stdout, _) = run(&args, b"").await;
    assert_eq!(stdout, "replaced the functions of schema told\nschema told is up to date, its tables at version 0\n");
}

#[tokio::test]
async fn an_option_that_a_release_adds_is_an_argument_without_making_calls_ambiguous() {
    let database = database().await;
    let client = database.connect().await;
    // Creates the functions of an older release: `enqueue` lacks the last option, and a role may call it.
    let before = "
        SELECT howdah.create_roles();
        DO $$ BEGIN
            EXECUTE (SELECT 'DROP FUNCTION ' || oid::regprocedure FROM pg_proc
                     WHERE pronamespace = 'howdah'::regnamespace AND proname = 'enqueue'
                       AND oid::regprocedure::text LIKE 'howdah.enqueue(character varying,text,%');
        END $$;
        CREATE FUNCTION howdah.enqueue(task_type varchar, payload text, headers jsonb DEFAULT NULL, key text DEFAULT NULL)
            RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint';
        UPDATE howdah.schema_part SET hash = '' WHERE part = 'functions'";
    client.batch_execute(before).await.unwrap();
    let (status, _, stderr) = run(&["migrate", "--database-url", &database.url], b"").await;
    assert!(status.success(), "{stderr}");
    let id: i64 = client.query_one("SELECT howdah.enqueue('t', 'x'::text, key => 'k')", &[]).await.unwrap().get(0);
    assert!(id > 0, "the call is ambiguous while the old function exists");
    let may = "SELECT bool_and(has_function_privilege('howdah_producer', oid, 'EXECUTE')) FROM pg_proc
               WHERE pronamespace = 'howdah'::regnamespace AND proname = 'enqueue'";
    assert!(client.query_one(may, &[]).await.unwrap().get::<_, bool>(0), "the role may not call the new function");
}

/// Uses every feature that has a separate table, in a schema with another name. Nothing may appear in the schema
/// `howdah`.
#[tokio::test]
async fn a_schema_of_another_name_works_end_to_end() {
    let database = database().await;
    let client = database.connect().await;
    client.batch_execute("DROP SCHEMA howdah CASCADE").await.unwrap();
    let broker = TestBroker::on_with(&database, |config| config.schema = "jobs_eu".into()).await;
    let mut worker = broker.worker("work").await;
    let limits = TaskTypeSettings { key_max_running: 1, max_running: 5, ..Default::default() };
    let request = UpdateTaskTypeRequest { task_type: "work".into(), settings: Some(limits), update_mask: None };
    task_types_client(&broker.grpc).await.update_task_type(request).await.unwrap();

    // Enqueues jobs by gRPC: plain, with a key, with a limit, with a dependency, with stages.
    let mut jobs = jobs_client(&broker.grpc).await;
    let mut enqueue = async |jobs_of: Vec<v1::NewJob>| {
        let request = v1::EnqueueJobsRequest { jobs: jobs_of, request_key: String::new() };
        jobs.enqueue_jobs(request).await.unwrap().into_inner().jobs
    };
    let first = enqueue(vec![new_job("work", "plain")]).await[0].id;
    let of_key = |payload: &str| v1::NewJob { key: "k".into(), ..new_job("work", payload) };
    let keyed = enqueue(vec![of_key("keyed"), of_key("kept")]).await;
    assert_eq!(keyed[0].id, keyed[1].id);
    let limited = |payload: &str| v1::NewJob { limit_key: "l".into(), ..new_job("work", payload) };
    enqueue(vec![limited("limited"), limited("limited")]).await;
    enqueue(vec![v1::NewJob { after: vec![first], next_stages: vec!["work".into()], ..new_job("work", "after") }])
        .await;
    // Enqueues jobs by SQL: plain, with a key, and many at once.
    client.query("SELECT jobs_eu.enqueue('work', 'sql')", &[]).await.unwrap();
    client.query("SELECT jobs_eu.enqueue('work', 'sql keyed', key => 'sql')", &[]).await.unwrap();
    client.query("SELECT jobs_eu.enqueue_many('work', ARRAY['many', 'many'])", &[]).await.unwrap();
    // A schedule, which fires at once.
    let connected = broker.client().await;
    let plan = Plan::every(Duration::from_secs(3600));
    connected.create_schedule(NewSchedule::new("hourly", NewJob::new("work").payload("planned"), plan)).await.unwrap();

    let mut seen = Vec::new();
    while seen.len() < 12 {
        let job = worker.next().await;
        seen.push(String::from_utf8(job.payload.to_vec()).unwrap());
        // One attempt ends by SQL, all others on the worker's stream.
        if job.payload == "sql keyed" && job.attempt == 1 {
            client.execute("SELECT jobs_eu.fail($1, $2, 'once', '0 s')", &[&job.id, &job.token]).await.unwrap();
        } else {
            worker.ack(&job).await;
        }
    }
    seen.sort_unstable();
    // The second stage of the job "after" gets the empty result of the first stage. The job "sql keyed" is delivered twice,
    // because its first attempt fails.
    let expected = [
        "",
        "after",
        "keyed",
        "limited",
        "limited",
        "many",
        "many",
        "plain",
        "planned",
        "sql",
        "sql keyed",
        "sql keyed",
    ];
    assert_eq!(seen, expected);
    let request = v1::GetJobRequest { id: first };
    let got = jobs_client(&broker.grpc).await.get_job(request).await.unwrap().into_inner().job.unwrap();
    assert_eq!(got.state(), JobState::Succeeded);
    assert_eq!(database.count("SELECT count(*) FROM jobs_eu.job WHERE state <> 'succeeded'").await, 0);
    assert_eq!(database.count("SELECT count(*) FROM pg_namespace WHERE nspname = 'howdah'").await, 0);
    drop(worker);
    broker.stop().await;
}

/// Restores a dump that pg_dump made, as in backups.
#[tokio::test]
async fn a_dump_is_restored_without_an_error_and_a_broker_goes_on_with_it() {
    let dump = Binaries::find(None).expect("Postgres").program("pg_dump");
    if !dump.exists() {
        eprintln!("!!! {} is missing: restoring a dump is NOT tested", dump.display());
        return;
    }
    let database = database().await;
    let client = database.connect().await;
    for sql in
        ["SELECT howdah.enqueue('work', 'plain')", "SELECT howdah.enqueue('work', 'later', delay => '1 h', key => 'k')"]
    {
        client.query(sql, &[]).await.unwrap();
    }
    let mut command = tokio::process::Command::new(dump);
    let output = command.args(["--inserts", "--dbname", &database.url]).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Leaves out lines with a backslash, which are psql commands.
    let text = String::from_utf8(output.stdout).unwrap();
    let sql: Vec<&str> = text.lines().filter(|line| !line.starts_with('\\')).collect();
    let restored = database.empty("restored", "").await;
    restored.connect().await.batch_execute(&sql.join("\n")).await.unwrap();

    assert_eq!(migrate(&restored, "howdah").await.replaced, Vec::<String>::new());
    assert_eq!(restored.count("SELECT count(*) FROM howdah.job").await, 2);
    let broker = TestBroker::on(&restored).await;
    let mut worker = broker.worker("work").await;
    assert_eq!(worker.next().await.payload, "plain");
    restored.connect().await.query("SELECT howdah.enqueue('work', 'sql')", &[]).await.unwrap();
    assert_eq!(worker.next().await.payload, "sql");
}

/// The default priority step is defined both in SQL and in Rust, so compare the two.
#[tokio::test]
async fn the_default_step_is_the_same_in_sql_and_in_rust() {
    let database = database().await;
    assert_eq!(database.count("SELECT howdah.default_step()").await, howdah_core::job::PRIORITY_STEP);
}

/// Statements use only built-in types, because a driver asks the database for each type that it does not know; behind a pooler,
/// once per connection.
#[tokio::test]
async fn no_statement_has_a_parameter_or_a_column_of_a_custom_type() {
    let database = database().await;
    let client = database.connect().await;
    for statement in Statement::ALL {
        let prepared =
            client.prepare(&statement.text()).await.unwrap_or_else(|error| panic!("{}: {error:?}", statement.name()));
        let types = prepared.params().iter().chain(prepared.columns().iter().map(|column| column.type_()));
        for found in types {
            assert!(found.oid() < 16_384, "{}: {found:?}", statement.name());
        }
    }
}

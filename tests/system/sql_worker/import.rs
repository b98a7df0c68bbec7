//! Tests `howdah import pg_task`, from a table with the columns that pg_task documents.

use howdah_proto::v1::{Drift, JobState};
use serde_json::{Value, json};

use super::SqlBroker;
use crate::support::*;

/// The table in pg_task's README, with its columns and defaults.
const TABLE: &str = r#"
    CREATE SCHEMA jobs;
    CREATE TYPE jobs.state AS ENUM ('PLAN', 'TAKE', 'WORK', 'DONE', 'STOP');
    CREATE TABLE jobs."Task" (
        "id" bigserial NOT NULL PRIMARY KEY,
        "parent" bigint,
        "plan" timestamptz NOT NULL DEFAULT CURRENT_TIMESTAMP,
        "start" timestamptz,
        "stop" timestamptz,
        "active" interval NOT NULL DEFAULT '1 week' CHECK ("active" > '0 sec'),
        "live" interval NOT NULL DEFAULT '0 sec',
        "repeat" interval NOT NULL DEFAULT '0 sec',
        "timeout" interval NOT NULL DEFAULT '0 sec',
        "count" int NOT NULL DEFAULT 0,
        "hash" int NOT NULL GENERATED ALWAYS AS (hashtext("group"||COALESCE("remote", ''))) STORED,
        "max" int NOT NULL DEFAULT 0,
        "pid" int,
        "state" jobs.state NOT NULL DEFAULT 'PLAN',
        "delete" bool NOT NULL DEFAULT true,
        "drift" bool NOT NULL DEFAULT false,
        "header" bool NOT NULL DEFAULT true,
        "string" bool NOT NULL DEFAULT true,
        "delimiter" "char" NOT NULL DEFAULT E'\t',
        "escape" "char" NOT NULL DEFAULT '',
        "quote" "char" NOT NULL DEFAULT '',
        "data" text,
        "error" text,
        "group" text NOT NULL DEFAULT 'group',
        "input" text NOT NULL,
        "null" text NOT NULL DEFAULT '\N',
        "output" text,
        "remote" text
    );
    INSERT INTO jobs."Task" (input) VALUES ('SELECT 1 AS a, 2 AS b');                                  -- 1
    INSERT INTO jobs."Task" (plan, input) VALUES (now() + '5 min', 'SELECT 2');                         -- 2
    INSERT INTO jobs."Task" (repeat, drift, input) VALUES ('5 min', true, 'SELECT 3');                  -- 3
    INSERT INTO jobs."Task" ("group", max, timeout, input) VALUES ('g', 2, '3 sec', 'SELECT 4');        -- 4
    INSERT INTO jobs."Task" (header, string, delimiter, quote, escape, "null", input, data, parent)     -- 5
        VALUES (false, false, ',', '"', '\', '-', 'SELECT 5 AS a, NULL AS b, ''"'' AS c', 'mine', 1);
    INSERT INTO jobs."Task" (remote, input) VALUES ('host=far user=me', 'SELECT 6');                    -- 6
    INSERT INTO jobs."Task" (remote, input) VALUES ('host=x password=s3cret', 'SELECT 7');              -- 7
    INSERT INTO jobs."Task" (plan, active, input) VALUES (now() - interval '1 h', '1 min', 'SELECT 8'); -- 8
    INSERT INTO jobs."Task" (repeat, input) VALUES ('1 month', 'SELECT 9');                             -- 9
    INSERT INTO jobs."Task" (state, input) VALUES ('WORK', 'SELECT 10'), ('DONE', 'SELECT 11');"#;

async fn import(broker: &SqlBroker, flags: &[&str]) -> Vec<Value> {
    import_table(broker, &broker.database, "jobs.\"Task\"", flags).await
}

async fn import_table(broker: &SqlBroker, from: &TestDatabase, table: &str, flags: &[&str]) -> Vec<Value> {
    let fixed = ["import", "pg_task", &from.url, "--server", &broker.grpc, "--table", table, "--json"];
    let (status, out, errors) = run(&[&fixed[..], flags].concat(), b"").await;
    assert!(status.success() && !out.contains("s3cret") && !errors.contains("s3cret"), "{errors}");
    out.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// Returns the last line of the import's output, without fields that differ between runs.
fn total(lines: &[Value]) -> Value {
    let last = lines.last().unwrap();
    json!([last["jobs"], last["schedules"], last["kept"], last["not_planned"], last["dry_run"]])
}

#[tokio::test]
async fn planned_tasks_of_pg_task_become_jobs_and_schedules_once() {
    let broker = SqlBroker::start().await;
    let client = broker.database.connect().await;
    client.batch_execute(TABLE).await.unwrap();
    let others = json!({"DONE": 1, "WORK": 1});
    let remote = ["--remote", "host=far user=me=far"];
    let dry = import(&broker, &[&remote[..], &["--dry-run"]].concat()).await;
    assert_eq!(total(&dry), json!([5, 1, 3, others, true]));
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job").await, 0);
    let moved = import(&broker, &remote).await;
    assert_eq!(total(&moved), json!([5, 1, 3, others, false]));
    let job = |task: usize| moved[task - 1]["job"].as_i64().expect("a job");
    let reason = |task: usize| moved[task - 1]["reason"].as_str().expect("a reason").to_owned();
    assert!(reason(7).contains("--remote") && reason(8).contains("plan") && reason(9).contains("--cron"));
    assert_eq!(moved[2]["schedule"], "pg_task.3");
    let schedule = broker.client.get_schedule("pg_task.3").await.unwrap().expect("the schedule");
    assert_eq!(schedule.drift(), Drift::End);
    // Each imported row of pg_task names its new job, and has a state that pg_task skips.
    let notes =
        client.query("SELECT output FROM jobs.\"Task\" WHERE state = 'DONE' AND output IS NOT NULL ORDER BY id", &[]);
    let notes: Vec<String> = notes.await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(notes[0], format!("moved to Howdah as job {}", job(1)));
    assert_eq!(notes.len(), 6);
    let look = broker.job(job(4)).await;
    assert_eq!((look.priority, look.limit_key.as_str()), (-2, "g"));
    assert_eq!(broker.state(job(2)).await, JobState::Scheduled);
    assert_eq!(broker.job(job(6)).await.headers["sql-database"], "far");
    broker.sql("UPDATE howdah.scheduled SET run_at = now()").await;
    broker.work(&["--drain", "--name", &format!("far={}", broker.database.url)]).await;
    assert_eq!(&broker.job(job(1)).await.result[..], b"a\tb\n1\t2");
    assert_eq!(&broker.job(job(5)).await.result[..], b"\"5\",-,\"\\\"\"");
    assert_eq!(&broker.job(job(6)).await.result[..], b"?column?\n6");
}

/// A table of pg_task in 2019: other names, no active period, text states, times without a zone, and any column may be null.
const TABLE_OF_2019: &str = "
    CREATE TABLE task (
        id bigserial PRIMARY KEY, dt timestamp NOT NULL DEFAULT now(), start timestamp, stop timestamp,
        queue text NOT NULL DEFAULT 'default', max int, pid int, request text NOT NULL, response text,
        state text NOT NULL DEFAULT 'QUEUE', timeout interval, delete bool NOT NULL DEFAULT false, repeat interval,
        drift bool NOT NULL DEFAULT true);
    INSERT INTO task (request) VALUES ('SELECT 1 AS a');
    INSERT INTO task (dt, request) VALUES (localtimestamp + interval '5 min', 'SELECT 2');
    INSERT INTO task (repeat, drift, request) VALUES ('5 min', true, 'SELECT 3'), ('5 min', false, 'SELECT 4');
    INSERT INTO task (queue, max, timeout, request) VALUES ('g', 3, '3 sec', 'SELECT 5');
    INSERT INTO task (state, request, response) VALUES ('DONE', 'SELECT 6', '6'), ('WORK', 'SELECT 7', NULL);";

#[tokio::test]
async fn planned_tasks_of_a_table_of_2019_become_jobs_and_schedules() {
    let broker = SqlBroker::start().await;
    broker.sql(TABLE_OF_2019).await;
    let fixed = ["import", "pg_task", &broker.database.url, "--server", &broker.grpc];
    let moved = import_table(&broker, &broker.database, "task", &["--dry-run"]).await;
    assert_eq!(total(&moved), json!([3, 2, 0, {"DONE": 1, "WORK": 1}, true]));
    let (status, out, errors) = run(&fixed, b"").await;
    assert!(
        status.success() && out.contains("3 tasks were moved as jobs, 2 as schedules; 0 not moved"),
        "{out} {errors}"
    );
    let id = |task: i64| format!("SELECT id FROM howdah.job WHERE headers ->> 'pg-task-id' = '{task}'");
    let (first, later, limited) = (broker.count(&id(1)).await, broker.count(&id(2)).await, broker.count(&id(5)).await);
    let job = broker.job(limited).await;
    assert_eq!((&*job.limit_key, job.priority, &job.payload[..]), ("g", -2, &b"SELECT 5"[..]));
    assert_eq!(job.limit_max, 3, "max itself is the limit of a group");
    assert_eq!((broker.job(first).await.limit_key.as_str(), broker.job(first).await.priority), ("default", -1000));
    assert_eq!(broker.state(later).await, JobState::Scheduled);
    for (name, drift) in [("pg_task.3", Drift::End), ("pg_task.4", Drift::Plan)] {
        assert_eq!(broker.client.get_schedule(name).await.unwrap().expect(name).drift(), drift);
    }
    let marked = format!(
        "SELECT count(*) FROM task WHERE state = 'DONE' AND stop IS NOT NULL AND id < 6 AND response LIKE 'moved to Howdah as %'
         AND (id <> 1 OR response LIKE '% job {first}')"
    );
    assert_eq!(broker.count(&marked).await, 5);
    broker.work(&["--drain"]).await;
    assert_eq!(&broker.job(first).await.result[..], b"a\n1");
}

#[tokio::test]
async fn a_table_without_a_column_that_all_versions_have_is_refused_with_the_name_of_the_column() {
    let broker = SqlBroker::start().await;
    for (column, words) in [("request", "no column input, nor request"), ("state", "no column state. ")] {
        let sql = format!("DROP TABLE IF EXISTS task; {TABLE_OF_2019} ALTER TABLE task DROP COLUMN {column}");
        broker.sql(&sql).await;
        let (status, out, errors) = run(&["import", "pg_task", &broker.database.url, "--dry-run"], b"").await;
        assert!(status.code() == Some(1) && out.is_empty() && errors.contains(words), "{errors}");
        assert!(errors.contains("task is not a table of pg_task") && errors.contains("--table"), "{errors}");
    }
}

#[tokio::test]
async fn an_import_that_was_interrupted_goes_on_and_doubles_nothing() {
    let broker = SqlBroker::start().await;
    let client = broker.database.connect().await;
    client.batch_execute(TABLE).await.unwrap();
    let first = import(&broker, &[]).await;
    // Undoes the changes of pg_task's rows, as if the last commit of the import had been lost. The jobs exist already.
    client.batch_execute("UPDATE jobs.\"Task\" SET state = 'PLAN', output = NULL WHERE id < 7").await.unwrap();
    let second = import(&broker, &["--delete"]).await;
    assert_eq!(first[..first.len() - 1], second[..second.len() - 1]);
    assert_eq!(broker.count("SELECT count(*) FROM jobs.\"Task\" WHERE id < 6").await, 0);
    assert_eq!(broker.count("SELECT count(*) FROM jobs.\"Task\" WHERE id = 6").await, 1, "no --remote");
    broker.until("the first run of 3", "SELECT sum(fired) = 1 FROM howdah.schedule").await;
    let jobs = broker.count("SELECT count(*) FROM howdah.job WHERE headers ? 'pg-task-id'");
    assert_eq!(jobs.await, 5, "1, 2, 4, 5, and the first run of 3");
}

#[tokio::test]
async fn a_failed_import_names_the_problem_and_no_password_of_the_connection_string() {
    let broker = SqlBroker::start().await;
    let server = ["--server", &broker.grpc];
    let cases = [
        (broker.database.url.as_str(), "public.task"),
        ("postgres://u:s3cret@127.0.0.1:1/d?connect_timeout=1", "cannot be reached"),
        ("postgres://u:s3cret@h/d?nonsense=1", "nonsense"),
    ];
    for (dsn, part) in cases {
        let (status, _, errors) = run(&[&["import", "pg_task", dsn][..], &server].concat(), b"").await;
        assert!(!status.success() && errors.contains(part) && !errors.contains("s3cret"), "{errors}");
    }
    let bad = ["import", "pg_task", "env:X", "--remote", "password=s3cret/x"];
    let (status, _, errors) = run(&bad, b"").await;
    assert_eq!(status.code(), Some(2), "{errors}");
}

#[tokio::test]
async fn an_import_moves_tasks_in_batches_and_skips_locked_and_oversized_ones() {
    let broker = SqlBroker::start().await;
    let client = broker.database.connect().await;
    client.batch_execute(&TABLE[..TABLE.find("INSERT").unwrap()]).await.unwrap();
    let many = "INSERT INTO jobs.\"Task\" (input) SELECT 'SELECT ' || n FROM generate_series(1, 500) n;
                UPDATE jobs.\"Task\" SET input = repeat('x', 5000000) WHERE id = 2;
                UPDATE jobs.\"Task\" SET input = repeat('x', 2000000) WHERE id = 3";
    client.batch_execute(many).await.unwrap();
    // Locks the row as pg_task does while it runs the task.
    client.batch_execute("BEGIN; SELECT FROM jobs.\"Task\" WHERE id = 1 FOR UPDATE").await.unwrap();
    let moved = import(&broker, &[]).await;
    assert_eq!(total(&moved), json!([497, 0, 2, {}, false]));
    assert!(moved[0]["reason"].as_str().unwrap().contains("4 MiB"));
    assert!(moved[1]["reason"].as_str().unwrap().contains("payload"), "the broker's limit: {}", moved[1]);
    client.batch_execute("ROLLBACK").await.unwrap();
    let planned = broker.count("SELECT sum(id)::bigint FROM jobs.\"Task\" WHERE state = 'PLAN'");
    assert_eq!(planned.await, 1 + 2 + 3);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job").await, 497);
}

/// Returns SQL that creates pg_task's table in another schema, without other objects.
fn table(schema: &str) -> String {
    TABLE[..TABLE.find("INSERT").unwrap()]
        .replace("jobs.", &format!("{schema}."))
        .replace("SCHEMA jobs", &format!("SCHEMA {schema}"))
}

#[tokio::test]
async fn tasks_of_two_tables_or_databases_are_never_one_schedule() {
    let (broker, other) = (SqlBroker::start().await, database().await);
    let client = broker.database.connect().await;
    let same = |schema: &str| {
        let row = "(plan, repeat, input) VALUES ('2100-01-01', '5 min', 'SELECT 1')";
        format!("{} INSERT INTO {schema}.\"Task\" {row};", table(schema))
    };
    client.batch_execute(&(same("a1") + &same("b1"))).await.unwrap();
    other.connect().await.batch_execute(&same("a1")).await.unwrap();
    let first = import_table(&broker, &broker.database, "a1.\"Task\"", &[]).await;
    assert_eq!(first[0], json!({"task": 1, "schedule": "pg_task.1"}));
    for (from, name) in [(&broker.database, "b1.\"Task\""), (&other, "a1.\"Task\"")] {
        let second = import_table(&broker, from, name, &[]).await;
        let reason = second[0]["reason"].as_str().expect("a reason");
        assert!(reason.contains("\"pg_task.1\" exists") && reason.contains("--schedule-prefix"), "{reason}");
        let left = from.count(&format!("SELECT count(*) FROM {name} WHERE state = 'PLAN'")).await;
        assert_eq!(left, 1, "it stays");
    }
    let separate = import_table(&broker, &broker.database, "b1.\"Task\"", &["--schedule-prefix", "b."]).await;
    assert_eq!(separate[0]["schedule"], "b.1");
    // Importing a task again updates the same schedule.
    client.batch_execute("UPDATE a1.\"Task\" SET state = 'PLAN'").await.unwrap();
    assert_eq!(import_table(&broker, &broker.database, "a1.\"Task\"", &[]).await, first);
    assert_eq!(broker.client.list_schedules().await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_dry_run_reports_the_same_as_the_import_and_invalid_rows_are_not_moved() {
    let broker = SqlBroker::start().await;
    let client = broker.database.connect().await;
    let rows = r#"
        INSERT INTO jobs."Task" (active, input) VALUES ('300000 years', 'SELECT 1');              -- 1
        INSERT INTO jobs."Task" (active, input) VALUES ('20 years', 'SELECT 2');                  -- 2: for ever
        INSERT INTO jobs."Task" (plan, input) VALUES ('294276-12-31', 'SELECT 3');                -- 3
        INSERT INTO jobs."Task" (plan, input) VALUES ('4000-01-01 BC', 'SELECT 4');               -- 4
        INSERT INTO jobs."Task" (timeout, input) VALUES ('300000 years', 'SELECT 5');             -- 5
        INSERT INTO jobs."Task" (timeout, input) VALUES ('100 days', 'SELECT 6');                 -- 6
        INSERT INTO jobs."Task" (repeat, input) VALUES ('170000000 days', 'SELECT 7');            -- 7
        INSERT INTO jobs."Task" ("group", input) VALUES (repeat('g', 201), 'SELECT 8');           -- 8
        INSERT INTO jobs."Task" (data, input) VALUES (repeat('d', 9000), 'SELECT 9');             -- 9
        INSERT INTO jobs."Task" (input) VALUES (repeat('x', 2000000));                            -- 10
        INSERT INTO jobs."Task" (plan, active, input) VALUES ('0001-01-01', '290000 years', 'SELECT 11'); -- 11
        INSERT INTO jobs."Task" (repeat, input) VALUES ('4000 days', 'SELECT 12');                -- 12
        INSERT INTO jobs."Task" (input) VALUES ('SELECT 13');                                     -- 13"#;
    client.batch_execute(&(table("jobs") + rows)).await.unwrap();
    let dry = import(&broker, &["--dry-run"]).await;
    let moved = import(&broker, &[]).await;
    assert_eq!(total(&moved), json!([2, 0, 11, {}, false]));
    assert_eq!(total(&dry), json!([2, 0, 11, {}, true]));
    for (dry, moved) in dry.iter().zip(&moved) {
        // Compares only the beginning of the reasons, because they contain times.
        let kind = |line: &Value| line["reason"].as_str().map(|text| text.chars().take(30).collect::<String>());
        assert_eq!(kind(dry), kind(moved));
    }
    let columns = [
        (1, "active"),
        (3, "plan"),
        (4, "plan"),
        (5, "timeout"),
        (6, "timeout"),
        (7, "repeat"),
        (8, "group"),
        (9, "data"),
        (10, "input"),
        (12, "repeat"),
    ];
    for (task, column) in columns {
        let reason = moved[task - 1]["reason"].as_str().expect("a reason");
        assert!(reason.contains(column), "{task}: {reason}");
    }
    let infinite = "INSERT INTO jobs.\"Task\" (active, timeout, input) VALUES ('infinity', 'infinity', 'SELECT 14')";
    // Infinite intervals exist only in Postgres 17 and later.
    if client.batch_execute(infinite).await.is_ok() {
        let moved = import(&broker, &[]).await;
        assert!(
            moved.iter().any(|line| line["task"] == 14 && line["reason"].to_string().contains("timeout")),
            "{moved:?}"
        );
    }
}

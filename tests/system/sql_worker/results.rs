//! Tests results of SQL jobs, as text and as JSON.

use howdah_proto::v1::JobState;
use serde_json::{Value, json};

use super::{SqlBroker, sql};

#[tokio::test]
async fn several_statements_give_names_rows_and_command_tags_as_pg_task_does() {
    let broker = SqlBroker::start().await;
    let text = "CREATE TABLE t (a int, b text);
        INSERT INTO t VALUES (1, 'one'), (2, NULL);
        SELECT a, b FROM t ORDER BY a;
        SELECT 3 AS c WHERE false;
        UPDATE t SET b = 'x' RETURNING a";
    assert_eq!(broker.result(sql(text)).await, "CREATE TABLE\nINSERT 0 2\na\tb\n1\tone\n2\t\\N\na\n1\n2");
    assert_eq!(broker.result(sql("")).await, "");
    assert_eq!(broker.result(sql("SELECT 1 WHERE false")).await, "");
}

#[tokio::test]
async fn headers_of_a_job_set_the_text_format_of_its_result() {
    let broker = SqlBroker::start().await;
    let values = r#"SELECT 1 AS a, 'x"\y' AS b, NULL::int AS c, 1.50::numeric(5,2) AS d"#;
    let plain = sql(values).header("sql-header", "types").header("sql-null", "-");
    assert_eq!(broker.result(plain).await, "a::integer\tb::text\tc::integer\td::numeric(5,2)\n1\tx\"\\y\t-\t1.50");
    let quoted = sql(values).header("sql-quote", "\"").header("sql-escape", "\\").header("sql-delimiter", "; ");
    assert_eq!(broker.result(quoted.clone()).await, "\"a\"; \"b\"; \"c\"; \"d\"\n1; \"x\\\"\\\\y\"; \\N; 1.50");
    let all = quoted.header("sql-quote-all", "true").header("sql-header", "none");
    assert_eq!(broker.result(all).await, "\"1\"; \"x\\\"\\\\y\"; \\N; \"1.50\"");
    let own = sql("CREATE TYPE mood AS ENUM ('good'); SELECT 'good'::mood AS m, ARRAY[1,2] AS n, 't'::bool AS o");
    assert_eq!(
        broker.result(own.header("sql-header", "types")).await,
        "CREATE TYPE\nm::mood\tn::integer[]\to::boolean\ngood\t{1,2}\tt"
    );
}

#[tokio::test]
async fn as_json_each_statement_is_an_object_with_columns_rows_and_command() {
    let broker = SqlBroker::start().await;
    let text = r#"SELECT 1 AS n, 'a"b' AS t, NULL::text AS z, true AS y, '{"k": [1]}'::jsonb AS j, 'NaN'::float8 AS f,
                  12345678901234567890.5 AS m;
                  CREATE TABLE t (); SELECT 1 AS one WHERE false"#;
    let result = broker.result(sql(text).header("sql-format", "json")).await;
    let parsed: Value = serde_json::from_str(&result).expect(&result);
    let columns = |names: &[(&str, &str)]| -> Vec<Value> {
        names.iter().map(|(name, kind)| json!({"name": name, "type": kind})).collect()
    };
    let first = columns(&[
        ("n", "integer"),
        ("t", "text"),
        ("z", "text"),
        ("y", "boolean"),
        ("j", "jsonb"),
        ("f", "double precision"),
        ("m", "numeric"),
    ]);
    assert_eq!(parsed[0]["columns"], Value::from(first));
    assert_eq!(parsed[0]["rows"][0], json!([1, "a\"b", null, true, {"k": [1]}, "NaN", 12345678901234567890.5]));
    assert!(result.contains("12345678901234567890.5"), "no digit is lost: {result}");
    assert_eq!(parsed[0]["command"], "SELECT 1");
    assert_eq!(parsed[1], json!({"command": "CREATE TABLE"}));
    assert_eq!(parsed[2], json!({"columns": columns(&[("one", "integer")]), "rows": [], "command": "SELECT 0"}));
}

#[tokio::test]
async fn a_result_that_is_too_large_is_stopped_in_the_server_and_fails_for_good() {
    let broker = SqlBroker::start().await;
    broker.sql("CREATE TABLE t (n int)").await;
    let rows = sql("INSERT INTO t VALUES (1); SELECT repeat('x', 1000) FROM generate_series(1, 10000000)");
    let row = sql("INSERT INTO t VALUES (2); SELECT repeat('x', 100000000)");
    for job in broker.done(vec![rows, row]).await {
        assert_eq!(job.state(), JobState::Dead);
        let error = &job.failures[0].error;
        assert!(error.contains("1048576 bytes") && error.contains("--max-output"), "{error}");
        broker.until_gone(job.id).await;
    }
    assert_eq!(broker.count("SELECT count(*) FROM t").await, 0, "rows of the rolled back statement");
    let id = broker.enqueue(vec![sql("SELECT repeat('x', 2000000)")]).await[0];
    broker.work(&["--max-jobs", "1", "--max-output", "3000000"]).await;
    // The broker may refuse a result that the worker accepts, because the broker's limit is lower.
    assert_ne!(broker.state(id).await, JobState::Ready);
}

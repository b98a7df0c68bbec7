//! Databases of other encodings.

use super::*;
use crate::support::*;

/// A database of this encoding.
async fn encoded(database: &TestDatabase, encoding: &str) -> TestDatabase {
    let admin = database.connect().await;
    let name: String = one(&admin, "SELECT current_database()::text").await;
    let other = format!("{name}_{}", encoding.to_lowercase());
    let sql = format!("CREATE DATABASE {other} ENCODING {encoding} TEMPLATE template0 LOCALE 'C'");
    admin.batch_execute(&sql).await.unwrap();
    TestDatabase { url: database.url.replacen(&name, &other, 1) }
}

#[tokio::test]
async fn a_new_schema_is_refused_where_texts_are_not_utf8() {
    let database = database().await;
    for encoding in ["LATIN1", "SQL_ASCII"] {
        let other = encoded(&database, encoding).await;
        let (status, _, stderr) = run(&["migrate", "--database-url", &other.url], b"").await;
        assert!(!status.success());
        assert!(stderr.contains(&format!("is {encoding}, and Howdah needs UTF8")), "{stderr}");
        assert!(stderr.contains("createdb --encoding=UTF8"), "{stderr}");
        assert_eq!(other.count("SELECT count(*) FROM pg_namespace WHERE nspname = 'howdah'").await, 0);
    }
}

/// One that an earlier version made there.
#[tokio::test]
async fn a_schema_that_is_there_is_migrated_in_latin1() {
    let database = database().await;
    let other = encoded(&database, "LATIN1").await;
    let client = other.connect().await;
    client
        .batch_execute(
            "CREATE SCHEMA howdah;
             CREATE TABLE howdah.schema_history (version int4 PRIMARY KEY, name varchar(255), applied_on varchar(255),
                                                 checksum varchar(255))",
        )
        .await
        .unwrap();
    let (status, _, stderr) = run(&["migrate", "--database-url", &other.url], b"").await;
    assert!(status.success(), "{stderr}");
    client.query("SELECT howdah.enqueue('t', $1::text, key => $1)", &[&"Gr\u{fc}\u{df}e"]).await.unwrap();
    assert_eq!(other.count("SELECT count(*) FROM howdah.job WHERE convert_from(payload, 'UTF8') = key").await, 1);
    let (code, message) = refused(&client, "SELECT howdah.enqueue(repeat('t', 201))").await;
    assert_eq!(code, SqlState::INVALID_PARAMETER_VALUE, "{message}");
}

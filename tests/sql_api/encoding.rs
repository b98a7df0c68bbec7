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

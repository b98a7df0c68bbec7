//! Tests databases with encodings other than UTF-8.

use crate::support::*;

#[tokio::test]
async fn a_new_schema_is_refused_where_texts_are_not_utf8() {
    let database = database().await;
    for encoding in ["LATIN1", "SQL_ASCII"] {
        let other = database.empty(&encoding.to_lowercase(), &format!("ENCODING {encoding} LOCALE 'C'")).await;
        let (status, _, stderr) = run(&["migrate", "--database-url", &other.url], b"").await;
        assert!(!status.success());
        assert!(stderr.contains(&format!("is {encoding}, and Howdah needs UTF8")), "{stderr}");
        assert!(stderr.contains("createdb --encoding=UTF8"), "{stderr}");
        assert_eq!(other.count("SELECT count(*) FROM pg_namespace WHERE nspname = 'howdah'").await, 0);
    }
}

//! Tests that the documented columns are the columns that exist.

use std::collections::BTreeSet;

use super::*;

/// Returns the words in backticks at the beginning of each row of the first table below a heading.
fn described(page: &str, heading: &str) -> BTreeSet<String> {
    let path = crate::support::root().join(page);
    let text = std::fs::read_to_string(path).expect(page);
    let (_, section) = text.split_once(&format!("\n{heading}\n")).expect(heading);
    let rows = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.split('|').nth(1).map(str::to_owned));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()).collect()
}

async fn columns(client: &Client, relation: &str) -> BTreeSet<String> {
    let sql = "SELECT attname::text FROM pg_attribute
               WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped";
    let rows = client.query(sql, &[&relation]).await.expect(relation);
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn the_view_of_jobs_and_the_audit_have_the_columns_that_their_pages_describe() {
    let database = database().await;
    let client = database.connect().await;
    for (relation, page, heading) in [
        ("howdah.job", "docs/reference/sql.md", "## The view `howdah.job`"),
        ("howdah.audit", "docs/operate/audit.md", "## Columns"),
    ] {
        assert_eq!(columns(&client, relation).await, described(page, heading), "{relation}");
    }
}

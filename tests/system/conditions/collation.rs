//! Tests the condition that texts sort in another order, as after an upgrade of the operating system's libraries.

use super::*;

pub(super) const CHANGED: Condition = Condition {
    name: "A changed collation",
    cause: "The database moves to a server with another C library, or its collation is changed.",
    remedy: "Howdah needs nothing: its identifiers are compared byte by byte. For other tables, `REINDEX DATABASE` and `ALTER DATABASE … REFRESH COLLATION VERSION`.",
    doctor: Doctor::Finds("collation"),
    probe: "enqueue with a key",
    exceptions: &[],
};

#[tokio::test]
async fn a_changed_collation_gives_no_key_to_two_jobs() {
    let arena = Arena::start().await;
    if !arena.broker.database.has_icu().await {
        return;
    }
    // The new collation also sorts numbers in texts by their value, so a9 comes before a10.
    let change = "UPDATE pg_database SET datlocprovider = 'i', {locale} = 'en-u-kn-true', datcollversion = '0' WHERE datname = current_database()";
    let client = arena.broker.database.connect().await;
    let version = arena.broker.count("SELECT current_setting('server_version_num')::bigint / 10000").await;
    let change = change.replace("{locale}", if version >= 17 { "datlocale" } else { "daticulocale" });
    client.batch_execute(&change).await.expect(&change);
    // Ends the other sessions, because they keep the collation with which they began.
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    client.batch_execute(end).await.expect(end);
    let sorted = "SELECT count(*) FROM (VALUES ('a10'), ('a9')) v (t) WHERE t > 'a9'";
    assert_eq!(arena.broker.count(sorted).await, 1, "the collation has not changed");
    CHANGED.hold(&arena, async || {}).await;
}

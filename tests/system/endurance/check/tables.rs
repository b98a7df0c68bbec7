//! Reads the job tables at the end of an endurance test.

use std::{collections::HashMap, time::Duration};

use tokio::time::{Instant, sleep};

use super::super::load::Load;
use crate::support::TestDatabase;

/// Row of a job at the end of an endurance test.
pub(super) struct Stored {
    pub(super) task_type: String,
    pub(super) state: String,
    pub(super) attempt: i32,
    pub(super) max_attempts: i32,
    pub(super) payload: String,
}

/// Waits until a store has no unfinished jobs.
pub(super) async fn drain(database: &TestDatabase) -> Result<(), String> {
    let client = database.connect().await;
    // A holder of a key whose attempt fails is cancelled if a successor waits for the key.
    let left = "SELECT count(*) FROM howdah.job WHERE state NOT IN ('succeeded', 'dead') AND task_type <> 'tick'
                AND (state, task_type) <> ('cancelled', 'keyed')";
    let (mut before, mut since) = (i64::MAX, Instant::now());
    loop {
        let now: i64 = client.query_one(left, &[]).await.expect(left).get(0);
        if now == 0 {
            return Ok(());
        }
        if now < before {
            (before, since) = (now, Instant::now());
        }
        if since.elapsed() > Duration::from_secs(60) {
            let which = "SELECT string_agg(state || ' ' || task_type || ' ' || n, ', ')
                         FROM (SELECT state, task_type, count(*) AS n
                         FROM howdah.job WHERE state <> 'succeeded' GROUP BY 1, 2) g";
            let which: Option<String> = client.query_one(which, &[]).await.expect(which).get(0);
            return Err(format!("{now} jobs do not end: {}", which.unwrap_or_default()));
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// Checks that the schedule `tick` fired once for each second between its first and last planned time. Returns the violation.
pub(super) async fn ticks(load: &Load) -> Option<String> {
    let sql =
        "SELECT count(*) = count(DISTINCT planned) AND count(*) = extract(epoch FROM max(planned) - min(planned)) + 1,
                      count(*), count(DISTINCT planned), min(planned)::text, max(planned)::text
               FROM (SELECT (headers ->> 'howdah-planned-time')::timestamptz AS planned
                     FROM howdah.job WHERE task_type = 'tick') t";
    let row = load.database.connect().await.query_one(sql, &[]).await.expect(sql);
    let (all, distinct): (i64, i64) = (row.get(1), row.get(2));
    let (from, to): (Option<String>, Option<String>) = (row.get(3), row.get(4));
    let wrong = format!("the schedule fired {all} times for {distinct} planned times from {from:?} to {to:?}");
    (row.get::<_, Option<bool>>(0) != Some(true)).then_some(wrong)
}

/// Returns the jobs of all stores, by id.
pub(super) async fn stored(load: &Load) -> HashMap<i64, Stored> {
    let sql = "SELECT id, task_type, state, attempt::integer, max_attempts::integer, payload FROM howdah.job";
    let mut rows = Vec::new();
    for database in load.databases() {
        rows.extend(database.connect().await.query(sql, &[]).await.expect(sql));
    }
    let count = rows.len();
    let job = |row: tokio_postgres::Row| {
        let payload = String::from_utf8_lossy(row.get::<_, &[u8]>(5)).into_owned();
        let (task_type, state) = (row.get(1), row.get(2));
        (row.get(0), Stored { task_type, state, attempt: row.get(3), max_attempts: row.get(4), payload })
    };
    let jobs: HashMap<i64, Stored> = rows.into_iter().map(job).collect();
    assert_eq!(jobs.len(), count, "a job is in two places");
    jobs
}

/// Returns the new id of each job that moved to another store, by its old id.
pub(super) async fn moved(load: &Load) -> HashMap<i64, i64> {
    let sql = "SELECT old_id, new_id FROM howdah.moved";
    let mut moved = HashMap::new();
    for database in load.databases() {
        let rows = database.connect().await.query(sql, &[]).await.expect(sql);
        moved.extend(rows.iter().map(|row| (row.get::<_, i64>(0), row.get::<_, i64>(1))));
    }
    moved
}

//! Tests that special statements for a single job (`enqueue_one.sql`, `enqueue_direct_one.sql`) and for few acks
//! (`settle_small_batch.sql`) have the same effects as the general statements.

use std::{collections::HashMap, time::Duration};

use howdah_core::{
    config::Config,
    job::{JobOptions, Lease, NewJob, Start, TaskTypeName, Tokens, TypeId},
};
use howdah_engine::store::{PlainJob, RequestKeys, ShortHistories, Store};
use serde_json::Value;

use crate::support::*;

/// Numbers of acks to test: one, the maximum of the special statement, and one more.
const COUNTS: [usize; 3] = [1, 16, 17];
const TYPES: [&str; 2] = ["t", "u"];
/// Names of types without history, and with history of failures only.
const FORGETFUL: [&str; 2] = ["none", "failures"];

/// Returns a job that has more options the higher its number is.
fn job(number: usize) -> NewJob {
    NewJob {
        task_type: TaskTypeName::parse(TYPES[number % 2]).expect("a name"),
        payload: format!("payload {number}").into(),
        headers: if number.is_multiple_of(3) {
            HashMap::from([("h".into(), number.to_string())])
        } else {
            HashMap::new()
        },
        priority: number as i16 - 3,
        start: Start::Now,
        max_attempts: None,
        key: None,
        timeout: number.is_multiple_of(4).then(|| Duration::from_secs(100 + number as u64)),
        fallback: None,
        next_stages: Vec::new(),
        options: number
            .is_multiple_of(5)
            .then(|| Box::new(JobOptions { tags: vec![number.to_string()], ..JobOptions::default() })),
    }
}

fn plain<'a>(jobs: &'a [NewJob], types: &'a [TypeId]) -> Vec<PlainJob<'a>> {
    let numbered = jobs.iter().zip(types.iter().cycle()).enumerate();
    numbered
        .map(|(number, (job, &type_id))| {
            let (max_attempts, rank_base) = (number as i16 + 1, i64::from(job.priority) * 1_000);
            PlainJob { job, type_id, max_attempts, rank_base, out_of_line: false }
        })
        .collect()
}

/// Returns the rows of a table by id, without columns that differ between runs. Times are relative to the creation of
/// the job.
async fn rows(database: &TestDatabase, table: &str) -> Vec<Value> {
    let sql = format!(
        "SELECT to_jsonb(j) - '{{id,token,created,leased_at,deadline,finished,rank,broker_id}}'::text[]
                || jsonb_build_object('rank', to_jsonb(j) -> 'rank', 'created', extract(epoch FROM created) * 1000000,
                                      'until', extract(epoch FROM (to_jsonb(j) ->> 'deadline')::timestamptz - created)) AS row
         FROM howdah.{table} j ORDER BY id"
    );
    let rows = database.connect().await.query(&sql, &[]).await.expect("rows");
    rows.iter().map(|row| row.get::<_, Value>("row")).map(by_creation).collect()
}

/// Makes the rank in a row relative to the creation time of the job.
fn by_creation(mut row: Value) -> Value {
    let created = row["created"].take().as_f64().expect("a time");
    if let Some(rank) = row["rank"].as_f64() {
        row["rank"] = (rank - created).into();
    }
    row
}

/// Returns for each type the numbers of enqueued and of succeeded jobs that the statistics have counted since the last
/// call.
async fn counted(database: &TestDatabase) -> Vec<(i32, i64, i64)> {
    let sql = "WITH taken AS (DELETE FROM howdah.statistics_change RETURNING *)
               SELECT type_id, coalesce(sum(enqueued), 0)::bigint, coalesce(sum(succeeded), 0)::bigint FROM taken
               GROUP BY type_id ORDER BY type_id";
    let rows = database.connect().await.query(sql, &[]).await.expect("counts");
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

/// Returns a store, its types, and the id of a registered broker. No broker runs, so no background task changes the store.
async fn store(database: &TestDatabase) -> (Store, Vec<TypeId>, i32) {
    let store = Store::new(&Config::new(&database.url)).expect("a store");
    store.create_task_types(&[TYPES, FORGETFUL].concat(), "").await.expect("types");
    let client = database.connect().await;
    let mut types = Vec::new();
    for name in [TYPES, FORGETFUL].concat() {
        types.push(
            client.query_one("SELECT id FROM howdah.task_type WHERE name = $1", &[&name]).await.expect("a type").get(0),
        );
    }
    let broker = store.register_broker("b", Duration::from_secs(3600)).await.expect("a broker");
    (store, types, broker)
}

fn expected_counts(count: usize, types: &[TypeId]) -> Vec<(i32, i64, i64)> {
    let jobs_of_type = |first: usize| ((count + 1 - first) / 2) as i64;
    [(types[0], jobs_of_type(0), 0), (types[1], jobs_of_type(1), 0)]
        .into_iter()
        .filter(|(_, jobs, _)| *jobs > 0)
        .collect()
}

#[tokio::test]
async fn small_and_large_batches_become_ready_alike() {
    let database = database().await;
    let (store, types, _) = store(&database).await;
    let mut before: Vec<Value> = Vec::new();
    for count in COUNTS {
        let jobs: Vec<NewJob> = (0..count).map(job).collect();
        let stored = store.enqueue_plain(&plain(&jobs, &types[..2]), RequestKeys::default()).await.expect("enqueue");
        assert!(stored.ids.len() == count && stored.ids.is_sorted(), "{:?}", stored.ids);
        let rows = rows(&database, "ready").await;
        assert_eq!(rows.len(), count);
        assert_eq!(rows[..before.len()], before);
        assert_eq!(
            database
                .count(&format!(
                    "SELECT count(*) FROM howdah.ready WHERE id = {} AND rank = {}",
                    stored.ids[0],
                    stored.now_us - 3_000
                ))
                .await,
            1
        );
        assert_eq!(counted(&database).await, expected_counts(count, &types));
        database.sql("DELETE FROM howdah.ready").await;
        before = rows;
    }
}

#[tokio::test]
async fn small_and_large_batches_are_leased_and_acked_alike() {
    let database = database().await;
    let (store, types, broker) = store(&database).await;
    let (mut leased_before, mut kept_before) = (Vec::new(), Vec::new());
    for count in COUNTS {
        let jobs: Vec<NewJob> = (0..count).map(job).collect();
        let tokens = Tokens::draw(count);
        let stored = store.enqueue_direct(&plain(&jobs, &types[..2]), RequestKeys::default(), broker, &tokens).await;
        let leases = stored.expect("enqueue").expect("the broker lives").leases;
        assert!(leases.len() == count && leases.is_sorted(), "{leases:?}");
        let leased = rows(&database, "leased").await;
        assert_eq!((leased.len(), &leased[..leased_before.len()]), (count, &leased_before[..]));
        assert_eq!(counted(&database).await, expected_counts(count, &types));
        let results: Vec<String> =
            (0..count).map(|n| if n % 2 == 0 { format!("result {n}") } else { String::new() }).collect();
        // Gives one of the acks a wrong token.
        let mut acks: Vec<(Lease, &[u8])> = leases.iter().copied().zip(results.iter().map(String::as_bytes)).collect();
        acks[count - 1].0.token ^= 1;
        let acked = store.settle_acks(&acks, &ShortHistories::default(), None).await.expect("acks");
        assert_eq!(acked.ids.len(), count - 1);
        acks[count - 1].0.token ^= 1;
        let acked = store.settle_acks(&acks, &ShortHistories::default(), None).await.expect("acks");
        assert_eq!(acked.ids, [leases[count - 1].id]);
        let kept = rows(&database, "history").await;
        assert_eq!((kept.len(), &kept[..kept_before.len()]), (count, &kept_before[..]));
        let done: Vec<_> = expected_counts(count, &types).into_iter().map(|(id, jobs, _)| (id, 0, jobs)).collect();
        assert_eq!(counted(&database).await, done);
        database.sql("DELETE FROM howdah.history").await;
        (leased_before, kept_before) = (leased, kept);
    }
}

#[tokio::test]
async fn small_and_large_batches_follow_the_history_settings_of_their_type() {
    let database = database().await;
    let (store, types, broker) = store(&database).await;
    let short = ShortHistories { none: vec![types[2]], failures: vec![types[3]], results: vec![types[3]] };
    for count in COUNTS {
        let jobs: Vec<NewJob> = (0..count).map(job).collect();
        for (type_id, kept) in [(types[0], count), (types[2], 0), (types[3], count / 2)] {
            let jobs = plain(&jobs, std::slice::from_ref(&type_id));
            let stored = store.enqueue_direct(&jobs, RequestKeys::default(), broker, &Tokens::draw(count)).await;
            let leases = stored.expect("enqueue").expect("the broker lives").leases;
            let result = |n: usize| if n % 2 == 1 { &b"result"[..] } else { b"" };
            let acks: Vec<(Lease, &[u8])> =
                leases.into_iter().enumerate().map(|(n, lease)| (lease, result(n))).collect();
            store.settle_acks(&acks, &short, None).await.expect("acks");
            assert_eq!(
                database.count("SELECT count(*) FROM howdah.history").await,
                kept as i64,
                "{count} of {type_id}"
            );
            database.sql("DELETE FROM howdah.history").await;
        }
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.leased").await, 0);
}

#[tokio::test]
async fn an_expired_broker_gets_no_leases_of_small_or_large_batches() {
    let database = database().await;
    let (store, types, broker) = store(&database).await;
    database.sql("UPDATE howdah.broker SET expires = now() - interval '1 second'").await;
    for count in COUNTS {
        let jobs: Vec<NewJob> = (0..count).map(job).collect();
        let jobs = plain(&jobs, &types[..2]);
        let stored = store.enqueue_direct(&jobs, RequestKeys::default(), broker, &Tokens::draw(count)).await;
        assert!(stored.expect("an answer").is_none(), "{count}");
    }
    assert_eq!(counted(&database).await, []);
    assert_eq!(database.count("SELECT count(*) FROM howdah.leased").await, 0);
}

#[tokio::test]
async fn a_closed_store_refuses_small_and_large_batches() {
    let database = database().await;
    let (store, types, broker) = store(&database).await;
    let jobs: Vec<NewJob> = (0..17).map(job).collect();
    // Repeats the batches until Postgres uses generic plans for the prepared statements.
    for count in COUNTS.repeat(3) {
        let jobs = plain(&jobs[..count], &types[..2]);
        store.enqueue_plain(&jobs, RequestKeys::default()).await.expect("ready");
        store.enqueue_direct(&jobs, RequestKeys::default(), broker, &Tokens::draw(count)).await.expect("leased");
    }
    let stored = database.count("SELECT count(*) FROM howdah.job").await;
    database.sql("SELECT howdah.close_store('main', '')").await;
    for count in COUNTS {
        let jobs = plain(&jobs[..count], &types[..2]);
        let ready = store.enqueue_plain(&jobs, RequestKeys::default()).await.expect_err("closed").to_string();
        let leased = store.enqueue_direct(&jobs, RequestKeys::default(), broker, &Tokens::draw(count)).await;
        for error in [ready, leased.expect_err("closed").to_string()] {
            assert!(error.contains("is closed to new jobs"), "{error}");
        }
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.job").await, stored);
}

#[tokio::test]
async fn a_request_without_jobs_stores_no_ids_when_batched_with_a_request_of_one_job() {
    let database = database().await;
    let (store, types, broker) = store(&database).await;
    let jobs = [job(0)];
    for (empty, full) in [("a", "b"), ("c", "d")] {
        let mut keys = RequestKeys::default();
        keys.push(empty, b"", 0, 0);
        keys.push(full, b"x", 0, 1);
        let ids = if empty == "a" {
            store.enqueue_plain(&plain(&jobs, &types[..2]), keys).await.expect("ready").ids
        } else {
            let stored = store.enqueue_direct(&plain(&jobs, &types[..2]), keys, broker, &Tokens::draw(1)).await;
            stored.expect("leased").expect("the broker lives").leases.iter().map(|lease| lease.id).collect()
        };
        let ids_of_key = |key: &str| {
            format!("SELECT coalesce(sum(id), 0)::bigint FROM howdah.request, unnest(ids) id WHERE key = '{key}'")
        };
        assert_eq!((database.count(&ids_of_key(empty)).await, database.count(&ids_of_key(full)).await), (0, ids[0]));
        assert_eq!(database.count(&format!("SELECT count(*) FROM howdah.request WHERE key = '{empty}'")).await, 1);
    }
}

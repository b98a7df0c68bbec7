//! Tests more task types than the limit permits.

use std::sync::Arc;

use howdah_core::{config::Config, job::TaskTypeName};
use howdah_engine::{registry::Registry, store::Store};
use howdah_proto::v1::{ClusterSettings, TaskTypeSettings};
use tonic::Code;

use crate::support::{JobOptions as _, TestBroker, Worker, new_job, with_timeout};

/// Starts a broker in a cluster that permits 100 task types, and creates all of them.
async fn full() -> TestBroker {
    let broker = TestBroker::start().await;
    broker.set_cluster(ClusterSettings { task_types: 100, ..ClusterSettings::default() }).await;
    broker.sql("INSERT INTO howdah.task_type (name) SELECT 'type/' || n FROM generate_series(1, 100) n").await;
    broker
}

#[tokio::test]
async fn a_task_type_over_the_limit_is_refused_by_every_way_in_and_the_others_go_on() {
    let broker = full().await;
    let exhausted = |status: &tonic::Status| {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        let text = status.message();
        assert!(text.contains(" task types, so \"new") && text.contains("howdah settings set task_types"), "{text}");
    };
    exhausted(&broker.enqueue("new").answer().await.expect_err("enqueued"));
    exhausted(&broker.enqueue(new_job("type/1", "").fallback("new/fallback")).answer().await.expect_err("enqueued"));
    exhausted(&broker.worker("new").refused().await);
    let settings = TaskTypeSettings { max_attempts: 3, ..TaskTypeSettings::default() };
    let request = howdah_proto::v1::UpdateTaskTypeRequest {
        task_type: "new".into(),
        settings: Some(settings),
        update_mask: None,
    };
    exhausted(&with_timeout("an answer", broker.task_types().update_task_type(request)).await.expect_err("set"));
    let client = broker.database.connect().await;
    for call in [
        "enqueue('new/sql', 'x')",
        "enqueue('new/sql', 'x', key => 'k')",
        "enqueue_batch('[{\"task_type\": \"new/sql\"}]')",
    ] {
        let error = client.batch_execute(&format!("SELECT howdah.{call}")).await.expect_err(call);
        let error = error.as_db_error().expect("an error of Postgres");
        assert_eq!(error.code().code(), "HW004", "{call}: {error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("howdah settings set task_types")), "{error:?}");
    }
    // At the limit, existing types still work. New types become possible when the limit is raised.
    let mut worker = Worker::connect(&broker.grpc, "type/1", 1).await;
    let id = broker.enqueue("type/1").await;
    let job = worker.next().await;
    assert_eq!(job.id, id);
    worker.ack(&job).await;
    broker.set_cluster(ClusterSettings { task_types: 101, ..ClusterSettings::default() }).await;
    broker.enqueue("new").await;
    exhausted(&broker.enqueue("newer").answer().await.expect_err("enqueued"));
    assert_eq!(broker.count("SELECT count(*) FROM howdah.task_type").await, 101);
}

#[tokio::test]
async fn a_type_that_is_unused_for_long_is_deleted_and_brokers_that_knew_it_make_it_again() {
    let a = TestBroker::start().await;
    // Broker `a` has the id of the type in its cache. The id becomes invalid when the type is deleted.
    let mut worker = Worker::connect(&a.grpc, "gone", 1).await;
    a.enqueue("gone").await;
    let job = worker.next().await;
    worker.ack(&job).await;
    drop(worker);
    a.enqueue(new_job("has/a/job", "").delay(crate::support::secs(3_600))).await;
    a.enqueue(new_job("has/a/job", "").delay(crate::support::secs(3_600)).fallback("is/a/fallback")).await;
    a.enqueue(new_job("has/a/job", "").delay(crate::support::secs(3_600)).next_stages(&["is/a/stage"])).await;
    a.set("has/settings", TaskTypeSettings { max_attempts: 3, ..TaskTypeSettings::default() }).await;
    a.sql("INSERT INTO howdah.task_type (name) VALUES ('recent'), ('asked/for'), ('used/by/sql')").await;
    a.sql(
        "UPDATE howdah.task_type SET unused_since = now() - interval '30 days' WHERE name <> 'recent';
           UPDATE howdah.task_type SET unused_since = now() - interval '3 days' WHERE name = 'recent'",
    )
    .await;
    // A worker subscribes to this type, so the type must not be deleted.
    let mut asking = Worker::connect(&a.grpc, "asked/for", 1).await;
    // An open transaction uses this type, so the type must not be deleted.
    let open = a.database.connect().await;
    open.batch_execute("BEGIN; SELECT howdah.enqueue('used/by/sql', 'x')").await.expect("enqueue");
    let b = a.another().await;
    a.until("the deletion of the unused type", "SELECT NOT EXISTS (SELECT FROM howdah.task_type WHERE name = 'gone')")
        .await;
    open.batch_execute("COMMIT").await.expect("commit");
    let left = "SELECT count(*) FROM howdah.task_type WHERE name IN ('has/a/job', 'is/a/fallback', 'is/a/stage',
                'has/settings', 'recent', 'asked/for', 'used/by/sql')";
    assert_eq!(a.count(left).await, 7);
    let used =
        "SELECT count(*) FROM howdah.ready r JOIN howdah.task_type t ON t.id = r.type_id WHERE t.name = 'used/by/sql'";
    assert_eq!(a.count(used).await, 1);
    assert_eq!(
        a.count("SELECT count(*) FROM howdah.task_type WHERE unused_since IS NOT NULL AND name LIKE 'has/%'").await,
        0
    );
    // Both brokers learn of the deletion, and create the type again at the next subscription or enqueue.
    b.settings_reach(&a).await;
    let mut worker = Worker::connect(&b.grpc, "gone", 1).await;
    let id = a.enqueue("gone").await;
    let job = worker.next().await;
    assert_eq!((job.id, job.task_type.as_str()), (id, "gone"));
    worker.ack(&job).await;
    let id = b.enqueue("asked/for").await;
    assert_eq!(asking.next().await.id, id);
}

#[tokio::test]
async fn at_the_limit_of_types_the_sweep_and_the_search_for_unused_types_end_long_before_their_timeouts() {
    let broker = TestBroker::start().await;
    broker.sql("INSERT INTO howdah.task_type (name) SELECT 'type/' || n FROM generate_series(1, 10000) n").await;
    broker
        .sql(
            "INSERT INTO howdah.ready (id, rank, created, type_id, attempt, max_attempts, priority, payload)
         SELECT nextval('howdah.job_id'), howdah.rank_now(), now(), id, 0, 10, 0, '' FROM howdah.task_type",
        )
        .await;
    let config = Config::new(&broker.database.url);
    let store = Store::new(&config).expect("a store");
    let client = broker.database.connect().await;
    let seconds = async || {
        let now = "SELECT extract(epoch FROM clock_timestamp())::float8";
        client.query_one(now, &[]).await.expect(now).get::<_, f64>(0)
    };
    let half = config.database_timeout.as_secs_f64() / 2.0;
    // A busy machine may slow down a step, but hardly in all of five rounds.
    for round in 1..=5 {
        let begun = seconds().await;
        let found = with_timeout("the sweep", store.sweep(None)).await.expect("the sweep").ready.len();
        let swept = seconds().await;
        let deleted = with_timeout("the search for unused types", store.delete_unused_task_types(1, 1_000))
            .await
            .expect("the search");
        let searched = seconds().await;
        assert!(found >= 10_000 && deleted.is_empty(), "{found} {deleted:?}");
        if swept - begun < half && searched - swept < half {
            break;
        }
        assert!(round < 5, "{} s, {} s", swept - begun, searched - swept);
    }
    // The broker still delivers jobs.
    let mut worker = Worker::connect(&broker.grpc, "type/9999", 1).await;
    let job = worker.next().await;
    worker.ack(&job).await;
}

#[tokio::test]
async fn a_name_is_found_although_the_cache_is_emptied_all_the_time() {
    let broker = TestBroker::start().await;
    broker.enqueue("t").await;
    let config = Config::new(&broker.database.url);
    let registry = Arc::new(Registry::new(Store::new(&config).expect("store"), &config));
    let emptied = Arc::downgrade(&registry);
    let emptying = std::thread::spawn(move || {
        while let Some(registry) = emptied.upgrade() {
            registry.clear_ids();
        }
    });
    let name = TaskTypeName::parse("t").expect("a name");
    for _ in 0..2_000 {
        assert!(registry.find(&name).await.expect("find").is_some());
        registry.resolve_now(std::slice::from_ref(&name), "").await.expect("resolve");
    }
    drop(registry);
    emptying.join().expect("no panic");
}

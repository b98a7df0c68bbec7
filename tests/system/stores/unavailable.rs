//! Tests an unavailable store: at the start of a broker, and in lists across all stores.

use howdah_cli::postgres::{Cluster, StopMode};
use howdah_core::job::StoreNumber;
use howdah_proto::v1::{
    ClusterSettings, JobState, ListJobsRequest, SettleStatus, TaskTypeSettings, UpdateSettingsRequest,
    UpdateTaskTypeRequest,
};
use tonic::Code;

use super::{
    calls::{at, enqueue_at, jobs, store_of},
    empty,
};
use crate::{hostile::http::get, support::*};

/// Starts a separate Postgres that tests can stop, with a database.
pub async fn second_server() -> (Cluster, TestDatabase) {
    let mut config = cluster_config();
    config.fsync = true;
    let cluster = Cluster::start(config).await.expect("Postgres");
    cluster.create_database("mail").await.expect("a database");
    let database = TestDatabase { url: cluster.url("mail") };
    (cluster, database)
}

/// Returns whether `/readyz` reports that the broker is ready, and the text of the response.
async fn readyz(broker: &Service, query: &str) -> (bool, String) {
    let answer = get(&broker.http, &format!("/readyz{query}")).await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
    (head.starts_with("HTTP/1.1 200"), body.to_owned())
}

#[tokio::test]
async fn a_store_that_is_away_when_a_broker_starts_is_served_when_it_comes() {
    let shop = empty("late_shop").await;
    let (mut cluster, mail) = second_server().await;
    cluster.stop(StopMode::Immediate).await;
    let stores = [("shop", &shop), ("mail", &mail)];
    let broker = TestBroker::on_stores(&stores, |config| {
        config.database_timeout = secs(8);
        // The unavailable store needs a configured number, because the broker cannot read its number and so cannot tell which
        // numbers are free.
        config.stores[1].number = StoreNumber::new(7);
    })
    .await;
    assert_eq!(store_of(enqueue_at(&broker, "shop", "t").await), 0);
    let mut worker = broker.worker("t").window(5).await;
    let first = worker.next().await;
    assert_eq!(worker.ack(&first).status().await, SettleStatus::Ok);
    let refused = with_timeout("an answer", broker.jobs().enqueue_jobs(at("mail", jobs(&["t"])))).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().starts_with("the database of store mail cannot be reached now"), "{refused}");
    let (is_ready, body) = readyz(&broker, "").await;
    assert!(is_ready && body.starts_with("store shop: ready\nstore mail: its database has not"), "{body}");
    assert!(!readyz(&broker, "?store=mail").await.0);
    cluster.restart().await.expect("restart");
    eventually("a store that is served", async || readyz(&broker, "?store=mail").await.0).await;
    let id = enqueue_at(&broker, "mail", "t").await;
    assert_eq!(store_of(id), 7);
    // A worker that connected before the store became available also gets jobs of this store.
    let job = worker.next().await;
    assert_eq!(job.id, id);
    assert_eq!(job.task_type, "t");
    assert_eq!(worker.ack(&job).status().await, SettleStatus::Ok);
    assert_eq!(broker.state(id).await, JobState::Succeeded);
}

#[tokio::test]
async fn a_stranger_learns_how_many_stores_are_ready_and_no_name_of_one() {
    let (shop, mail) = (empty("ready_shop").await, empty("ready_mail").await);
    let broker = TestBroker::on_stores(&[("shop", &shop), ("mail", &mail)], |config| config.auth.token = true).await;
    assert_eq!(readyz(&broker, "").await, (true, "2 of 2 stores are ready\n".to_owned()));
    assert_eq!(readyz(&broker, "?store=mial").await, (false, "there is no such store\n".to_owned()));
    assert!(readyz(&broker, "?store=mail").await.0);
}

#[tokio::test]
async fn no_store_number_is_assigned_while_another_store_is_unreachable() {
    let shop = empty("unknown_shop").await;
    let (mut cluster, mail) = second_server().await;
    cluster.stop(StopMode::Immediate).await;
    let args = |store: &str, database: &TestDatabase| format!("{store}={}", database.url);
    let (first, second) = (args("shop", &shop), args("mail", &mail));
    let listen = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--set", "database_timeout=8s"];
    let serve = [&["serve", "--store", &first, "--store", &second][..], &listen].concat();
    let (status, _, err) = run(&serve, b"").await;
    assert_eq!(status.code(), Some(2), "{err}");
    assert!(err.contains("store shop has had no job") && err.contains("set number in both"), "{err}");
}

#[tokio::test]
async fn a_list_says_which_store_did_not_answer() {
    let shop = empty("list_shop").await;
    let (mut cluster, mail) = second_server().await;
    let stores = [("shop", &shop), ("mail", &mail)];
    let broker = TestBroker::on_stores(&stores, |config| config.database_timeout = secs(8)).await;
    for store in ["shop", "mail"] {
        enqueue_at(&broker, store, "t").await;
    }
    let list = || ListJobsRequest { task_type: "t".into(), page_size: 10, ..ListJobsRequest::default() };
    let all = with_timeout("a list", broker.jobs().list_jobs(list())).await.unwrap();
    assert_eq!((all.get_ref().jobs.len(), all.metadata().get("howdah-unanswered-stores")), (2, None));
    cluster.stop(StopMode::Immediate).await;
    let some = with_timeout("a list", broker.jobs().list_jobs(list())).await.unwrap();
    assert_eq!(some.metadata().get("howdah-unanswered-stores").map(|names| names.to_str().unwrap()), Some("mail"));
    assert_eq!(some.get_ref().jobs.len(), 1);
    let (status, _, err) = run(&["--server", &broker.grpc, "jobs", "t"], b"").await;
    assert!(status.success() && err.contains("these stores did not answer") && err.contains("mail"), "{err}");
    // A change that concerns all stores takes effect in the available store, and returns an error.
    let settings = Some(ClusterSettings { batch: 5_000, ..ClusterSettings::default() });
    let request = UpdateSettingsRequest { settings, update_mask: None };
    let refused = with_timeout("an answer", broker.settings().update_settings(request)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(
        refused
            .message()
            .ends_with("stores changed: shop; stores not confirmed: mail; repeat the call, or select one store"),
        "{refused}"
    );
    // A change of a type that may also exist in the unavailable store fails in the same way.
    let settings = TaskTypeSettings { max_attempts: 3, ..TaskTypeSettings::default() };
    let request =
        || UpdateTaskTypeRequest { task_type: "t".into(), settings: Some(settings.clone()), update_mask: None };
    let refused = with_timeout("an answer", broker.task_types().update_task_type(request())).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(
        refused.message().starts_with("cannot check whether store mail has the task type; stores changed: shop"),
        "{refused}"
    );
    with_timeout("an answer", broker.task_types().update_task_type(at("shop", request()))).await.unwrap();
    assert_eq!(shop.count("SELECT batch::bigint FROM howdah.settings").await, 5_000);
    // A call that names only the unavailable store fails.
    let refused = with_timeout("an answer", broker.jobs().list_jobs(at("mail", list()))).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
}

#[tokio::test]
async fn metrics_name_the_store_and_are_described_once() {
    let (shop, mail) = (empty("metrics_shop").await, empty("metrics_mail").await);
    let broker = TestBroker::on_stores(&[("shop", &shop), ("mail", &mail)], |_| {}).await;
    enqueue_at(&broker, "mail", "t").await;
    let text = broker.metrics().await;
    assert!(text.contains("howdah_enqueued_total{store=\"mail\"} 1\n"), "{text}");
    assert!(text.contains("howdah_enqueued_total{store=\"shop\"} 0\n"), "{text}");
    assert_eq!(text.matches("# TYPE howdah_enqueued counter").count(), 1);
}

//! Tests a store that is closed to new jobs: what it refuses, and what continues.

use howdah_cli::postgres::StopMode;
use howdah_proto::v1::{
    CreateScheduleRequest, DrainStoreRequest, ListStoresRequest, OpenStoreRequest, RunScheduleRequest, Schedule,
    SettleStatus, Store, StoreState, StreamEnqueueRequest, schedule::Plan,
};
use tokio_stream::once;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use super::{
    calls::{at, enqueue_at, jobs, store_of, two},
    empty,
    unavailable::second_server,
};
use crate::{due::sweeps, http_producer::curl, support::*};

async fn drain(broker: &Service, store: &str) -> Store {
    let request = DrainStoreRequest { store: store.into() };
    with_timeout("a closed store", broker.stores().drain_store(request)).await.unwrap().into_inner().store.unwrap()
}

async fn open(broker: &Service, store: &str) -> Store {
    let request = OpenStoreRequest { store: store.into() };
    with_timeout("an open store", broker.stores().open_store(request)).await.unwrap().into_inner().store.unwrap()
}

async fn list(broker: &Service) -> Vec<Store> {
    with_timeout("a list", broker.stores().list_stores(ListStoresRequest::default())).await.unwrap().into_inner().stores
}

/// Asserts that an error is the one for a closed store.
fn assert_closed(store: &str, refused: &Status) {
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert_eq!(refused.get_details_error_info().expect("details").reason, "STORE_CLOSED");
    let message = refused.message();
    assert!(message.starts_with(&format!("store {store} is closed to new jobs since 20")), "{message}");
    assert!(message.ends_with(&format!("`howdah store open {store}` opens it")), "{message}");
}

/// Enqueues to this store, which must refuse, and returns the error.
async fn refused(broker: &Service, store: &str) -> Status {
    with_timeout("an answer", broker.jobs().enqueue_jobs(at(store, jobs(&["t"])))).await.unwrap_err()
}

/// Runs a SQL statement that enqueues, and asserts that the store refuses it.
async fn refused_by_sql(database: &TestDatabase, sql: &str) {
    let error = database.connect().await.batch_execute(sql).await.expect_err(sql);
    let error = error.as_db_error().expect("an answer");
    assert_eq!(error.code().code(), "HW005", "{sql}: {error}");
    assert!(error.message().contains("is closed to new jobs since 20"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.starts_with("howdah store open ")), "{error:?}");
}

#[tokio::test]
async fn a_closed_store_refuses_new_jobs_by_grpc_http_and_sql_and_takes_them_again_when_it_is_open() {
    let (shop, mail) = (empty("shop").await, empty("mail").await);
    let broker = TestBroker::on_stores(&[("shop", &shop), ("mail", &mail)], |config| config.http_enqueue = true).await;
    let other = TestBroker::on_stores(&[("shop", &shop), ("mail", &mail)], |_| {}).await;
    let id = enqueue_at(&broker, "mail", "t").await;
    let store = drain(&broker, "mail").await;
    assert_eq!((store.name.as_str(), store.number, store.state()), ("mail", 1, StoreState::Closed));
    assert!(store.has_unfinished_jobs && store.close_time.is_some());
    // Both brokers refuse at once, although a broker may not have read the notification of the closed store yet.
    assert_closed("mail", &refused(&other, "mail").await);
    assert_closed("mail", &refused(&broker, "mail").await);
    // The closed store is the home store of the type, so jobs whose request names no store are refused too.
    assert_closed("mail", &with_timeout("an answer", broker.jobs().enqueue_jobs(jobs(&["t"]))).await.unwrap_err());
    let request = StreamEnqueueRequest { sequence: 1, jobs: jobs(&["t"]).jobs, ..Default::default() };
    let mut answers = broker.jobs().stream_enqueue(at("mail", once(request))).await.unwrap().into_inner();
    let error = answers.message().await.unwrap().unwrap().error.expect("a refusal");
    assert_eq!((error.code, error.reason.as_str()), (Code::FailedPrecondition as i32, "STORE_CLOSED"));
    let (status, answer) = curl(&broker, "/v1/jobs/t", &[], b"x").await;
    assert_eq!((status, answer["details"][0]["reason"].as_str()), (400, Some("STORE_CLOSED")), "{answer}");
    for sql in [
        "SELECT howdah.enqueue('t')",
        "SELECT howdah.enqueue('t', 'x'::text)",
        "SELECT howdah.enqueue('t', 'x'::text, delay => '1 hour')",
        "SELECT howdah.enqueue('t', 'x'::text, fair_key => 'tenant')",
        "SELECT howdah.enqueue_many('t', ARRAY['a', 'b'])",
        "SELECT howdah.enqueue_batch('[{\"task_type\": \"t\"}]')",
        "CREATE TABLE orders (id int); SELECT howdah.on_change('orders', 't'); INSERT INTO orders VALUES (1)",
    ] {
        refused_by_sql(&mail, sql).await;
    }
    assert_eq!(mail.count("SELECT count(*) FROM howdah.job").await, 1);
    // Other stores accept jobs.
    assert_eq!(store_of(enqueue_at(&broker, "shop", "u").await), 0);
    let store = open(&other, "mail").await;
    assert_eq!((store.state(), store.close_time), (StoreState::Ready, None));
    mail.sql("SELECT howdah.enqueue('t')").await;
    assert_eq!(store_of(enqueue_at(&other, "mail", "t").await), 1);
    eventually("an enqueue at the other broker", async || {
        broker.jobs().enqueue_jobs(at("mail", jobs(&["t"]))).await.is_ok()
    })
    .await;
    assert_eq!(broker.cancel(&[id]).await, [id]);
}

#[tokio::test]
async fn a_session_that_has_planned_its_statements_is_refused_and_served_again() {
    let (_shop, mail, broker) = two().await;
    let client = mail.connect().await;
    let statement = client.prepare("SELECT howdah.enqueue('t')").await.unwrap();
    for _ in 0..8 {
        client.query_one(&statement, &[]).await.expect("a job");
    }
    drain(&broker, "mail").await;
    let error = client.query_one(&statement, &[]).await.unwrap_err();
    assert_eq!(error.code().map(tokio_postgres::error::SqlState::code), Some("HW005"));
    open(&broker, "mail").await;
    client.query_one(&statement, &[]).await.expect("a job");
}

#[tokio::test]
async fn jobs_of_a_closed_store_go_on_to_their_end() {
    let (_shop, mail, broker) = two().await;
    let first = enqueue_at(&broker, "mail", "t").await;
    let second = enqueue_at(&broker, "mail", "t").await;
    let staged = broker.enqueue("t").next_stages(&["t.next"]).await;
    assert_eq!(store_of(staged), 1);
    drain(&broker, "mail").await;
    let mut worker = broker.worker("t").await;
    let job = worker.next().await;
    assert_eq!(job.id, first);
    // The job fails once and is retried.
    worker.nack(&job, "no").at_once().await;
    let mut ended = Vec::new();
    for _ in 0..3 {
        let job = worker.next().await;
        assert_eq!(worker.ack(&job).status().await, SettleStatus::Ok);
        ended.push(job.id);
    }
    ended.sort_unstable();
    assert_eq!(ended, [first, second, staged]);
    assert!(list(&broker).await[1].has_unfinished_jobs, "the job in its next stage is unfinished");
    let mut next = broker.worker("t.next").await;
    let job = next.next().await;
    assert_eq!((job.id, next.ack(&job).status().await), (staged, SettleStatus::Ok));
    assert!(!list(&broker).await[1].has_unfinished_jobs);
    assert_eq!(mail.count("SELECT count(*) FROM howdah.history").await, 3);
}

fn every(seconds: u64) -> Option<Schedule> {
    let plan = Some(Plan::Period(wire(secs(seconds))));
    let start_time = Some(far().into());
    Some(Schedule { name: "s".into(), template: Some(new_job("t", "p")), plan, start_time, ..Schedule::default() })
}

#[tokio::test]
async fn schedules_of_a_closed_store_do_not_fire_until_the_store_is_open() {
    let broker = TestBroker::start().await;
    broker.schedules().create_schedule(CreateScheduleRequest { schedule: every(3600) }).await.unwrap();
    assert_eq!(drain(&broker, "").await.name, "default");
    let run = || RunScheduleRequest { name: "s".into(), request_key: String::new() };
    assert_closed("default", &with_timeout("an answer", broker.schedules().run_schedule(run())).await.unwrap_err());
    let new = every(60).map(|schedule| Schedule { name: "new".into(), ..schedule });
    let refused = broker.schedules().create_schedule(CreateScheduleRequest { schedule: new }).await.unwrap_err();
    assert_closed("default", &refused);
    // Makes the schedule due. Two sweeps find the schedule and must not fire it.
    broker.sql("UPDATE howdah.schedule SET next_planned = now() - interval '1 second', next_at = now()").await;
    let before = sweeps(&broker).await;
    eventually("two sweeps", async || sweeps(&broker).await >= before + 2).await;
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job").await, 0);
    open(&broker, "").await;
    broker.until("a job of the schedule", "SELECT count(*) = 1 FROM howdah.job").await;
    with_timeout("an answer", broker.schedules().run_schedule(run())).await.unwrap();
}

#[tokio::test]
async fn new_types_get_their_homes_in_stores_that_are_open() {
    let (_shop, _mail, broker) = two().await;
    drain(&broker, "shop").await;
    for nth in 0..8 {
        assert_eq!(store_of(broker.enqueue(&*format!("type.{nth}")).await), 1);
    }
    let refused = with_timeout("an answer", broker.jobs().enqueue_jobs(at("shop", jobs(&["u"])))).await.unwrap_err();
    assert_closed("shop", &refused);
}

#[tokio::test]
async fn a_store_that_does_not_exist_is_not_closed() {
    let (_shop, _mail, broker) = two().await;
    let request = |store: &str| DrainStoreRequest { store: store.into() };
    let refused = with_timeout("an answer", broker.stores().drain_store(request("mial"))).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    assert!(refused.message().contains("this broker serves shop, mail"), "{refused}");
    let refused = with_timeout("an answer", broker.stores().drain_store(request(""))).await.unwrap_err();
    assert!(refused.message().contains("name one of shop, mail"), "{refused}");
    let states = list(&broker).await.iter().map(Store::state).collect::<Vec<_>>();
    assert_eq!(states, [StoreState::Ready, StoreState::Ready]);
}

#[tokio::test]
async fn howdah_store_drain_shows_the_jobs_left_and_ends_after_the_last_one() {
    let (_shop, _mail, broker) = two().await;
    let id = enqueue_at(&broker, "mail", "t").await;
    let command = ["store", "drain", "mail", "--server", &broker.grpc, "--json", "--reason", "moves"];
    let mut draining = Program::noted(&command, &[]);
    let closed = "store mail is closed to new jobs; `howdah store open mail` opens it\njobs left: ";
    eventually("the output of the drain", async || draining.last_words().starts_with(closed)).await;
    assert_eq!(list(&broker).await[1].state(), StoreState::Closed);
    let mut worker = broker.worker("t").await;
    let job = worker.next().await;
    worker.ack(&job).await;
    assert_eq!(job.id, id);
    let line = draining.line().await;
    let status = draining.ended().await;
    let output = draining.last_words();
    assert!(status.success(), "{output}");
    assert!(output.ends_with("all jobs of the store have ended\n"), "{output}");
    assert!(line.contains("\"state\":\"STORE_STATE_CLOSED\"") && !line.contains("\"has_unfinished_jobs\""), "{line}");
    let (status, stdout, _) = run(&["store", "list", "--server", &broker.grpc], b"").await;
    assert!(status.success() && stdout.contains("mail        1  closed"), "{stdout}");
    let (status, _, stderr) = run(&["store", "open", "mail", "--server", &broker.grpc], b"").await;
    assert!(status.success() && stderr.contains("store mail is open to new jobs"), "{stderr}");
    enqueue_at(&broker, "mail", "t").await;
}

#[tokio::test]
async fn a_closed_store_that_is_down_when_a_broker_starts_is_still_closed_afterwards() {
    let shop = empty("shop").await;
    let (mut cluster, mail) = second_server().await;
    let stores = [("shop", &shop), ("mail", &mail)];
    let broker = TestBroker::on_stores(&stores, |_| {}).await;
    // Enqueues a job in each store while both are available, so that both stores get their numbers.
    enqueue_at(&broker, "shop", "t").await;
    enqueue_at(&broker, "mail", "u").await;
    drain(&broker, "mail").await;
    broker.stop().await;
    cluster.stop(StopMode::Fast).await;
    let broker = TestBroker::on_stores(&stores, |config| config.database_timeout = secs(8)).await;
    assert_eq!(list(&broker).await[1].state(), StoreState::Unreachable);
    let request = OpenStoreRequest { store: "mail".into() };
    let refused_open = with_timeout("an answer", broker.stores().open_store(request)).await.unwrap_err();
    assert_eq!(refused_open.code(), Code::Unavailable);
    cluster.restart().await.expect("restart");
    eventually("a store that is available again", async || list(&broker).await[1].state() != StoreState::Unreachable)
        .await;
    assert_closed("mail", &refused(&broker, "mail").await);
    open(&broker, "mail").await;
    enqueue_at(&broker, "mail", "t").await;
}

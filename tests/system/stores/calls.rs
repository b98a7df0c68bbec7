//! Tests calls to a broker with two stores: routing, and merging of results.

use std::collections::HashSet;

use howdah_core::{
    config::{Config, StoreConfig},
    job::IDS_OF_A_STORE,
};
use howdah_proto::v1::{
    self, CreateScheduleRequest, DeleteScheduleRequest, EnqueueJobsRequest, GetScheduleRequest, JobOrder,
    ListJobsRequest, ListSchedulesRequest, ListTaskTypesRequest, ListWorkersRequest, NewJob, PullJobsRequest, Schedule,
    SettleJobsRequest, SettleStatus, TaskType, UpdateTaskTypeRequest, schedule::Plan,
};
use tonic::{Code, Request, metadata::MetadataValue};

use super::empty;
use crate::{access::Guarded, locks::Open, support::*};

/// Creates two databases, and starts a broker that serves both.
pub async fn two() -> (TestDatabase, TestDatabase, TestBroker) {
    let (shop, mail) = (empty("shop").await, empty("mail").await);
    let broker = TestBroker::on_stores(&[("shop", &shop), ("mail", &mail)], |_| {}).await;
    (shop, mail, broker)
}

/// Returns a request that names a store in its metadata.
pub fn at<T>(store: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("howdah-store", MetadataValue::try_from(store).unwrap());
    request
}

pub fn jobs(types: &[&str]) -> EnqueueJobsRequest {
    let jobs = types.iter().map(|name| NewJob { task_type: (*name).into(), ..NewJob::default() }).collect();
    EnqueueJobsRequest { jobs, request_key: String::new() }
}

pub async fn enqueue_at(broker: &Service, store: &str, task_type: &str) -> i64 {
    let answer = with_timeout("an answer", broker.jobs().enqueue_jobs(at(store, jobs(&[task_type])))).await.unwrap();
    answer.into_inner().jobs[0].id
}

async fn jobs_in(database: &TestDatabase) -> i64 {
    database.count("SELECT count(*) FROM howdah.job").await
}

pub fn store_of(id: i64) -> i64 {
    id / IDS_OF_A_STORE
}

#[tokio::test]
async fn jobs_of_a_type_stay_in_the_store_that_has_it() {
    let (shop, mail, broker) = two().await;
    // The request for the first job of the type names a store. Later jobs of the type go to the same store without
    // naming it.
    let first = enqueue_at(&broker, "mail", "mail.send").await;
    let second = broker.enqueue("mail.send").await;
    assert_eq!([store_of(first), store_of(second)], [1, 1]);
    assert_eq!([jobs_in(&shop).await, jobs_in(&mail).await], [0, 2]);
    // An application enqueues the first job of this type by SQL, so the application's database becomes the home store
    // of the type.
    shop.sql("SELECT howdah.enqueue('order.pay')").await;
    assert_eq!(store_of(broker.enqueue("order.pay").await), 0);
    // The home store stays the same if an application later enqueues jobs of the type in the other database.
    mail.sql("SELECT howdah.enqueue('order.pay')").await;
    assert_eq!(store_of(broker.enqueue("order.pay").await), 0);
    assert_eq!(broker.job(first).await.task_type, "mail.send");
}

#[tokio::test]
async fn new_types_are_spread_over_the_stores_by_their_names() {
    let (shop, mail, broker) = two().await;
    let other = TestBroker::on_stores(&[("mail", &mail), ("shop", &shop)], |_| {}).await;
    let mut stores = HashSet::new();
    for nth in 0..12 {
        let name = format!("type.{nth}");
        let (here, there) = (broker.enqueue(&*name).await, other.enqueue(&*name).await);
        assert_eq!(store_of(here), store_of(there), "{name}");
        stores.insert(store_of(here));
    }
    assert_eq!(stores.len(), 2);
}

#[tokio::test]
async fn a_store_without_new_types_gets_only_types_of_requests_that_name_the_store() {
    let (shop, mail) = (empty("shop").await, empty("mail").await);
    let stores = [("shop", &shop), ("mail", &mail)];
    let broker = TestBroker::on_stores(&stores, |config| config.stores[1].new_types = false).await;
    for nth in 0..12 {
        assert_eq!(store_of(broker.enqueue(format!("type.{nth}").as_str()).await), 0);
    }
    let _worker = broker.worker("subscribed").await;
    assert!(broker.pull("pulled").await.is_empty());
    let made = "SELECT count(*) = 2 FROM howdah.task_type WHERE name IN ('subscribed', 'pulled')";
    shop.until("the types that workers subscribed to or pulled", made).await;
    assert_eq!(mail.count("SELECT count(*) FROM howdah.task_type").await, 0);
    assert_eq!(store_of(enqueue_at(&broker, "mail", "by.hand").await), 1);
    assert_eq!(store_of(broker.enqueue("by.hand").await), 1);
}

#[tokio::test]
async fn a_request_with_jobs_of_two_stores_is_refused() {
    let (_shop, mail, broker) = two().await;
    for (store, name) in [("shop", "a"), ("mail", "b")] {
        enqueue_at(&broker, store, name).await;
    }
    let refused = with_timeout("an answer", broker.jobs().enqueue_jobs(jobs(&["a", "b"]))).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(
        refused.message(),
        "jobs[1].task_type belongs to store mail, but task type a of this request belongs to store shop: a request is one \
         transaction, so send one request per store, or select one store with the metadata howdah-store"
    );
    let stored = with_timeout("an answer", broker.jobs().enqueue_jobs(at("mail", jobs(&["a", "b"])))).await.unwrap();
    assert!(stored.into_inner().jobs.iter().all(|job| store_of(job.id) == 1));
    assert_eq!(jobs_in(&mail).await, 3);
    // A job can depend only on jobs in the same store.
    let first = enqueue_at(&broker, "shop", "a").await;
    let refused = broker.enqueue("b").after(&[first]).refused().await;
    assert!(
        refused.message.starts_with(&format!(
            "jobs[0].after names job {first}, which is in store shop, and this job goes to store mail"
        )),
        "{refused:?}"
    );
    let unknown = with_timeout("an answer", broker.jobs().enqueue_jobs(at("post", jobs(&["a"])))).await.unwrap_err();
    assert_eq!(unknown.message(), "howdah-store is \"post\"; this broker serves shop, mail");
}

#[tokio::test]
async fn ids_of_both_stores_are_cancelled_settled_and_waited_for_in_one_call() {
    let (_shop, _mail, broker) = two().await;
    let (a, b) = (enqueue_at(&broker, "shop", "t").await, enqueue_at(&broker, "mail", "t").await);
    let mut cancelled = broker.cancel(&[a, b, 77, 300_000_000_000_001]).await;
    cancelled.sort_unstable();
    assert_eq!(cancelled, [a, b]);
    assert_eq!([broker.wait(a).await.id, broker.wait(b).await.id], [a, b]);
    // Settles leases of both stores, and one of an unknown store.
    let (a, b) = (enqueue_at(&broker, "shop", "s").await, enqueue_at(&broker, "mail", "s").await);
    let mut outcomes = Vec::new();
    for store in ["shop", "mail"] {
        let pull = PullJobsRequest {
            task_types: vec!["s".into()],
            lease_duration: Some(wire(secs(60))),
            ..PullJobsRequest::default()
        };
        let pulled = with_timeout("a job", broker.workers().pull_jobs(at(store, pull))).await.unwrap().into_inner();
        outcomes.extend(pulled.jobs.iter().map(ack));
    }
    let mut unknown = outcomes[0].clone();
    unknown.id = 300_000_000_000_001;
    outcomes.push(unknown);
    let settled =
        with_timeout("an answer", broker.workers().settle_jobs(SettleJobsRequest { outcomes })).await.unwrap();
    let mut results: Vec<_> = settled.into_inner().results.iter().map(|r| (r.id, r.status())).collect();
    results.sort_unstable();
    assert_eq!(results, [(a, SettleStatus::Ok), (b, SettleStatus::Ok), (300_000_000_000_001, SettleStatus::LeaseLost)]);
}

#[tokio::test]
async fn lists_go_on_from_one_store_to_the_next_page_by_page() {
    let (_shop, _mail, broker) = two().await;
    let mut stored = Vec::new();
    for store in ["shop", "mail", "mail", "shop", "mail"] {
        stored.push(enqueue_at(&broker, store, "t").await);
    }
    let (mut listed, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = ListJobsRequest { task_type: "t".into(), page_size: 2, page_token, ..ListJobsRequest::default() };
        let page = with_timeout("a page", broker.jobs().list_jobs(request)).await.unwrap().into_inner();
        assert!(page.jobs.len() <= 2);
        listed.extend(page.jobs.iter().map(|job| job.id));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    stored.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, stored);
    let request = || ListJobsRequest { task_type: "t".into(), page_size: 10, ..ListJobsRequest::default() };
    let one = with_timeout("a list", broker.jobs().list_jobs(at("shop", request()))).await.unwrap().into_inner();
    assert_eq!(one.jobs.len(), 2);
    // Page tokens of another list, or with an unknown store, are invalid.
    for bad in ["7.", "x", "1.0101", "0.ff"] {
        let request = ListJobsRequest { page_token: bad.into(), ..request() };
        let refused = with_timeout("an answer", broker.jobs().list_jobs(request)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{bad}");
    }
    let types =
        with_timeout("types", broker.task_types().list_task_types(ListTaskTypesRequest::default())).await.unwrap();
    let types: Vec<TaskType> = types.into_inner().task_types;
    let named: Vec<_> = types.iter().map(|t| (t.store.as_str(), t.counts.unwrap_or_default().ready)).collect();
    assert_eq!(named, [("shop", 2), ("mail", 3)]);
}

#[tokio::test]
async fn the_jobs_with_the_most_attempts_are_those_of_all_stores() {
    let (shop, mail, broker) = two().await;
    for (store, database, attempts) in [("shop", &shop, "7, 3"), ("mail", &mail, "9, 5")] {
        enqueue_at(&broker, store, "t").await;
        let fill = format!(
            "INSERT INTO howdah.dead (id, rank, created, died, type_id, attempt, max_attempts, priority, payload)
             SELECT nextval('howdah.job_id'), 0, now(), now(), t.id, a, 9, 0, '' FROM howdah.task_type t, unnest('{{{attempts}}}'::smallint[]) a
             WHERE t.name = 't'"
        );
        database.sql(&fill).await;
    }
    let request = |page_size, page_token: &str| ListJobsRequest {
        task_type: "t".into(),
        page_size,
        page_token: page_token.into(),
        order: JobOrder::Attempts.into(),
        ..ListJobsRequest::default()
    };
    let most = with_timeout("a list", broker.jobs().list_jobs(request(3, ""))).await.unwrap().into_inner();
    let seen: Vec<_> = most.jobs.iter().map(|job| (store_of(job.id), job.attempt)).collect();
    assert_eq!(seen, [(1, 9), (0, 7), (1, 5)]);
    // The scan read one ready job in each store.
    assert_eq!((most.has_more, most.partial, most.scanned_count), (true, false, 2));
    let one = with_timeout("a list", broker.jobs().list_jobs(at("shop", request(0, "")))).await.unwrap().into_inner();
    assert_eq!((one.jobs.len(), one.has_more), (2, false));
    let refused = with_timeout("an answer", broker.jobs().list_jobs(request(3, "0."))).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "there is one page: {refused}");
}

#[tokio::test]
async fn settings_of_a_type_are_the_same_in_every_store_that_has_it() {
    let (shop, mail, broker) = two().await;
    for store in ["shop", "mail"] {
        enqueue_at(&broker, store, "t").await;
    }
    let settings = howdah_proto::v1::TaskTypeSettings { max_attempts: 3, ..Default::default() };
    let request = UpdateTaskTypeRequest { task_type: "t".into(), settings: Some(settings), update_mask: None };
    with_timeout("a change", broker.task_types().update_task_type(request)).await.unwrap();
    for database in [&shop, &mail] {
        assert_eq!(database.count("SELECT max_attempts::bigint FROM howdah.task_type WHERE name = 't'").await, 3);
    }
}

#[tokio::test]
async fn a_change_that_one_store_cannot_make_fails_and_says_which_stores_have_it() {
    let (shop, mail, broker) = two().await;
    for store in ["shop", "mail"] {
        enqueue_at(&broker, store, "t").await;
    }
    let settings = howdah_proto::v1::TaskTypeSettings { max_attempts: 3, ..Default::default() };
    let request = UpdateTaskTypeRequest { task_type: "t".into(), settings: Some(settings), update_mask: None };
    let open = Open::after(&mail, "psql", "SELECT FROM howdah.task_type FOR UPDATE").await;
    let change = async || with_timeout("an answer", broker.task_types().update_task_type(request.clone())).await;
    let refused = change().await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(
        refused
            .message()
            .ends_with("stores changed: shop; stores not confirmed: mail; repeat the call, or select one store"),
        "{refused}"
    );
    assert_eq!(shop.count("SELECT max_attempts::bigint FROM howdah.task_type").await, 3);
    open.roll_back().await;
    change().await.unwrap();
    assert_eq!(mail.count("SELECT max_attempts::bigint FROM howdah.task_type").await, 3);
    // If the first store cannot apply a change, no store applies it.
    let open = Open::after(&shop, "psql", "SELECT FROM howdah.task_type FOR UPDATE").await;
    let settings = howdah_proto::v1::TaskTypeSettings { max_attempts: 4, ..Default::default() };
    let request = UpdateTaskTypeRequest { task_type: "t".into(), settings: Some(settings), update_mask: None };
    let refused = with_timeout("an answer", broker.task_types().update_task_type(request)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted, "{refused}");
    assert_eq!(mail.count("SELECT max_attempts::bigint FROM howdah.task_type").await, 3);
    open.roll_back().await;
}

#[tokio::test]
async fn a_schedule_is_in_the_store_of_its_type_and_found_by_its_name() {
    let (_shop, mail, broker) = two().await;
    enqueue_at(&broker, "mail", "report").await;
    let template = Some(NewJob { task_type: "report".into(), ..NewJob::default() });
    let schedule =
        Schedule { name: "hourly".into(), template, plan: Some(Plan::Period(wire(HOUR))), ..Schedule::default() };
    with_timeout("a schedule", broker.schedules().create_schedule(CreateScheduleRequest { schedule: Some(schedule) }))
        .await
        .unwrap();
    assert_eq!(mail.count("SELECT count(*) FROM howdah.schedule").await, 1);
    let request = GetScheduleRequest { name: "hourly".into() };
    let found = with_timeout("the schedule", broker.schedules().get_schedule(request))
        .await
        .unwrap()
        .into_inner()
        .schedule
        .unwrap();
    assert_eq!(found.template.unwrap().task_type, "report");
    let listed = with_timeout("all schedules", broker.schedules().list_schedules(ListSchedulesRequest::default()))
        .await
        .unwrap();
    assert_eq!(listed.into_inner().schedules[0].store, "mail");
    let request = DeleteScheduleRequest { name: "hourly".into() };
    with_timeout("the deletion of the schedule", broker.schedules().delete_schedule(request)).await.unwrap();
    assert_eq!(mail.count("SELECT count(*) FROM howdah.schedule").await, 0);
}

#[tokio::test]
async fn the_home_of_a_type_is_hidden_from_callers_who_may_not_enqueue_the_type() {
    let (shop, mail) = (empty("rights_shop").await, empty("rights_mail").await);
    let stores = [("shop", &shop), ("mail", &mail)]
        .map(|(name, database)| StoreConfig::new(&Config::new(&database.url), name.to_owned(), None));
    let broker = Guarded::start_with(|config| config.stores = stores.to_vec()).await;
    enqueue_at(&broker.admin, "mail", "secret").await;
    enqueue_at(&broker.admin, "shop", "own").await;
    let ann = broker.caller("ann", &["enqueue:own"]).await;
    assert_eq!(store_of(ann.enqueue("own").await), 0);
    let refused = with_timeout("an answer", ann.jobs().enqueue_jobs(jobs(&["own", "secret"]))).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    assert!(!refused.message().contains("mail"), "{refused}");
}

#[tokio::test]
async fn a_worker_is_listed_once_for_each_store_that_has_its_types() {
    let (_shop, _mail, broker) = two().await;
    for (store, name) in [("shop", "a"), ("mail", "b")] {
        enqueue_at(&broker, store, name).await;
    }
    let listed = async |task_type: &str| {
        let request = ListWorkersRequest { task_type: task_type.into(), ..ListWorkersRequest::default() };
        let workers =
            with_timeout("workers", broker.workers().list_workers(request)).await.unwrap().into_inner().workers;
        let windows =
            |worker: &v1::Worker| worker.windows.iter().map(|window| window.task_type.clone()).collect::<Vec<_>>();
        workers.iter().map(|worker| (worker.store.clone(), windows(worker).join(" "))).collect::<Vec<_>>()
    };
    let entry = |store: &str, types: &str| (store.to_owned(), types.to_owned());
    let one = broker.worker("a").await;
    eventually("a worker of one store", async || listed("").await == [entry("shop", "a")]).await;
    let _both = broker.worker("a").and("b").await;
    one.vanish();
    eventually("a worker of both", async || listed("").await == [entry("shop", "a"), entry("mail", "b")]).await;
    assert_eq!(listed("b").await, [entry("mail", "b")]);
}

#[tokio::test]
async fn the_command_line_says_of_which_store_an_entry_is() {
    let (_shop, _mail, broker) = two().await;
    enqueue_at(&broker, "shop", "a").await;
    enqueue_at(&broker, "mail", "b").await;
    let (status, out, err) = run(&["types", "--json", "--server", &broker.grpc, "a", "b"], b"").await;
    assert!(status.success(), "{err}");
    let stores: Vec<_> =
        out.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["store"].clone()).collect();
    assert_eq!(stores, ["shop", "mail"]);
}

//! Tests of enqueues by unary calls, and of connections to brokers.

use howdah_client::Client;
use tonic::{Code, Status};

use crate::{
    named,
    support::{FakeBroker, within},
};

#[tokio::test]
async fn a_call_that_fails_is_repeated_with_the_same_request_key() {
    let mut broker = FakeBroker::start().await;
    let client = broker.client().await;
    let enqueue = tokio::spawn(async move { client.enqueue_all([named("a"), named("b")]).await });
    let call = broker.call().await;
    let first = call.request.clone();
    call.fail(Status::unavailable("no Postgres"));
    let call = broker.call().await;
    assert_eq!(call.request, first);
    assert!(!first.request_key.is_empty());
    call.store(5, false);
    let enqueued = within(enqueue).await.unwrap().unwrap();
    assert_eq!((enqueued[0].id, enqueued[1].id), (5, 6));
    assert!(enqueued[0].is_new, "only this call can have used its key");
}

#[tokio::test]
async fn a_call_that_is_refused_is_not_repeated() {
    let mut broker = FakeBroker::start().await;
    let client = broker.client().await;
    let enqueue = tokio::spawn(async move { client.enqueue(named("")).await });
    let call = broker.call().await;
    call.fail(Status::invalid_argument("task_type is empty"));
    assert_eq!(within(enqueue).await.unwrap().unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_request_key_of_the_callers_is_sent_as_it_is() {
    let mut broker = FakeBroker::start().await;
    let client = broker.client().await;
    let enqueue = tokio::spawn(async move { client.enqueue_all_with_key([named("a")], "order-7").await });
    let call = broker.call().await;
    assert_eq!(call.request.request_key, "order-7");
    call.store(5, false);
    assert!(!within(enqueue).await.unwrap().unwrap()[0].is_new);
}

#[tokio::test]
async fn an_empty_list_of_jobs_makes_no_call() {
    let broker = FakeBroker::start().await;
    let client = broker.client().await;
    assert_eq!(client.enqueue_all([]).await.unwrap(), []);
    assert_eq!(client.producer().enqueue_all([]).await.unwrap(), []);
    assert_eq!(client.cancel_jobs([]).await.unwrap(), Vec::<i64>::new());
}

#[tokio::test]
async fn get_job_returns_none_for_a_job_that_does_not_exist() {
    let broker = FakeBroker::start().await;
    let client = broker.client().await;
    assert_eq!(client.get_job(1).await.unwrap().unwrap().id, 1);
    assert_eq!(client.get_job(2).await.unwrap(), None);
    assert_eq!(client.cancel_jobs([3, 4]).await.unwrap(), [3, 4]);
}

#[tokio::test]
async fn connecting_without_a_listening_broker_fails_soon_with_the_address_in_the_error() {
    let broker = FakeBroker::start().await;
    let url = broker.url();
    drop(broker);
    let error = within(Client::connect(url.clone())).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.to_string().contains(&url), "{error}");
    let lazy = Client::builder().endpoint(url).connect_lazy().unwrap();
    let error = within(lazy.get_job(1)).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
}

#[tokio::test]
async fn the_first_endpoint_that_can_be_reached_is_used() {
    let gone = FakeBroker::start().await;
    let there = FakeBroker::start().await;
    let both = format!("{},{}", gone.url(), there.url());
    drop(gone);
    let client = within(Client::connect(both)).await.unwrap();
    assert!(client.get_job(1).await.unwrap().is_some());
}

//! Tests that health and reflection services answer valid requests and refuse junk.

use tonic::Code;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
use tonic_reflection::pb::{v1, v1alpha};

use super::{assert_serves, channel, refused};
use crate::support::{TestBroker, database, with_timeout};

const SERVICES: [&str; 8] = [
    "grpc.health.v1.Health",
    "howdah.v1.JobService",
    "howdah.v1.TaskTypeService",
    "howdah.v1.WorkerService",
    "howdah.v1.ScheduleService",
    "howdah.v1.SettingsService",
    "howdah.v1.BulkService",
    "howdah.v1.StoreService",
];

/// Invalid service names.
fn junk() -> Vec<String> {
    let junk = ["howdah.v1.Jobs.Nothing", "HOWDAH.V1.JOBSERVICE", "../..", "'; --", "\0", "\u{1b}[2J", "%", "*", "é"];
    junk.into_iter().map(str::to_owned).chain(["x".repeat(1_000)]).collect()
}

#[tokio::test]
async fn health_knows_each_service_and_nothing_else() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let mut client = HealthClient::new(channel(&broker.grpc).await);
    for service in ["", SERVICES[1], SERVICES[2], SERVICES[3], SERVICES[4], SERVICES[5], SERVICES[6], SERVICES[7]] {
        let answer = with_timeout("an answer", client.check(HealthCheckRequest { service: service.into() })).await;
        assert_eq!(answer.expect(service).into_inner().status(), ServingStatus::Serving);
    }
    for service in junk() {
        assert_eq!(refused(client.check(HealthCheckRequest { service })).await.code(), Code::NotFound);
    }
    let large = HealthCheckRequest { service: "x".repeat(1 << 20) };
    assert_eq!(refused(client.check(large)).await.code(), Code::OutOfRange);
    assert_serves(&broker.grpc).await;
}

#[tokio::test]
async fn reflection_lists_the_services_and_survives_questions_about_others() {
    use v1::{server_reflection_request::MessageRequest as Ask, server_reflection_response::MessageResponse as Answer};
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let mut client = v1::server_reflection_client::ServerReflectionClient::new(channel(&broker.grpc).await);
    let ask = |ask: Ask| v1::ServerReflectionRequest { message_request: Some(ask), ..Default::default() };

    let list = tokio_stream::iter([ask(Ask::ListServices(String::new()))]);
    let mut answers =
        with_timeout("a stream", client.server_reflection_info(list)).await.expect("a stream").into_inner();
    let answer =
        with_timeout("an answer", answers.message()).await.expect("an answer").and_then(|a| a.message_response);
    let Some(Answer::ListServicesResponse(list)) = answer else { panic!("{answer:?}") };
    let names: Vec<_> = list.service.iter().map(|service| service.name.as_str()).collect();
    assert!(SERVICES.iter().all(|name| names.contains(name)), "{names:?}");

    for symbol in SERVICES {
        let question = tokio_stream::iter([ask(Ask::FileContainingSymbol(symbol.into()))]);
        let answers = with_timeout("a stream", client.server_reflection_info(question)).await.expect("a stream");
        let answer =
            with_timeout("an answer", answers.into_inner().message()).await.expect("an answer").expect("an answer");
        assert!(matches!(answer.message_response, Some(Answer::FileDescriptorResponse(_))), "{answer:?}");
    }
    for name in junk() {
        for question in [Ask::FileContainingSymbol(name.clone()), Ask::FileByFilename(name.clone())] {
            let question = tokio_stream::iter([ask(question)]);
            let answers = with_timeout("a stream", client.server_reflection_info(question)).await.expect("a stream");
            // The broker answers with an error in a message, or ends the stream with an error. The stream ends in both cases.
            match with_timeout("an answer", answers.into_inner().message()).await {
                Ok(Some(answer)) => {
                    assert!(matches!(answer.message_response, Some(Answer::ErrorResponse(_))), "{answer:?}");
                }
                Ok(None) => panic!("no answer for {name:?}"),
                Err(status) => assert_eq!(status.code(), Code::NotFound, "{status:?}"),
            }
        }
    }
    assert_serves(&broker.grpc).await;
}

#[tokio::test]
async fn reflection_of_the_older_version_lists_the_same() {
    use v1alpha::{
        server_reflection_request::MessageRequest as Ask, server_reflection_response::MessageResponse as Answer,
    };
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(channel(&broker.grpc).await);
    let ask = Some(Ask::ListServices(String::new()));
    let list = tokio_stream::iter([v1alpha::ServerReflectionRequest { message_request: ask, ..Default::default() }]);
    let mut answers =
        with_timeout("a stream", client.server_reflection_info(list)).await.expect("a stream").into_inner();
    let answer =
        with_timeout("an answer", answers.message()).await.expect("an answer").and_then(|a| a.message_response);
    let Some(Answer::ListServicesResponse(list)) = answer else { panic!("{answer:?}") };
    let names: Vec<_> = list.service.iter().map(|service| service.name.as_str()).collect();
    assert!(SERVICES.iter().all(|name| names.contains(name)), "{names:?}");
}

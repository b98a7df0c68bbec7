//! Tests calls that change settings, schedules and tokens, while another transaction locks the rows that they change.

use howdah_client::{NewJob, NewSchedule, Plan};
use howdah_proto::v1;
use tonic::Code;

use super::Open;
use crate::support::*;

/// Asserts that a call is refused and names the backend that holds the lock.
fn assert_told<T>(what: &str, open: &Open, answer: Result<T, tonic::Status>) {
    let Err(status) = answer else { panic!("{what} succeeded although its rows are locked") };
    assert_eq!(status.code(), Code::Aborted, "{what}: {status}");
    let holder = format!("by backend {} (\"psql\")", open.pid);
    assert!(status.message().contains(&holder), "{what}: {status}");
}

#[tokio::test]
async fn changes_of_locked_settings_tokens_and_schedules_name_the_backend_with_the_lock() {
    let broker = TestBroker::start_with(|c| c.database_timeout = secs(7)).await;
    let client = broker.client().await;
    let schedule = || NewSchedule::new("nightly", NewJob::new("t"), Plan::every(HOUR));
    with_timeout("a schedule", client.create_schedule(schedule())).await.expect("create");
    let create = v1::CreateTokenRequest { principal: "ann".into(), scopes: vec!["read:*".into()], lifetime: None };
    let token = with_timeout("a token", broker.access().create_token(create)).await.expect("a token").into_inner();
    let token = token.token.expect("a token").id;

    let open = Open::after(&broker.database, "psql", "SELECT FROM howdah.settings FOR UPDATE").await;
    let settings = v1::ClusterSettings { batch: 5_000, ..Default::default() };
    let request = v1::UpdateSettingsRequest { settings: Some(settings), update_mask: None };
    assert_told("settings", &open, with_timeout("an answer", broker.settings().update_settings(request.clone())).await);
    open.roll_back().await;
    with_timeout("an answer", broker.settings().update_settings(request)).await.expect("it is free");

    let open = Open::after(&broker.database, "psql", "SELECT FROM howdah.token FOR UPDATE").await;
    let revoke = v1::RevokeTokensRequest { selection: Some(v1::revoke_tokens_request::Selection::Id(token)) };
    assert_told("token", &open, with_timeout("an answer", broker.access().revoke_tokens(revoke.clone())).await);
    open.roll_back().await;
    with_timeout("an answer", broker.access().revoke_tokens(revoke)).await.expect("it is free");

    let open = Open::after(&broker.database, "psql", "SELECT FROM howdah.schedule FOR UPDATE").await;
    let name = || "nightly".to_owned();
    let mut schedules = broker.schedules();
    let pause = v1::PauseScheduleRequest { name: name() };
    assert_told("schedule", &open, with_timeout("an answer", schedules.pause_schedule(pause.clone())).await);
    let run = v1::RunScheduleRequest { name: name(), ..Default::default() };
    assert_told("schedule", &open, with_timeout("an answer", schedules.run_schedule(run)).await);
    let delete = v1::DeleteScheduleRequest { name: name() };
    assert_told("schedule", &open, with_timeout("an answer", schedules.delete_schedule(delete.clone())).await);
    open.roll_back().await;
    with_timeout("an answer", schedules.pause_schedule(pause)).await.expect("it is free");
    with_timeout("an answer", schedules.delete_schedule(delete)).await.expect("it is free");
}

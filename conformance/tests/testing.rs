//! The helper of the Rust client that starts a broker for a test.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{env, path::PathBuf};

use howdah_client::{NewJob, testing::Broker};

#[tokio::test]
async fn a_test_has_a_broker_of_its_own() {
    let beside = PathBuf::from(env!("CARGO_BIN_EXE_howdah-conformance")).with_file_name("howdah");
    let broker = Broker::start_program(env::var_os("HOWDAH_BIN").unwrap_or_else(|| beside.into())).await.unwrap();
    let client = broker.client().await.unwrap();
    assert!(client.enqueue(NewJob::new("mail.welcome")).await.unwrap().is_new);
    assert!(broker.database.starts_with("postgres://"), "{}", broker.database);
}

//! Counts of a task type that several stores have.

use super::streams::{fill, of_store, two};
use crate::support::*;

#[tokio::test]
async fn a_drain_and_the_counts_of_a_type_cover_every_store() {
    let (broker, mail) = two("drain").await;
    fill(&broker.database, "t", 1).await;
    // Attempts end by a timeout, and the next one begins at once.
    mail.sql("SELECT howdah.enqueue('t', 'x'::text, timeout => '1 s', retry_policy => '{\"initial_delay\": \"0 s\"}')")
        .await;
    // The broker finds the type in the second store when it next looks up the stores of the type.
    eventually("the counts of both stores", async || {
        let (_, counts, _) = run(&["types", "t", "--server", &broker.grpc], b"").await;
        counts.contains("shop") && counts.contains("mail")
    })
    .await;
    // A worker takes both jobs, acks the job of the first store, and keeps the other one until its timeout.
    let mut holder = broker.worker("t").window(2).await;
    let held = holder.take(2).await;
    holder.window("t", 0).await;
    let (first, _): (Vec<_>, Vec<_>) = held.iter().partition(|job| of_store(job) == 0);
    holder.ack(first[0]).await;
    let args = ["work", "--server", &broker.grpc, "t", "--exec", "cat", "--drain"];
    assert!(Program::start(&args).ended().await.success());
    assert_eq!(mail.count("SELECT count(*) FROM howdah.history").await, 1);
}

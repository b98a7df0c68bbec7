//! Tests the condition that the clock of the database server is wrong.

use howdah_proto::v1::JobState;

use super::*;

pub(super) const BACK: Condition = Condition {
    name: "A clock that goes back",
    cause: "The database fails over to a replica whose clock is ten minutes behind, or the clock is set.",
    remedy: "Nothing needs to be done: brokers pull back the times that they have stored. Nothing old is deleted before the clocks of the \
             database and the broker agree. Use NTP on all servers.",
    doctor: Doctor::Finds("clock"),
    probe: "schedule",
    exceptions: &[Exception { operations: &["retention"], reason: Reason::Waits("the clocks to agree") }],
};

#[tokio::test]
async fn a_clock_that_goes_back_ten_minutes_loses_and_holds_up_nothing() {
    let arena = Arena::on(&database_with_clock().await, |_| {}).await;
    arena.broker.database.set_clock("-10 minutes").await;
    BACK.hold(&arena, async || arena.broker.database.set_clock("0").await).await;
}

pub(super) const AHEAD: Condition = Condition {
    name: "A clock that is ahead",
    cause: "The clock of the database's server is 40 days ahead for a while.",
    remedy: "Set the clock right. Until then brokers delete nothing because of its age (`howdah_database_clock_doubtful` is 1).",
    doctor: Doctor::Finds("clock"),
    probe: "second broker",
    exceptions: &[Exception { operations: &["retention"], reason: Reason::Waits("the clocks to agree") }],
};

#[tokio::test]
async fn a_clock_that_is_ahead_for_a_while_loses_nothing() {
    let arena = Arena::on(&database_with_clock().await, |_| {}).await;
    arena.broker.database.set_clock("40 days").await;
    AHEAD.hold(&arena, async || arena.broker.database.set_clock("0").await).await;
    let finished = arena.leased("settled").id;
    assert_eq!(arena.broker.state(finished).await, JobState::Succeeded, "a finished job was deleted");
}

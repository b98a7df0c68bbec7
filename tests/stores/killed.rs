//! A move whose broker is killed at each of its steps, and goes on at another one: no job is lost, none is there twice, and their
//! order is kept.

use howdah_proto::v1::{CreateScheduleRequest, Schedule, schedule::Plan};
use rustix::process::Signal;
use tokio::sync::OnceCell;

use super::{
    empty,
    moving::{moved, to},
};
use crate::support::*;

/// The most jobs: more than a batch.
const JOBS: i64 = 2_500;

/// A statement that a move runs: in which store, at which table, of which kind.
struct Step {
    in_old: bool,
    table: &'static str,
    kind: &'static str,
}

const fn old(table: &'static str, kind: &'static str) -> Step {
    Step { in_old: true, table, kind }
}

const fn new(table: &'static str, kind: &'static str) -> Step {
    Step { in_old: false, table, kind }
}

const STEPS: [Step; 14] = [
    old("type_move", "INSERT"),        // begin
    new("task_type", "INSERT"),        // the type is made
    new("type_arrival", "INSERT"),     // it rests there
    new("task_type", "UPDATE"),        // it is at home there
    old("leaving", "INSERT"),          // jobs leave
    new("arrived", "INSERT"),          // they arrive
    new("ready", "INSERT"),            // and are stored
    old("moved", "INSERT"),            // they have moved
    new("type_arrival", "UPDATE"),     // the type goes on
    old("leaving_schedule", "INSERT"), // schedules leave
    new("schedule", "INSERT"),         // they arrive
    old("leaving_schedule", "DELETE"), // they have moved
    old("type_move", "DELETE"),        // the end
    new("type_arrival", "DELETE"),     // there, too
];

/// What becomes of the statement whose broker is killed.
#[derive(Clone, Copy)]
enum Then {
    /// It is committed, and nobody hears of it.
    Commits,
    /// It is rolled back.
    RollsBack,
}

async fn assert_all_once_in_order(shop: &TestDatabase, mail: &TestDatabase, step: &str) {
    let sorted = format!(
        "SELECT count(*) FROM (SELECT payload, row_number() OVER (ORDER BY rank, id) AS n FROM howdah.ready) r
         WHERE r.payload = convert_to(n::text, 'UTF8') AND (SELECT count(*) FROM howdah.ready) = {JOBS}"
    );
    assert_eq!(mail.count(&sorted).await, JOBS, "{step}: all jobs once, in their order");
    let left = "SELECT (SELECT count(*) FROM howdah.job) + (SELECT count(*) FROM howdah.leaving)
                       + (SELECT count(*) FROM howdah.type_move) + (SELECT count(*) FROM howdah.leaving_schedule)
                       + (SELECT count(*) FROM howdah.schedule)";
    assert_eq!(shop.count(left).await, 0, "{step}: nothing is left");
    let there = "SELECT (SELECT count(*) FROM howdah.schedule WHERE name = 's') * 10 + (SELECT count(*) FROM howdah.type_arrival)";
    assert_eq!(mail.count(there).await, 10, "{step}");
    let known = format!("SELECT count(*) FROM howdah.moved WHERE old_id <= {JOBS}");
    assert_eq!(shop.count(&known).await, JOBS, "{step}: all old ids are known");
}

/// A type with jobs and a schedule at home in one store, and an empty other one. They are made once, and copied for each step.
async fn prepared() -> (TestDatabase, TestDatabase) {
    static STORES: OnceCell<(TestDatabase, TestDatabase)> = OnceCell::const_new();
    let (shop, mail) = STORES.get_or_init(prepare).await;
    (shop.copy().await, mail.copy().await)
}

async fn prepare() -> (TestDatabase, TestDatabase) {
    let (shop, mail) = (empty("shop").await, empty("mail").await);
    let mut program = Program::serve_stores(&[("shop", &shop), ("mail", &mail)]).await;
    let payloads = format!("SELECT array_agg(n::text ORDER BY n) FROM generate_series(1, {JOBS}) n");
    shop.sql(&format!("SELECT howdah.enqueue_many('t', ({payloads}))")).await;
    let schedule = Some(Schedule {
        name: "s".into(),
        template: Some(new_job("t", "p")),
        plan: Some(Plan::Period(wire(HOUR))),
        ..Schedule::default()
    });
    program.schedules().create_schedule(CreateScheduleRequest { schedule }).await.expect("a schedule");
    program.program.signal(Signal::TERM);
    assert!(program.program.ended().await.success());
    (shop, mail)
}

async fn end_waiting(database: &TestDatabase) {
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
               WHERE datname = current_database() AND wait_event = 'PgSleep' AND pid <> pg_backend_pid()";
    database.count(end).await;
}

async fn killed_at(step: &Step, then: Then) {
    let (shop, mail) = prepared().await;
    let name = format!("{} of {} in the {} store", step.kind, step.table, if step.in_old { "old" } else { "new" });
    let mut program = Program::serve_stores(&[("shop", &shop), ("mail", &mail)]).await;
    let at = if step.in_old { &shop } else { &mail };
    let gate = gate_at(at, step.table, step.kind).await;
    let service = (*program).clone();
    let moving = tokio::spawn(async move {
        let mut answers = service.stores().move_type(to("mail")).await?.into_inner();
        while answers.message().await?.is_some() {}
        Ok::<(), tonic::Status>(())
    });
    // It is reached.
    gate.reached(at).await;
    program.kill().await;
    moving.await.expect("no panic").expect_err("nobody answers");
    if let Then::RollsBack = then {
        end_waiting(at).await;
    }
    gate.open(at).await;
    for database in [&shop, &mail] {
        // Its time is over.
        database.sql("UPDATE howdah.broker SET expires = now()").await;
    }
    let broker = TestBroker::on_stores(&[("shop", &shop), ("mail", &mail)], |_| {}).await;
    if shop.count("SELECT count(*) FROM howdah.type_move").await
        + mail.count("SELECT count(*) FROM howdah.type_arrival").await
        > 0
        || shop.count("SELECT count(*) FROM howdah.job").await > 0
    {
        moved(&broker, "mail").await;
    }
    assert_all_once_in_order(&shop, &mail, &name).await;
    // It is worked on there.
    let mut worker = broker.worker("t").window(3).await;
    let first: Vec<_> = worker.take(3).await.into_iter().map(|job| job.payload).collect();
    assert_eq!(first, ["1", "2", "3"], "{name}");
}

#[tokio::test]
async fn a_move_that_is_killed_while_a_step_is_rolled_back_goes_on() {
    for step in &STEPS {
        killed_at(step, Then::RollsBack).await;
    }
}

#[tokio::test]
async fn a_move_that_is_killed_while_a_step_is_committed_goes_on() {
    for step in &STEPS {
        killed_at(step, Then::Commits).await;
    }
}

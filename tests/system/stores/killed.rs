//! Tests that a broker is killed at each step of moving a task type between stores, and that another broker continues the move.
//! No job is lost or duplicated, and the order is kept.

use howdah_proto::v1::{CreateScheduleRequest, Schedule, schedule::Plan};
use rustix::process::Signal;
use tokio::sync::OnceCell;

use super::{
    empty,
    moving::{moved, to},
};
use crate::support::*;

/// Number of jobs to move, so many that the move needs several batches.
const JOBS: i64 = 2_500;

/// A step of a move, identified by its statement: the store (old or new), the table, and the kind, such as `INSERT`.
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
    old("type_move", "INSERT"),        // the move begins
    new("task_type", "INSERT"),        // the new store gets the type
    new("type_arrival", "INSERT"),     // and does not claim its jobs yet
    new("task_type", "UPDATE"),        // and becomes the home of the type
    old("leaving", "INSERT"),          // jobs leave the old store
    new("arrived", "INSERT"),          // jobs arrive in the new store
    new("ready", "INSERT"),            // and become ready
    old("moved", "INSERT"),            // the old store notes their new ids
    new("type_arrival", "UPDATE"),     // the new store claims jobs of the type
    old("leaving_schedule", "INSERT"), // schedules leave the old store
    new("schedule", "INSERT"),         // schedules arrive in the new store
    old("leaving_schedule", "DELETE"), // the old store forgets the schedules
    old("type_move", "DELETE"),        // the old store forgets the move
    new("type_arrival", "DELETE"),     // the new store forgets the move
];

/// Fate of the statement that is blocked at the step, after its broker was killed.
#[derive(Clone, Copy)]
enum Then {
    /// The statement commits, although no broker gets its result.
    Commits,
    /// The statement is rolled back.
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
    assert_eq!(shop.count(left).await, 0, "{step}: rows that are left in the old store");
    let there = "SELECT (SELECT count(*) FROM howdah.schedule WHERE name = 's') * 10 + (SELECT count(*) FROM howdah.type_arrival)";
    assert_eq!(mail.count(there).await, 10, "{step}");
    let known = format!("SELECT count(*) FROM howdah.moved WHERE old_id <= {JOBS}");
    assert_eq!(shop.count(&known).await, JOBS, "{step}: all old ids are known");
}

/// Returns a store with a type, jobs and a schedule, and an empty store. Both are created once and copied for each
/// step.
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
        start_time: Some(far().into()),
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
    let gate = gate(at, step.table, step.kind).await;
    let service = (*program).clone();
    let moving = tokio::spawn(async move {
        let mut answers = service.stores().move_type(to("mail")).await?.into_inner();
        while answers.message().await?.is_some() {}
        Ok::<(), tonic::Status>(())
    });
    // Waits until the move has reached the step.
    gate.reached(at).await;
    program.kill().await;
    moving.await.expect("no panic").expect_err("the broker was killed");
    if let Then::RollsBack = then {
        end_waiting(at).await;
    }
    gate.open(at).await;
    for database in [&shop, &mail] {
        // Expires the row of the killed broker, so that the next broker continues the move.
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
    // Workers run the jobs in the new store.
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

//! Tests the audit log, which records the principal and the items of each change. An entry and its change commit in one
//! transaction.

mod actions; // a change by each recorded call
mod commands; // howdah audit, --reason
mod refused; // refused calls
mod rows; // entries are immutable
mod sql; // changes by SQL functions

use howdah_proto::{Rpc, v1};
use tonic::Code;

use crate::{access::Guarded, support::*};
use actions::{ACTIONS, act, prepare};

/// An audit entry without its time and connection ids, which differ between runs.
#[derive(Debug, PartialEq)]
struct Entry {
    principal: String,
    method: String,
    types: Vec<String>,
    count: i64,
    ids: Vec<String>,
    reason: String,
}

/// Returns the audit entries since the last call, oldest first.
async fn entries(database: &TestDatabase) -> Vec<Entry> {
    let sql = "SELECT principal, method, types, count, ids, reason FROM howdah.audit ORDER BY id";
    let rows = database.connect().await.query(sql, &[]).await.expect(sql);
    rows.iter()
        .map(|row| Entry {
            principal: row.get(0),
            method: row.get(1),
            types: row.get(2),
            count: row.get(3),
            ids: row.get(4),
            reason: row.get(5),
        })
        .collect()
}

#[tokio::test]
async fn each_call_that_changes_something_writes_one_row_with_who_and_what() {
    let guarded = Guarded::start().await;
    let database = &guarded.broker.database;
    for rpc in ACTIONS {
        let subject = prepare(&guarded.admin, rpc).await;
        let before = entries(database).await.len();
        act(&guarded.admin, rpc, &subject, Some("ticket 42")).await.unwrap_or_else(|error| panic!("{rpc:?}: {error}"));
        let after = entries(database).await;
        let [entry] = &after[before..] else { panic!("{rpc:?}: {:?}", &after[before..]) };
        let principal = entry.principal.as_str();
        let words = (principal, &*entry.method, entry.count, &*entry.reason);
        assert_eq!(words, ("admin", rpc.name(), 1, "ticket 42"), "{rpc:?}");
        assert_eq!((&entry.types, &entry.ids), (&subject.types(rpc), &subject.ids(rpc, entry)), "{rpc:?}");
    }
    let brokers = "SELECT count(*) FROM howdah.audit WHERE broker <> '' AND peer LIKE '127.0.0.1:%'";
    assert_eq!(guarded.broker.count(brokers).await, entries(database).await.len() as i64);
}

#[tokio::test]
async fn calls_other_than_operator_actions_write_no_row() {
    let guarded = Guarded::start().await;
    let rest: Vec<Rpc> = Rpc::ALL.iter().copied().filter(|rpc| !ACTIONS.contains(rpc)).collect();
    for rpc in rest {
        let _ = crate::access::call(&guarded.admin, rpc, "t").await;
    }
    assert_eq!(entries(&guarded.broker.database).await, []);
}

#[tokio::test]
async fn an_operator_action_that_changes_nothing_writes_no_row() {
    let guarded = Guarded::start().await;
    assert!(guarded.admin.cancel(&[1]).await.is_empty());
    assert!(guarded.admin.retry(&[1]).await.is_empty());
    let selection = Some(v1::revoke_tokens_request::Selection::Id("none".into()));
    let refused = guarded.admin.access().revoke_tokens(v1::RevokeTokensRequest { selection }).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    assert_eq!(entries(&guarded.broker.database).await, []);
}

#[tokio::test]
async fn settings_that_are_set_to_their_present_values_write_no_row() {
    let guarded = Guarded::start().await;
    for rpc in [Rpc::UpdateTaskType, Rpc::UpdateSchedule, Rpc::PauseSchedule, Rpc::UpdateLimitKey, Rpc::UpdateSettings]
    {
        let subject = prepare(&guarded.admin, rpc).await;
        let before = entries(&guarded.broker.database).await.len();
        for _ in 0..2 {
            act(&guarded.admin, rpc, &subject, None).await.unwrap_or_else(|error| panic!("{rpc:?}: {error}"));
        }
        assert_eq!(entries(&guarded.broker.database).await.len(), before + 1, "{rpc:?}");
    }
}

/// Creates a trigger that runs a statement before each INSERT into the audit log.
async fn before_each_row(database: &TestDatabase, what: &str) {
    let sql = format!(
        "CREATE FUNCTION howdah.meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {what}; RETURN NEW; END $$;
         CREATE TRIGGER meddle BEFORE INSERT ON howdah.audit FOR EACH ROW EXECUTE FUNCTION howdah.meddle()"
    );
    database.sql(&sql).await;
}

#[tokio::test]
async fn a_change_that_cannot_be_recorded_does_not_happen() {
    let guarded = Guarded::start().await;
    let mut subjects = Vec::new();
    for rpc in ACTIONS {
        subjects.push((rpc, prepare(&guarded.admin, rpc).await));
    }
    before_each_row(&guarded.broker.database, "RAISE EXCEPTION 'no'").await;
    let before = actions::snapshot(&guarded.broker.database).await;
    for (rpc, subject) in subjects {
        act(&guarded.admin, rpc, &subject, None).await.expect_err(rpc.name());
        assert_eq!(actions::snapshot(&guarded.broker.database).await, before, "{rpc:?}");
    }
}

#[tokio::test]
async fn a_connection_that_dies_between_a_change_and_its_row_leaves_neither() {
    let guarded = Guarded::start().await;
    let id = guarded.admin.enqueue("t").await;
    before_each_row(&guarded.broker.database, "PERFORM pg_terminate_backend(pg_backend_pid())").await;
    let request = v1::CancelJobsRequest { ids: vec![id], ..Default::default() };
    let refused = guarded.admin.jobs().cancel_jobs(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert_eq!(guarded.admin.state(id).await, v1::JobState::Ready);
    guarded.broker.sql("DROP TRIGGER meddle ON howdah.audit").await;
    assert_eq!(entries(&guarded.broker.database).await, []);
    assert_eq!(guarded.admin.cancel(&[id]).await, [id]);
    assert_eq!(entries(&guarded.broker.database).await.len(), 1);
}

#[tokio::test]
async fn a_broker_killed_between_a_change_and_its_row_leaves_neither() {
    let database = database().await;
    let mut broker = Program::serve(&database, &[]).await;
    let id = broker.enqueue("t").await;
    // A trigger blocks the INSERT of the audit entry until the test releases an advisory lock. The trigger polls instead of
    // waiting for the lock, because brokers give up soon on locks.
    let gate = database.connect().await;
    gate.batch_execute("SELECT pg_advisory_lock(7)").await.expect("the gate");
    let is_shut = "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND objid = 7
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    before_each_row(&database, &format!("WHILE ({is_shut}) LOOP PERFORM pg_sleep(0.01); END LOOP")).await;
    let service = (*broker).clone();
    let request = v1::CancelJobsRequest { ids: vec![id], ..Default::default() };
    let cancelling = tokio::spawn(async move { service.jobs().cancel_jobs(request).await });
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                    AND query LIKE '%INSERT INTO howdah.audit %' AND pid <> pg_backend_pid()";
    eventually("a blocked INSERT of an audit entry", async || database.count(sessions).await == 1).await;
    broker.kill().await;
    cancelling.await.expect("no panic").expect_err("the broker was killed");
    gate.batch_execute("SELECT pg_advisory_unlock(7)").await.expect("an open gate");
    eventually("the rollback of the killed broker's transaction", async || database.count(sessions).await == 0).await;
    assert_eq!(database.count(&format!("SELECT count(*) FROM howdah.ready WHERE id = {id}")).await, 1);
    assert_eq!(entries(&database).await, []);
}

#[tokio::test]
async fn a_call_on_many_jobs_records_how_many_and_the_first_of_them() {
    let guarded = Guarded::start().await;
    let ids = guarded.admin.enqueue_all(["a"; 12]).await;
    let other = guarded.admin.enqueue("b").await;
    guarded.admin.cancel(&[&ids[..], &[other]].concat()).await;
    let rows = entries(&guarded.broker.database).await;
    let [entry] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((entry.count, entry.ids.len(), &entry.types[..]), (13, 10, &["a".to_owned(), "b".to_owned()][..]));
}

//! Tests that the replay accepts valid records, and refuses a violation of each rule.

use super::*;

/// Builds a record of row changes.
#[derive(Default)]
struct Record {
    changes: Vec<Change>,
    transaction: i64,
}

fn at(table: Table, attempt: i16) -> Change {
    Change {
        seq: 0,
        transaction: 0,
        table,
        operation: Operation::In,
        job: 7,
        token: None,
        number: None,
        last_token: None,
        attempt,
        max_attempts: 3,
        is_live: None,
        is_late: None,
        by: String::new(),
    }
}

fn leased(token: i64, number: i32, attempt: i16) -> Change {
    Change { token: Some(token), number: Some(number), is_live: Some(true), ..at(Table::Leased, attempt) }
}

fn settled(token: i64, outcome: Outcome, to: Change) -> Change {
    Change { last_token: Some(token ^ outcome as i64), ..to }
}

impl Record {
    /// Adds a transaction that moves a job from one row to another.
    fn moves(mut self, from: impl Into<Option<Change>>, to: impl Into<Option<Change>>) -> Self {
        self.transaction += 1;
        let changes = [(Operation::Out, from.into()), (Operation::In, to.into())];
        for (operation, change) in changes {
            let seq = self.changes.len() as i64 + 1;
            let transaction = self.transaction;
            self.changes.extend(change.map(|change| Change { seq, transaction, operation, ..change }));
        }
        self
    }

    /// Starts a record with a job that broker 1 has leased with token 64.
    fn leased() -> Self {
        Self::default().moves(None, at(Table::Ready, 0)).moves(at(Table::Ready, 0), leased(64, 1, 1))
    }

    fn violation(self) -> String {
        replay(&self.changes).map(|seen| format!("{seen:?}")).expect_err("a violation").problem
    }

    fn allowed(self) -> Replayed {
        replay(&self.changes).unwrap_or_else(|violation| panic!("{violation}"))
    }
}

fn acked() -> Change {
    settled(64, Outcome::Ack, at(Table::History, 1))
}

#[test]
fn a_job_that_is_retried_adopted_released_rescued_and_acked_is_fine() {
    let seen = Record::leased()
        .moves(leased(64, 1, 1), settled(64, Outcome::Retry, at(Table::Scheduled, 1)))
        .moves(at(Table::Scheduled, 1), at(Table::Ready, 1))
        .moves(at(Table::Ready, 1), leased(128, 1, 2))
        .moves(leased(128, 1, 2), leased(128, 2, 2))
        .moves(leased(128, 2, 2), at(Table::Ready, 1))
        .moves(at(Table::Ready, 1), leased(192, 2, 2))
        .moves(Change { is_live: Some(false), ..leased(192, 2, 2) }, at(Table::Ready, 2))
        .moves(at(Table::Ready, 2), leased(256, 1, 3))
        .moves(leased(256, 1, 3), settled(256, Outcome::Ack, at(Table::History, 3)))
        .allowed();
    assert_eq!(seen, Replayed { claims: 4, adoptions: 1, outcomes: 2, ended: 1, rescues: 1 });
}

#[test]
fn a_job_goes_directly_to_a_worker_and_a_type_may_keep_no_history() {
    let seen = Record::default().moves(None, leased(64, 1, 1)).moves(leased(64, 1, 1), None).allowed();
    assert_eq!((seen.claims, seen.outcomes), (1, 1));
}

#[test]
fn after_its_last_attempt_a_job_is_dead_or_in_its_fallback_and_not_before() {
    let last = || Record::default().moves(None, at(Table::Ready, 2)).moves(at(Table::Ready, 2), leased(64, 1, 3));
    let retry = |to: Change| settled(64, Outcome::Retry, to);
    last().moves(leased(64, 1, 3), retry(at(Table::Dead, 3))).allowed();
    last().moves(leased(64, 1, 3), retry(at(Table::Ready, 0))).allowed();
    assert!(last().moves(leased(64, 1, 3), retry(at(Table::Ready, 3))).violation().contains("should be"));
    assert!(Record::leased().moves(leased(64, 1, 1), retry(at(Table::Dead, 1))).violation().contains("should be"));
    Record::leased().moves(leased(64, 1, 1), settled(64, Outcome::Dead, at(Table::Dead, 1))).allowed();
}

#[test]
fn a_job_that_comes_from_nowhere_or_is_in_two_tables_is_found() {
    assert!(Record::default().moves(leased(64, 1, 1), acked()).violation().contains("where it was not"));
    assert!(Record::leased().moves(None, at(Table::Ready, 1)).violation().contains("another table"));
    let mut twice = Record::leased().moves(leased(64, 1, 1), acked());
    let more = Change { seq: 9, transaction: 3, ..at(Table::Ready, 1) };
    twice.changes.push(more);
    assert!(twice.violation().contains("after one transaction"));
}

#[test]
fn an_attempt_that_is_not_counted_is_found() {
    let wrong = Record::leased().moves(leased(64, 1, 1), settled(64, Outcome::Retry, at(Table::Ready, 0))).violation();
    assert!(wrong.contains("should be"), "{wrong}");
    let ready = Record::default().moves(None, at(Table::Ready, 1));
    assert!(ready.moves(at(Table::Ready, 1), leased(64, 1, 1)).violation().contains("should be"));
}

#[test]
fn a_token_that_is_given_twice_or_changed_is_found() {
    let released = Record::leased().moves(leased(64, 1, 1), at(Table::Ready, 0));
    assert!(released.moves(at(Table::Ready, 0), leased(64, 1, 1)).violation().contains("given before"));
    assert!(Record::leased().moves(leased(64, 1, 1), leased(65, 2, 1)).violation().contains("token"));
}

#[test]
fn a_claim_an_adoption_or_a_rescue_by_an_expired_broker_is_found() {
    let expired = |change: Change| Change { is_live: Some(false), ..change };
    let ready = Record::default().moves(None, at(Table::Ready, 0));
    assert!(ready.moves(at(Table::Ready, 0), expired(leased(64, 1, 1))).violation().contains("had expired"));
    assert!(Record::leased().moves(leased(64, 1, 1), expired(leased(64, 2, 1))).violation().contains("had expired"));
}

#[test]
fn a_lease_that_another_living_broker_ended_is_found() {
    let by = |name: &str, change: Change| Change { by: name.into(), ..change };
    let registered = |name: &str, number: i32| {
        by(name, Change { job: i64::from(number), number: Some(number), ..at(Table::Broker, 0) })
    };
    let start = || {
        Record::default()
            .moves(None, registered("a", 1))
            .moves(None, registered("b", 2))
            .moves(None, at(Table::Ready, 0))
            .moves(at(Table::Ready, 0), leased(64, 1, 1))
    };
    let wrong = start().moves(by("b", leased(64, 1, 1)), at(Table::Ready, 1)).violation();
    assert!(wrong.contains("which was live"), "{wrong}");
    start().moves(by("a", leased(64, 1, 1)), at(Table::Ready, 1)).allowed();
    start().moves(by("b", Change { is_late: Some(true), ..leased(64, 1, 1) }), at(Table::Scheduled, 1)).allowed();
}

#[test]
fn a_change_of_a_finished_job_is_found() {
    let finished = Record::leased().moves(leased(64, 1, 1), acked());
    assert!(finished.moves(acked(), at(Table::Ready, 0)).violation().contains("finished"));
}

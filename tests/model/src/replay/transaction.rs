//! Merges the row changes of a transaction into moves of jobs, from the first table of a job to its last.

use std::collections::HashMap;

use super::{Change, Operation, Table, Violation};
use crate::tables::Job;

/// Effect of a transaction on one job.
#[derive(Clone, Debug)]
pub(super) struct Move {
    /// Sequence number of the transaction's first change of the job.
    pub(super) seq: i64,
    pub(super) job: Job,
    /// Row before the transaction; `None` for a new job.
    pub(super) from: Option<Change>,
    /// Row after the transaction; `None` if the job was deleted.
    pub(super) to: Option<Change>,
}

/// Moves in order.
pub(super) type Moves = Vec<Move>;

/// Merges the changes of each transaction into one move per job. Fails if a job is in two tables before or after a
/// transaction.
pub(super) fn moves(changes: &[Change]) -> Result<Moves, Violation> {
    let mut by_job: HashMap<(i64, bool, Job), Vec<&Change>> = HashMap::new();
    let mut order = Vec::new();
    for change in changes {
        let key = (change.transaction, change.table == Table::Broker, change.job);
        let of_job = by_job.entry(key).or_default();
        if of_job.is_empty() {
            order.push(key);
        }
        of_job.push(change);
    }
    let mut moves = Vec::with_capacity(order.len());
    for key in order {
        moves.push(merge(key.2, &by_job[&key])?);
    }
    Ok(moves)
}

fn merge(job: Job, changes: &[&Change]) -> Result<Move, Violation> {
    let seq = changes[0].seq;
    // Skip rows that the same transaction inserted and deleted, because no other transaction can see them.
    let mut inside: Vec<&Change> = Vec::new();
    let mut outside: Vec<&Change> = Vec::new();
    // The triggers of one statement fire in arbitrary order, so process inserts first.
    for change in changes.iter().filter(|change| change.operation == Operation::In) {
        inside.push(change);
    }
    for change in changes.iter().filter(|change| change.operation == Operation::Out) {
        let same = |other: &&Change| {
            other.table == change.table && other.token == change.token && other.number == change.number
        };
        let passed_through = inside.iter().position(|other| same(other) && other.seq < change.seq);
        match passed_through {
            Some(at) => drop(inside.remove(at)),
            None => outside.push(change),
        }
    }
    match (&outside[..], &inside[..]) {
        ([] | [_], [] | [_]) => {
            let one = |changes: &[&Change]| changes.first().map(|change| (*change).clone());
            Ok(Move { seq, job, from: one(&outside), to: one(&inside) })
        }
        (from, to) => {
            let tables = |changes: &[&Change]| changes.iter().map(|change| change.table).collect::<Vec<_>>();
            let problem =
                format!("the job left the tables {:?} and is in {:?} after one transaction", tables(from), tables(to));
            Err(Violation { seq, job, problem })
        }
    }
}

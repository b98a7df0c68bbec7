//! Changes of rows become moves of jobs: what a transaction did to a job, from where it found it to where it left it.

use std::collections::HashMap;

use super::{Change, Operation, Table, Violation};
use crate::tables::Job;

/// What a transaction did to a job.
#[derive(Clone, Debug)]
pub(super) struct Move {
    /// Its first change.
    pub(super) seq: i64,
    pub(super) job: Job,
    /// Where it was; none: it is new.
    pub(super) from: Option<Change>,
    /// Where it is; none: it is nowhere any more.
    pub(super) to: Option<Change>,
}

/// The moves, in their order.
pub(super) type Moves = Vec<Move>;

/// Merges changes. A job is in one place before and after each transaction.
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
    // What comes in and goes out again in the same transaction is nothing to anybody else.
    let mut inside: Vec<&Change> = Vec::new();
    let mut outside: Vec<&Change> = Vec::new();
    // The triggers of one statement fire in no order that means anything: inserts first.
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
            let what = format!("it left {:?} and is in {:?} after one transaction", tables(from), tables(to));
            Err(Violation { seq, job, what })
        }
    }
}

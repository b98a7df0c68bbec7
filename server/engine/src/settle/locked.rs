//! Outcomes whose leases another transaction has locked. The side lane writes them, so that no other outcome waits for
//! them, and answers them after their commit.

use howdah_core::{
    job::{Lease, SettleStatus, Settlement},
    logging::ThrottleByKind,
};

use super::{LockedOutcome, Writer, traces};
use crate::{
    side_lane::{Item, SideLane, Unwritten, Work},
    store::{Lane, LockWait, Nack, Nacked, StoreError},
};

impl Item for LockedOutcome {
    /// Job id.
    type Need = i64;

    fn needs(&self) -> Vec<i64> {
        vec![self.settlement.lease.id]
    }

    fn is_over(&self) -> bool {
        self.is_late()
    }

    fn held_by(&mut self, holders: Option<&str>) {
        self.holders = holders.map(str::to_owned);
    }
}

/// Writes the outcomes of the side lane.
pub(super) struct Locked {
    short: Writer,
    long: Writer,
}

impl Locked {
    pub(super) fn new(writer: &Writer) -> Self {
        Self { short: writer.for_lane(LockWait::Short), long: writer.for_lane(LockWait::Long) }
    }
}

impl Work for Locked {
    type Item = LockedOutcome;

    async fn write(&self, items: Vec<LockedOutcome>, lock_wait: LockWait) -> Unwritten<LockedOutcome> {
        let writer = match lock_wait {
            LockWait::Short => &self.short,
            LockWait::Long => &self.long,
        };
        let settlements: Vec<&Settlement> = items.iter().map(|item| &item.settlement).collect();
        let written = writer.write(&settlements, |_| false).await;
        let mut unwritten = Unwritten { locked: Vec::new(), alone: Vec::new() };
        for (item, status) in items.into_iter().zip(written) {
            match status {
                Written::As(status) => {
                    let trace = traces::settled(
                        writer.dispatch.traces(),
                        std::slice::from_ref(&item.settlement),
                        &[Written::As(status)],
                    );
                    writer.metrics.settle_latency.observe_traced(item.waited().as_secs_f64(), trace);
                    item.settled(status);
                }
                Written::Locked => unwritten.locked.push(item),
                Written::Alone => unwritten.alone.push(item),
            }
        }
        unwritten
    }

    async fn holders(&self) -> Option<String> {
        self.long.store.find_holders(Lane::Settle).await
    }

    fn give_up(&self, item: LockedOutcome) {
        static GIVEN_UP: ThrottleByKind = ThrottleByKind::new();
        let why = match item.holders.as_deref() {
            Some(holders) => format!("the job is {holders}"),
            None => "another transaction has locked the job, or Postgres refuses the outcome".into(),
        };
        if let Some(times) = GIVEN_UP.count("") {
            let (job, waited) = (item.settlement.lease.id, item.waited());
            tracing::warn!(job, ?waited, times, "an outcome could not be written: {why}; the worker may send it again");
        }
        item.settled(SettleStatus::Unavailable);
    }
}

/// Result of writing one outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The outcome has this status as its answer.
    As(SettleStatus),
    /// The job is locked.
    Locked,
    /// The outcome must be written in a separate statement: another lock than the job's blocks it, or Postgres refuses
    /// it.
    Alone,
}

/// Moves lock-blocked outcomes to the side lane. Outcomes for which the lane has no room are answered with UNAVAILABLE.
pub(super) fn move_to_side_lane(lane: &SideLane<LockedOutcome>, outcomes: Vec<LockedOutcome>) {
    if outcomes.is_empty() {
        return;
    }
    for outcome in lane.add(outcomes) {
        outcome.settled(SettleStatus::Unavailable);
    }
}

impl Writer {
    /// Returns a writer that uses the connections of the side lane.
    pub(super) fn for_lane(&self, lock_wait: LockWait) -> Self {
        Self { store: self.store.side_lane(Lane::Settle, lock_wait), ..self.clone() }
    }

    /// Ends leases as `settle_nacks` does, except locked ones. Returns the ended leases, the locked ones, and the
    /// error, if any.
    pub(super) async fn nack_unlocked(
        &self,
        nacks: Vec<Nack>,
        owners: Option<&[i32]>,
        expired: bool,
    ) -> (Vec<Nacked>, Vec<Nack>, Result<(), StoreError>) {
        let (mut done, mut locked) = (Vec::new(), Vec::new());
        let (mut todo, mut writer) = (vec![nacks], self.clone());
        while let Some(part) = todo.pop() {
            let (nacked, result) = writer.settle_nacks(&part, owners, expired).await;
            let is_done = |nack: &Nack| nacked.iter().any(|nacked| nacked.id == nack.lease.id);
            match result {
                Ok(()) => {}
                Err(StoreError::Locked(_)) => {
                    // Coordinated jobs are written by a separate statement, so the other jobs may be settled already.
                    let mut left: Vec<Nack> = part.into_iter().filter(|nack| !is_done(nack)).collect();
                    if left.len() == 1 {
                        locked.append(&mut left);
                    } else {
                        let (held, free) = self.divide(left).await;
                        locked.extend(held);
                        todo.extend(free);
                    }
                    writer = self.for_lane(LockWait::Short);
                }
                Err(error) => {
                    done.extend(nacked);
                    return (done, locked, Err(error));
                }
            }
            done.extend(nacked);
        }
        (done, locked, Ok(()))
    }

    /// Separates locked leases from the others. If none is locked, another lock blocked the statement: halves the
    /// nacks.
    async fn divide(&self, mut nacks: Vec<Nack>) -> (Vec<Nack>, Vec<Vec<Nack>>) {
        let leases: Vec<Lease> = nacks.iter().map(|nack| nack.lease).collect();
        let locked = self.locked_of(&leases).await;
        if locked.is_empty() {
            let second = nacks.split_off(nacks.len() / 2);
            return (Vec::new(), vec![second, nacks]);
        }
        let (held, free): (Vec<_>, Vec<_>) = nacks.into_iter().partition(|nack| locked.contains(&nack.lease.id));
        (held, if free.is_empty() { Vec::new() } else { vec![free] })
    }

    /// Returns the jobs of these leases that are locked now; empty if the query fails.
    pub(super) async fn locked_of(&self, leases: &[Lease]) -> Vec<i64> {
        let ids: Vec<i64> = leases.iter().map(|lease| lease.id).collect();
        self.store.locked_leases(&ids).await.unwrap_or_default()
    }
}

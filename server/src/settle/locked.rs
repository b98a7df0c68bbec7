//! Outcomes of leases that another transaction has locked. They are written in a lane of their own, so that no other
//! outcome waits for them, and are answered when they are written.

use super::{LockedOutcome, Writer, traces};
use crate::{
    job::{Lease, SettleStatus, Settlement},
    side_lane::{Item, SideLane, Unwritten, Work},
    store::{Lane, Nack, Nacked, Patience, StoreError},
};

impl Item for LockedOutcome {
    /// The job.
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

/// The work of the lane.
pub(super) struct Locked {
    short: Writer,
    long: Writer,
}

impl Locked {
    pub(super) fn new(writer: &Writer) -> Self {
        Self { short: writer.aside(Patience::Short), long: writer.aside(Patience::Long) }
    }
}

impl Work for Locked {
    type Item = LockedOutcome;

    async fn write(&self, items: Vec<LockedOutcome>, patience: Patience) -> Unwritten<LockedOutcome> {
        let writer = match patience {
            Patience::Short => &self.short,
            Patience::Long => &self.long,
        };
        let settlements: Vec<&Settlement> = items.iter().map(|item| &item.settlement).collect();
        let written = writer.write(&settlements, |_| false).await;
        let mut unwritten = Unwritten { locked: Vec::new(), apart: Vec::new() };
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
                Written::Apart => unwritten.apart.push(item),
            }
        }
        unwritten
    }

    async fn holders(&self) -> Option<String> {
        self.long.store.see_holders(Lane::Settle).await
    }

    fn give_up(&self, item: LockedOutcome) {
        let holders = item.holders.as_deref().unwrap_or("locked by another transaction");
        let waited = item.waited();
        tracing::warn!(
            job = item.settlement.lease.id,
            ?waited,
            "an outcome could not be written: its job is {holders}"
        );
        item.settled(SettleStatus::Unavailable);
    }
}

/// What became of an outcome in a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// It has its answer.
    As(SettleStatus),
    /// Its job is locked.
    Locked,
    /// It was in a statement with others, and something that one of them needs is locked.
    Apart,
}

/// These met a lock.
pub(super) fn wait_aside(lane: &SideLane<LockedOutcome>, outcomes: Vec<LockedOutcome>) {
    if outcomes.is_empty() {
        return;
    }
    for outcome in lane.add(outcomes) {
        outcome.settled(SettleStatus::Unavailable);
    }
}

impl Writer {
    /// The same on the connections of what is locked.
    pub(super) fn aside(&self, patience: Patience) -> Self {
        Self { store: self.store.aside(Lane::Settle, patience), ..self.clone() }
    }

    /// Ends leases as `settle_nacks` does, but for those that are locked, which it returns.
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
                    // Coordinated jobs are a statement of their own: the others may be done.
                    let mut left: Vec<Nack> = part.into_iter().filter(|nack| !is_done(nack)).collect();
                    if left.len() == 1 {
                        locked.append(&mut left);
                    } else {
                        let (held, free) = self.divide(left).await;
                        locked.extend(held);
                        todo.extend(free);
                    }
                    writer = self.aside(Patience::Short);
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

    /// Those whose leases are locked, and the others; in halves if none is, since it must be something else.
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

    /// The jobs of these leases that are locked now; none if that cannot be told.
    pub(super) async fn locked_of(&self, leases: &[Lease]) -> Vec<i64> {
        let ids: Vec<i64> = leases.iter().map(|lease| lease.id).collect();
        self.store.locked_leases(&ids).await.unwrap_or_default()
    }
}

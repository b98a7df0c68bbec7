//! Writes a batch of outcomes.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use howdah_core::job::{AttemptGroups, Lease, Outcome, Ready, SettleStatus, Settlement, Started, TaskTypeName};

use super::{Writer, locked::Written, traces};
use crate::{
    backoff::Backoff,
    store::{Action, Actor, LeaseFacts, Nack, Nacked, StoreError, Wakeups},
};

/// Maximum number of splits of a batch: enough to find one refused outcome among thousands. It bounds the statements if
/// Postgres refuses all outcomes.
const MOST_SPLITS: u32 = 13;

/// Minimum time that outcomes wait for an unreachable Postgres. If they were answered earlier, callers would retry
/// immediately.
const MIN_RETRY: Duration = Duration::from_secs(1);

impl Writer {
    /// Writes outcomes and returns their results in order. Settling compares the token first, so it can safely be
    /// repeated after a lost connection. Outcomes of jobs for which `is_locked` returns true are not tried.
    pub(super) async fn write(&self, settlements: &[&Settlement], is_locked: impl Fn(i64) -> bool) -> Vec<Written> {
        let mut written = vec![Written::As(SettleStatus::Unavailable); settlements.len()];
        let (rounds, repeats) = rounds(settlements);
        let mut locked: HashSet<i64> = HashSet::new();
        for mut round in rounds {
            // Keeps the outcomes of a job in order: after a locked outcome, the later outcomes of the job count as
            // locked.
            round.retain(|&i| {
                let id = settlements[i].lease.id;
                let is_free = !locked.contains(&id) && !is_locked(id);
                if !is_free {
                    written[i] = Written::Locked;
                }
                is_free
            });
            self.write_unlocked(settlements, round, &mut written, &mut locked).await;
        }
        for (repeat, first) in repeats {
            written[repeat] = written[first];
        }
        written
    }

    /// Writes the outcomes of one round, except locked ones. If Postgres refuses the round, it is split until each
    /// refused outcome is alone.
    async fn write_unlocked(
        &self,
        settlements: &[&Settlement],
        round: Vec<usize>,
        written: &mut [Written],
        locked: &mut HashSet<i64>,
    ) {
        let begun = Instant::now();
        let deadline = begun + self.timeout;
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        let mut searched = round.len() == 1;
        let (mut parts, mut left, mut splits) = (vec![round], Vec::new(), 0);
        loop {
            while let Some(part) = parts.pop() {
                let error = match self.write_round(settlements, &part, written).await {
                    Ok(()) => continue,
                    Err(error) => error,
                };
                if let StoreError::Locked(_) = &error {
                    let found = self.without_locked(settlements, part, written, locked, &mut searched).await;
                    parts.extend(found);
                    continue;
                }
                self.store.log_failure("writing outcomes", &error);
                self.metrics.store_errors.inc();
                match &part[..] {
                    [_, _, ..] if splits < MOST_SPLITS && error.may_spare_other_jobs() => {
                        splits += 1;
                        let (first, second) = part.split_at(part.len() / 2);
                        parts.extend([second.to_vec(), first.to_vec()]);
                    }
                    // The refused outcome is retried in the side lane, so that the other outcomes do not wait for it.
                    [alone] if error.may_spare_other_jobs() && matches!(error, StoreError::RolledBack(_)) => {
                        written[*alone] = Written::Alone;
                        locked.insert(settlements[*alone].lease.id);
                    }
                    _ if error.is_refused() => {}
                    _ => left.extend(part),
                }
            }
            let gives_up = self.store.is_unreachable() && begun.elapsed() >= MIN_RETRY;
            if left.is_empty() || gives_up || Instant::now() + backoff.next() >= deadline {
                return;
            }
            backoff.pause().await;
            parts.push(std::mem::take(&mut left));
        }
    }

    /// Returns the outcomes of a round that no other transaction has locked, and marks the others. Returns `None` if no
    /// outcome is left. If no lease is locked, another lock blocks the round: all outcomes are marked `Alone`.
    async fn without_locked(
        &self,
        settlements: &[&Settlement],
        round: Vec<usize>,
        written: &mut [Written],
        locked: &mut HashSet<i64>,
        searched: &mut bool,
    ) -> Option<Vec<usize>> {
        let leases: Vec<Lease> = round.iter().map(|&i| settlements[i].lease).collect();
        let found = if *searched { Vec::new() } else { self.locked_of(&leases).await };
        *searched = true;
        if found.is_empty() {
            round.iter().for_each(|&i| written[i] = Written::Alone);
            locked.extend(leases.iter().map(|lease| lease.id));
            return None;
        }
        locked.extend(found);
        let (held, free): (Vec<usize>, Vec<usize>) =
            round.into_iter().partition(|&i| locked.contains(&settlements[i].lease.id));
        held.into_iter().for_each(|i| written[i] = Written::Locked);
        (!free.is_empty()).then_some(free)
    }

    async fn write_round(
        &self,
        all: &[&Settlement],
        round: &[usize],
        written: &mut [Written],
    ) -> Result<(), StoreError> {
        let (acks, others): (Vec<usize>, Vec<usize>) =
            round.iter().partition(|&&i| matches!(all[i].outcome, Outcome::Ack { .. }));
        let mut done: HashSet<i64> = HashSet::new();
        if !acks.is_empty() {
            let acks: Vec<Ack<'_>> = acks.iter().map(|&i| Ack::new(all[i])).collect();
            self.write_acks(&acks, &mut done).await?;
        }
        if !others.is_empty() {
            let others: Vec<&Settlement> = others.iter().map(|&i| all[i]).collect();
            done.extend(self.write_nacks(&others).await?.iter().map(|n| n.id));
        }
        let failed: Vec<usize> = round.iter().copied().filter(|&i| !done.contains(&all[i].lease.id)).collect();
        let before = self.settled_before(all, &failed).await?;
        for &i in round {
            let ok = done.contains(&all[i].lease.id) || before.contains(&i);
            written[i] = Written::As(if ok { SettleStatus::Ok } else { SettleStatus::LeaseLost });
        }
        self.metrics.count_settled("lease_lost", failed.len() - before.len().min(failed.len()));
        Ok(())
    }

    /// Writes acks. A plain statement settles most of them. Coordinated jobs, and jobs with a next stage, are settled
    /// by a second statement.
    async fn write_acks(&self, acks: &[Ack<'_>], done: &mut HashSet<i64>) -> Result<(), StoreError> {
        let short: Vec<(Lease, &[u8])> =
            acks.iter().filter(|ack| ack.next_stage.is_none()).map(|ack| (ack.lease, ack.result)).collect();
        if !short.is_empty() {
            let started = acks.iter().filter(|ack| ack.next_stage.is_none()).map(|ack| ack.started);
            let groups = AttemptGroups::from_attempts(started);
            let acked = self.store.settle_acks(&short, &self.registry.short_histories(), groups.as_ref()).await?;
            self.metrics.count_settled("ack", acked.ids.len());
            self.brakes.succeeded(&acked.limited_types);
            self.dispatch.limits_freed(acked.limited_types);
            done.extend(acked.ids);
        }
        if done.len() == acks.len() {
            return Ok(());
        }
        let mut long = Vec::new();
        for ack in acks.iter().filter(|ack| !done.contains(&ack.lease.id)) {
            let next = match ack.next_stage {
                Some(name) => self.registry.resolve_now(std::slice::from_ref(name), "").await?.first().copied(),
                None => None,
            };
            long.push((ack.lease, ack.result, next));
        }
        let acked = self.store.ack_coordinated(&long).await?;
        self.metrics.count_settled("ack", acked.ids.len());
        self.brakes.succeeded(&acked.limited_types);
        self.dispatch.limits_freed(acked.limited_types);
        self.dispatch.wakeups(&acked.wakeups);
        done.extend(acked.ids);
        Ok(())
    }

    /// Returns which of the outcomes without effect (`failed`) an earlier call had settled in the same way.
    async fn settled_before(&self, all: &[&Settlement], failed: &[usize]) -> Result<HashSet<usize>, StoreError> {
        if failed.is_empty() {
            return Ok(HashSet::new());
        }
        let outcomes: Vec<_> = failed.iter().map(|&i| (all[i].lease, all[i].outcome.kind())).collect();
        let before = self.store.settled_before(&outcomes).await?;
        Ok(before.into_iter().filter_map(|index| failed.get(index).copied()).collect())
    }

    async fn write_nacks(&self, settlements: &[&Settlement]) -> Result<Vec<Nacked>, StoreError> {
        let leases: Vec<Lease> = settlements.iter().map(|s| s.lease).collect();
        let mut facts = self.store.lease_facts(&leases).await?;
        if facts.len() < leases.len() && !self.store.regain(&leases).await?.is_empty() {
            facts = self.store.lease_facts(&leases).await?;
        }
        let facts: HashMap<i64, &LeaseFacts> = facts.iter().map(|f| (f.id, f)).collect();
        let nacks: Vec<Nack> = settlements.iter().map(|s| self.nack(s, facts.get(&s.lease.id).copied())).collect();
        let (nacked, result) = self.settle_nacks(&nacks, None, false).await;
        result.map(|()| nacked)
    }

    /// Writes nacks. If a statement fails midway, returns the nacks that took effect, and sends their wake-ups.
    pub(super) async fn settle_nacks(
        &self,
        nacks: &[Nack],
        owners: Option<&[i32]>,
        expired: bool,
    ) -> (Vec<Nacked>, Result<(), StoreError>) {
        let mut nacked = Vec::new();
        let result = self.store.settle_nacks(nacks, owners, expired, &mut nacked).await;
        let (woken, result) = match result {
            Ok(woken) => (woken, Ok(())),
            Err(error) => (Wakeups::default(), Err(error)),
        };
        self.follow_up(nacks, &nacked, &woken, expired);
        (nacked, result)
    }

    /// Ends leases of the broker `owner` (0 for leases without a broker) for an operator: all of them or none.
    pub(super) async fn end_leases(&self, nacks: &[Nack], owner: i32, by: &Actor) -> Result<Vec<Nacked>, StoreError> {
        let (nacked, woken) = self.store.end_leases(nacks, owner, by).await?;
        self.follow_up(nacks, &nacked, &woken, false);
        Ok(nacked)
    }

    fn nack(&self, settlement: &Settlement, facts: Option<&LeaseFacts>) -> Nack {
        let ms = |d: Duration| d.as_millis() as i64;
        let (action, delay_ms, error) = match &settlement.outcome {
            Outcome::Retry { error, after } => {
                (Action::Retry, after.map_or_else(|| self.retry_delay_ms(facts), ms), Some(error.clone()))
            }
            Outcome::Dead { error } => (Action::Dead, 0, Some(error.clone())),
            Outcome::Snooze { delay } => (Action::Snooze, ms(*delay), None),
            Outcome::Release | Outcome::Ack { .. } => (Action::Release, 0, None),
        };
        Nack { lease: settlement.lease, action, delay_ms, error }
    }

    /// Returns the retry delay by the retry policy of the job, its task type, or the broker. Without facts the lease is
    /// lost, and the delay has no effect.
    pub(super) fn retry_delay_ms(&self, facts: Option<&LeaseFacts>) -> i64 {
        facts.map_or(0, |f| {
            let policy = self.registry.retry_policy(f.type_id, f.options.as_deref());
            policy.delay(f.attempt.max(1) as u32, &mut rand::rng()).as_millis() as i64
        })
    }

    /// Ends the spans, sends the wake-ups and counts the metrics of written nacks.
    fn follow_up(&self, nacks: &[Nack], nacked: &[Nacked], woken: &Wakeups, expired: bool) {
        traces::nacked(self.dispatch.traces(), nacks, nacked, expired);
        self.dispatch.wakeups(woken);
        self.brakes.failed(nacked);
        self.dispatch
            .limits_freed(nacked.iter().map(|n| n.left_type).filter(|id| self.registry.has_limits(*id)).collect());
        let ready =
            nacked.iter().filter_map(|n| n.rank.map(|lowest_rank| Ready { type_id: n.type_id, lowest_rank, jobs: 1 }));
        self.dispatch.ready(ready.clone());
        // Jobs that this broker could not send are announced to the other brokers, even if this broker has capacity.
        if nacked.iter().any(|n| n.action == Action::Release) {
            self.wake.announce(&ready.collect::<Vec<_>>());
        }
        let put_off =
            |n: &&Nacked| n.rank.is_none() && n.delay_ms > 0 && matches!(n.action, Action::Retry | Action::Snooze);
        if let Some(ms) = nacked.iter().filter(put_off).map(|n| n.delay_ms).min() {
            self.wake.due_in(Duration::from_millis(ms.max(0) as u64));
        }
        for (action, name) in [
            (Action::Retry, "retry"),
            (Action::Dead, "dead"),
            (Action::Snooze, "snooze"),
            (Action::Release, "release"),
            (Action::Lost, "lost"),
            (Action::Fallback, "fallback"),
            (Action::Superseded, "superseded"),
        ] {
            self.metrics.count_settled(name, nacked.iter().filter(|n| n.action == action).count());
        }
    }
}

/// An ack to write.
struct Ack<'a> {
    lease: Lease,
    result: &'a [u8],
    next_stage: Option<&'a TaskTypeName>,
    started: Option<Started>,
}

impl<'a> Ack<'a> {
    fn new(settlement: &'a Settlement) -> Self {
        let (result, next_stage) = match &settlement.outcome {
            Outcome::Ack { result, next_stage } => (&result[..], next_stage.as_deref()),
            _ => (&[][..], None),
        };
        Self { lease: settlement.lease, result, next_stage, started: settlement.started }
    }
}

/// Maximum number of different outcomes that are tried for one job in a batch. A job has one current lease, and perhaps
/// an earlier one whose worker still sends an outcome.
const ROUNDS: usize = 3;

/// Groups the indexes of the outcomes into rounds, sorted by id, in which each job id occurs once. If two tokens or two
/// kinds of outcome arrive for one job, the second is settled after the first. `repeats` pairs the index of a repeated
/// outcome with its first occurrence, which is settled once. An outcome in no round is answered with UNAVAILABLE, so
/// its worker sends it again.
fn rounds(settlements: &[&Settlement]) -> (Vec<Vec<usize>>, Vec<(usize, usize)>) {
    let mut places: Vec<usize> = (0..settlements.len()).collect();
    places.sort_by_key(|&i| (settlements[i].lease, i));
    let mut rounds: Vec<Vec<usize>> = vec![Vec::with_capacity(places.len())];
    let mut repeats = Vec::new();
    let (mut last, mut times) = (None::<usize>, 0);
    for place in places {
        let it = settlements[place];
        match last.map(|first| (first, settlements[first])) {
            Some((first, other)) if other.lease == it.lease && other.outcome.kind() == it.outcome.kind() => {
                repeats.push((place, first));
                continue;
            }
            Some((_, other)) if other.lease.id == it.lease.id => times += 1,
            _ => times = 0,
        }
        last = Some(place);
        if times >= ROUNDS {
            continue;
        }
        if rounds.len() <= times {
            rounds.push(Vec::new());
        }
        rounds[times].push(place);
    }
    (rounds, repeats)
}

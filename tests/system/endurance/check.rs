//! Checks the invariants at the end of an endurance test, against the records and the tables.

#[cfg(test)]
mod tests;

mod tables; // the tables at the end

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use super::{
    load::Load,
    mix::{MAX_ATTEMPTS, MAX_RUNNING, Mix},
    record::{self, Lease, Line},
    watch::Watch,
};
use tables::{Stored, drain, moved, stored, ticks};

/// The records of one lease, from its delivery to the result of its outcome.
#[derive(Default)]
struct Delivery {
    begun: u64,
    attempt: u32,
    task_type: String,
    name: String,
    lost: Option<u64>,
    /// Send time of the last confirmed progress report of the job, in microseconds; 0 without a report.
    alive: u64,
    sent: Option<(u64, String)>,
    /// Statuses with which brokers answered the outcome of this lease, in order of arrival.
    answers: Vec<String>,
}

impl Delivery {
    fn ok(&self) -> bool {
        self.answers.iter().any(|answer| answer == "Ok")
    }

    /// Last time at which the broker certainly treated this lease as live: the send time of an accepted outcome or a confirmed
    /// report.
    fn held_until(&self) -> u64 {
        let sent = self.sent.as_ref().filter(|_| self.ok()).map_or(0, |(at, _)| *at);
        sent.max(self.alive)
    }
}

/// The data of the records and tables, and the violations found in the data.
pub(super) struct Findings {
    jobs: HashMap<i64, Stored>,
    /// Maps the old id of each job that moved to another store to its new id.
    moved: HashMap<i64, i64>,
    /// Time of the first call of each request, in microseconds.
    requested: HashMap<String, u64>,
    accepted: HashMap<String, Vec<i64>>,
    deliveries: HashMap<Lease, Delivery>,
    pub(super) refused: BTreeMap<String, usize>,
    /// Duration of the longest call, whether it succeeded or failed.
    pub(super) longest_call: Duration,
    /// Number of worker streams that ended or could not be opened.
    broken: usize,
    wrong: Vec<String>,
}

impl Load {
    /// Waits until all jobs have succeeded (or are dead where the test expects it), and checks the invariants.
    pub(super) async fn check(mut self, fault: &str, times: usize) -> Findings {
        self.finish_producing().await;
        let drained = self.drain().await;
        let took = self.began.elapsed();
        // Stop the workers, so that the records are complete.
        for worker in self.workers.iter_mut().flatten() {
            let _ = worker.kill().await;
        }
        let jobs = stored(&self).await;
        let mut findings = Findings::read((jobs, moved(&self).await), record::read(&self.records.path()));
        let mut table_checks = 0;
        for (more, violations) in self.watches.drain(..).map(Watch::end) {
            table_checks += more;
            findings.wrong.extend(violations);
        }
        if let Err(left) = drained {
            findings.wrong.push(left);
        }
        findings.check(self.plan.mix, self.plan.poison);
        if self.plan.mix == Mix::All {
            findings.wrong.extend(ticks(&self).await);
        }
        if self.plan.replayed {
            match self.database.replay().await {
                Ok(replayed) => eprintln!("  {replayed:?}"),
                Err(wrong) => findings.wrong.push(format!("not a step of the model: {wrong}")),
            }
        }
        eprintln!("{fault} × {times}, {} s: {}", took.as_secs(), findings.summary());
        eprintln!(
            "  {table_checks} checks of the tables; the longest call took {:?}; answers that were not OK: {:?}",
            findings.longest_call, findings.refused
        );
        assert!(findings.wrong.is_empty(), "{fault}: {} wrong:\n{}", findings.wrong.len(), findings.first());
        findings
    }

    /// Waits until no unfinished jobs are left. Fails after a minute without progress.
    async fn drain(&self) -> Result<(), String> {
        for database in self.databases() {
            drain(database).await?;
        }
        Ok(())
    }
}

impl Findings {
    fn read((jobs, moved): (HashMap<i64, Stored>, HashMap<i64, i64>), lines: Vec<Line>) -> Self {
        let mut found = Self {
            jobs,
            moved,
            requested: HashMap::new(),
            accepted: HashMap::new(),
            deliveries: HashMap::new(),
            refused: BTreeMap::new(),
            longest_call: Duration::ZERO,
            broken: 0,
            wrong: Vec::new(),
        };
        for line in lines {
            found.take(line);
        }
        found
    }

    /// Returns the final id of a job, which gets a new id with each move to another store.
    fn last_id(&self, mut id: i64) -> i64 {
        while let Some(next) = self.moved.get(&id) {
            id = *next;
        }
        id
    }

    fn delivery(&mut self, lease: Lease) -> &mut Delivery {
        let id = self.last_id(lease.id);
        self.deliveries.entry(Lease { id, ..lease }).or_default()
    }

    fn take(&mut self, line: Line) {
        match line {
            Line::Requested { at, request } => {
                self.requested.entry(request).or_insert(at);
            }
            Line::Broken { .. } => self.broken += 1,
            Line::Accepted { request, ids, after, .. } => {
                self.longest_call = self.longest_call.max(Duration::from_millis(after));
                let ids = ids.into_iter().map(|id| self.last_id(id)).collect();
                self.accepted.insert(request, ids);
            }
            Line::Refused { code, after, .. } => {
                self.longest_call = self.longest_call.max(Duration::from_millis(after));
                *self.refused.entry(code).or_default() += 1;
            }
            Line::Begun { at, lease, attempt, task_type, name } => {
                if self.delivery(lease).begun > 0 {
                    self.wrong.push(format!("{lease:?} was delivered twice"));
                }
                let delivery = self.delivery(lease);
                (delivery.begun, delivery.attempt, delivery.task_type, delivery.name) = (at, attempt, task_type, name);
            }
            Line::Lost { at, lease } => {
                self.delivery(lease).lost.get_or_insert(at);
            }
            Line::Alive { at, lease } => {
                let delivery = self.delivery(lease);
                delivery.alive = delivery.alive.max(at);
            }
            Line::Sent { at, lease, outcome } => {
                self.delivery(lease).sent = Some((at, outcome));
            }
            Line::Settled { lease, status, .. } => {
                self.delivery(lease).answers.push(status);
            }
        }
    }

    fn check(&mut self, mix: Mix, poison: &str) {
        let mut wrong = Vec::new();
        self.stored(poison, &mut wrong);
        self.settled(&mut wrong);
        self.leases(&mut wrong);
        self.attempts(&mut wrong);
        if mix == Mix::All {
            self.limits(&mut wrong);
            self.order(&mut wrong);
        }
        self.wrong.append(&mut wrong);
    }

    /// Finds jobs that are lost, unexpected or dead, or have the payload of another job.
    fn stored(&self, poison: &str, wrong: &mut Vec<String>) {
        let accepted: HashSet<i64> = self.accepted.values().flatten().copied().collect();
        let unanswered = self.requested.keys().filter(|request| !self.accepted.contains_key(*request));
        wrong.extend(unanswered.map(|request| format!("never answered: {request}")));
        for (request, ids) in &self.accepted {
            for (n, id) in ids.iter().enumerate() {
                match self.jobs.get(id) {
                    None => wrong.push(format!("lost: {id}, the job {n} of {request}")),
                    Some(job)
                        if job.task_type != "keyed"
                            && job.payload != poison
                            && job.payload != format!("{request}-{n}") =>
                    {
                        wrong.push(format!("{id} of {request}-{n} is {:?}", job.payload));
                    }
                    Some(_) => {}
                }
            }
        }
        for (id, job) in &self.jobs {
            if !accepted.contains(id) && job.task_type != "tick" {
                wrong.push(format!("unexpected: {id} {} {:?}", job.task_type, job.payload));
            }
            if job.state == "cancelled" && job.task_type != "keyed" {
                wrong.push(format!("cancelled: {id} {}", job.task_type));
            }
            if job.state == "dead" && job.attempt < job.max_attempts {
                wrong.push(format!("dead with attempts left: {id}"));
            }
            if job.state == "dead" && job.payload != poison {
                wrong.push(format!("dead: {id} {:?} after {} attempts", job.payload, job.attempt));
            }
        }
    }

    /// Finds jobs accepted twice, outcomes accepted after the lease was lost, and confirmed acks without effect.
    fn settled(&self, wrong: &mut Vec<String>) {
        let mut done: HashMap<(i64, &str), Lease> = HashMap::new();
        for (lease, delivery) in &self.deliveries {
            let Some((sent, outcome)) = &delivery.sent else { continue };
            if !delivery.ok() {
                continue;
            }
            if delivery.lost.is_some_and(|lost| lost < *sent) {
                wrong.push(format!("{lease:?} was lost, and then settled with OK"));
            }
            if outcome == "ack"
                && let Some(other) = done.insert((lease.id, &delivery.task_type), *lease)
            {
                wrong.push(format!("accepted twice: {lease:?} and {other:?} of {}", delivery.task_type));
            }
            if outcome == "ack" && !self.jobs.contains_key(&lease.id) {
                wrong.push(format!("{lease:?} was acked, and is nowhere"));
            }
        }
        // Every succeeded job must have an ack that a worker sent, even if the worker got no result for it.
        let acked: HashSet<i64> = self
            .deliveries
            .iter()
            .filter(|(_, delivery)| delivery.sent.as_ref().is_some_and(|(_, outcome)| outcome == "ack"))
            .map(|(lease, _)| lease.id)
            .collect();
        let succeeded = self.jobs.iter().filter(|(_, job)| job.state == "succeeded");
        for (id, _) in succeeded.filter(|(id, _)| !acked.contains(id)) {
            wrong.push(format!("{id} has succeeded, and no worker acked it"));
        }
    }

    /// Finds overlapping leases: the periods in which the same job was certainly leased must not overlap.
    fn leases(&self, wrong: &mut Vec<String>) {
        let mut by_job: HashMap<i64, Vec<(u64, u64, Lease)>> = HashMap::new();
        for (lease, delivery) in &self.deliveries {
            if delivery.begun == 0 {
                wrong.push(format!("{lease:?} was never delivered, but a later record names it"));
            }
            by_job.entry(lease.id).or_default().push((delivery.begun, delivery.held_until(), *lease));
        }
        for leases in by_job.values_mut() {
            leases.sort_unstable();
            for (n, (_, until, lease)) in leases.iter().enumerate() {
                // Finds a later lease that began before the last confirmation of this lease, and that was itself confirmed.
                let inside = leases[n + 1..].iter().find(|(begun, held, _)| begun < until && held > begun);
                if let Some((_, _, other)) = inside {
                    wrong.push(format!("overlapping: {lease:?} and {other:?}"));
                }
            }
        }
    }

    /// Finds jobs that were delivered twice with the same attempt number, although the job was not released or snoozed.
    fn attempts(&self, wrong: &mut Vec<String>) {
        let mut seen: HashMap<(i64, &str, u32), Lease> = HashMap::new();
        for (lease, delivery) in &self.deliveries {
            if delivery.attempt > MAX_ATTEMPTS {
                wrong.push(format!("attempt {} of {lease:?}", delivery.attempt));
            }
            // A replaced job counts its attempts from 1 again, so attempt numbers of the type `keyed` may repeat.
            let replaced = delivery.task_type == "keyed";
            if replaced
                || delivery.sent.as_ref().is_some_and(|(_, outcome)| outcome == "release" || outcome == "snooze")
            {
                continue;
            }
            if let Some(other) = seen.insert((lease.id, &delivery.task_type, delivery.attempt), *lease) {
                wrong.push(format!("attempt {} delivered twice: {lease:?} and {other:?}", delivery.attempt));
            }
        }
    }

    /// Checks that the number of jobs that were certainly leased at the same time stays within the limits.
    fn limits(&self, wrong: &mut Vec<String>) {
        let mut changes: Vec<(u64, i32)> = Vec::new();
        for delivery in self.deliveries.values().filter(|delivery| delivery.task_type == "limited") {
            if delivery.held_until() > delivery.begun {
                changes.extend([(delivery.begun, 1), (delivery.held_until(), -1)]);
            }
        }
        changes.sort_unstable();
        let (mut now, mut most) = (0, 0);
        for (_, change) in changes {
            now += change;
            most = most.max(now);
        }
        if most > MAX_RUNNING as i32 {
            wrong.push(format!("{most} jobs of a type with a limit of {MAX_RUNNING} at once"));
        }
    }

    /// Finds jobs that started before the job on which they depend was acked.
    fn order(&self, wrong: &mut Vec<String>) {
        let mut acked: HashMap<&str, u64> = HashMap::new();
        for delivery in self.deliveries.values() {
            if let Some((at, outcome)) = &delivery.sent
                && outcome == "ack"
            {
                let first = acked.entry(&delivery.name).or_insert(*at);
                *first = (*first).min(*at);
            }
        }
        for delivery in self.deliveries.values().filter(|delivery| delivery.task_type == "after") {
            let request = delivery.name.rsplit_once('-').expect("a name").0;
            let first = acked.get(format!("{request}-8").as_str());
            if first.is_none_or(|first| *first > delivery.begun) {
                wrong.push(format!("{} began before its dependency was acked", delivery.name));
            }
        }
    }

    fn summary(&self) -> String {
        let accepted: usize = self.accepted.values().map(Vec::len).sum();
        let late = self.deliveries.values().filter(|d| d.lost.is_some()).count();
        let lost = self.deliveries.values().filter(|d| d.answers.iter().any(|a| a == "LeaseLost")).count();
        let attempt = self.jobs.values().map(|job| job.attempt).max().unwrap_or_default();
        format!(
            "{accepted} jobs accepted, {} stored, {} deliveries, {late} told lost, {lost} outcomes LEASE_LOST, \
             {} streams ended, highest attempt {attempt}, {} wrong",
            self.jobs.len(),
            self.deliveries.len(),
            self.broken,
            self.wrong.len()
        )
    }

    fn first(&self) -> String {
        self.wrong.iter().take(20).map(|line| format!("  {line}\n")).collect()
    }

    /// Returns the request time of each job of a type, and the time from the request to its first delivery, both in
    /// microseconds.
    pub(super) fn waits(&self, task_type: &str) -> Vec<(u64, u64)> {
        let first =
            self.deliveries.values().filter(|delivery| delivery.task_type == task_type && delivery.attempt == 1);
        let wait = |delivery: &Delivery| {
            let requested = *self.requested.get(delivery.name.rsplit_once('-')?.0)?;
            Some((requested, delivery.begun.saturating_sub(requested)))
        };
        first.filter_map(wait).collect()
    }

    pub(super) fn dead(&self) -> usize {
        self.jobs.values().filter(|job| job.state == "dead").count()
    }

    /// Number of jobs that needed more than one attempt although their timeout is long.
    pub(super) fn tried_again(&self) -> usize {
        self.jobs.values().filter(|job| job.attempt > 1 && job.task_type != "timed").count()
    }
}

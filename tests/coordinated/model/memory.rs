//! What should happen, in memory: the whole semantics of jobs that ask for more, without a database.

use std::collections::{BTreeMap, BTreeSet};

use howdah_server::{
    job::{DependencyFailure, EnqueueOutcome, KeyPolicy},
    store::Action,
};

pub const MAX_ATTEMPTS: i16 = 3;
/// Where jobs are enqueued, and the type of their second stage.
pub const TYPES: [i32; 2] = [1, 2];
pub const DEAD: i16 = 5;
pub const SUCCEEDED: i16 = 6;
pub const CANCELLED: i16 = 7;
pub const EXPIRED: i16 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Ready,
    Leased(usize),
    Scheduled,
    /// Waits for other jobs.
    Behind,
    AtLimit,
    Dead,
    Ended(i16),
}

/// What is said at an enqueue. Jobs are known by the order in which they were made.
#[derive(Clone, Debug)]
pub struct Asks {
    pub key: Option<u8>,
    pub policy: KeyPolicy,
    /// The holder of the key, which runs, is retried.
    pub patient: bool,
    pub limit_key: Option<u8>,
    pub after: BTreeSet<usize>,
    pub on_failure: DependencyFailure,
    pub staged: bool,
    pub expires: bool,
    pub delayed: bool,
}

#[derive(Clone, Debug)]
pub struct Job {
    pub state: State,
    pub attempt: i16,
    pub type_id: i32,
    pub asks: Asks,
    /// Those that have not ended yet.
    pub after: BTreeSet<usize>,
    /// The job that runs with its key.
    pub is_next: bool,
    /// What follows from its end is looked at.
    pub coordinated: bool,
    pub revivable: bool, // it was cancelled because a job died, and comes back with that one
}

/// Who has a key, and who runs after that one.
pub type Key = (usize, Option<usize>);

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub jobs: Vec<Job>,
    pub keys: BTreeMap<u8, Key>,
    pub limit: Option<usize>,
    pub strict: bool,
    /// Of each type.
    pub max_running: Option<usize>,
}

impl Model {
    /// The job that it is about and what it is told; `None`: refused.
    pub fn enqueue(&mut self, asks: Asks) -> Option<(usize, EnqueueOutcome)> {
        let new = self.jobs.len();
        let mut is_next = false;
        if let Some(key) = asks.key {
            match self.keys.get(&key).copied() {
                None => drop(self.keys.insert(key, (new, None))),
                Some((holder, next)) => {
                    let target = next.unwrap_or(holder);
                    match asks.policy {
                        KeyPolicy::Keep | KeyPolicy::ReplaceIfNewer => return Some((target, EnqueueOutcome::Kept)),
                        KeyPolicy::Reject => return None,
                        policy if !matches!(self.jobs[target].state, State::Leased(_)) => {
                            self.replace(target, asks);
                            let debounced = policy == KeyPolicy::Debounce;
                            let told = if debounced { EnqueueOutcome::Debounced } else { EnqueueOutcome::Replaced };
                            return Some((target, told));
                        }
                        _ => {}
                    }
                    self.jobs[holder].coordinated = true;
                    self.keys.insert(key, (holder, Some(new)));
                    is_next = true;
                }
            }
        }
        let coordinated = is_next || asks.limit_key.is_some() || asks.staged;
        let after = asks.after.clone();
        let job = Job {
            state: State::Behind,
            attempt: 0,
            type_id: TYPES[0],
            asks,
            after,
            is_next,
            coordinated,
            revivable: false,
        };
        self.jobs.push(job);
        self.place_after(new);
        Some((new, if is_next { EnqueueOutcome::Next } else { EnqueueOutcome::New }))
    }

    /// Places a new job; those before it that have ended, end for it now.
    fn place_after(&mut self, new: usize) {
        self.jobs[new].state = self.state_of(new);
        let mut ended = Vec::new();
        for parent in self.jobs[new].after.clone() {
            self.jobs[parent].coordinated |= !matches!(self.jobs[parent].state, State::Ended(_));
            match self.jobs[parent].state {
                State::Ended(state) => ended.push((parent, state)),
                State::Dead => ended.push((parent, DEAD)),
                _ => {}
            }
        }
        self.follow(ended, Some(new));
    }

    fn replace(&mut self, target: usize, asks: Asks) {
        let job = &mut self.jobs[target];
        job.coordinated |= asks.limit_key.is_some() || asks.staged;
        job.attempt = 0;
        job.type_id = TYPES[0];
        // What ties it to other jobs stays.
        job.asks = Asks { key: job.asks.key, on_failure: job.asks.on_failure, ..asks };
        self.jobs[target].state = self.state_of(target);
    }

    fn state_of(&self, i: usize) -> State {
        let job = &self.jobs[i];
        if job.is_next || !job.after.is_empty() {
            State::Behind
        } else if job.asks.delayed {
            State::Scheduled
        } else if job.asks.limit_key.is_some() && self.limit.is_some() {
            State::AtLimit
        } else {
            State::Ready
        }
    }

    pub fn ack(&mut self, i: usize) {
        if self.jobs[i].asks.staged {
            let job = &mut self.jobs[i];
            (job.asks.staged, job.asks.expires, job.attempt, job.type_id) = (false, false, 0, TYPES[1]);
            self.jobs[i].state = self.state_of(i);
        } else {
            self.end(vec![i], SUCCEEDED);
        }
    }

    pub fn nack(&mut self, i: usize, action: Action, later: bool) {
        self.end_attempt(i, action, later);
        self.hold_back(&[i]);
    }

    /// Of these, those that are ready again with more than their key allows.
    fn hold_back(&mut self, those: &[usize]) {
        let is_over = |job: &Job| {
            let holders = job.asks.limit_key.map(|key| self.holders(job.type_id, key));
            job.state == State::Ready && holders.zip(self.limit).is_some_and(|(holders, limit)| holders > limit)
        };
        let held: Vec<usize> = those.iter().copied().filter(|&i| is_over(&self.jobs[i])).collect();
        held.into_iter().for_each(|i| self.jobs[i].state = State::AtLimit);
    }

    fn end_attempt(&mut self, i: usize, action: Action, later: bool) {
        let job = &mut self.jobs[i];
        let last = job.attempt >= MAX_ATTEMPTS;
        job.state = match action {
            Action::Dead | Action::Fallback => State::Dead,
            Action::Retry | Action::Lost if last => State::Dead,
            Action::Retry | Action::Snooze if later => State::Scheduled,
            _ => State::Ready,
        };
        job.attempt -= i16::from(matches!(action, Action::Snooze | Action::Release));
        // It has begun, though the attempt does not count.
        job.asks.expires &= !matches!(action, Action::Snooze);
        let failed = matches!(action, Action::Retry | Action::Lost);
        if job.state == State::Dead {
            self.follow(vec![(i, DEAD)], None);
        } else if failed && self.is_superseded(i) {
            self.end(vec![i], CANCELLED);
        }
    }

    /// Whether a newer job waits that does not let it retry.
    fn is_superseded(&self, i: usize) -> bool {
        let key = self.jobs[i].asks.key.and_then(|key| self.keys.get(&key));
        matches!(key, Some(&(holder, Some(next))) if holder == i && !self.jobs[next].asks.patient)
    }

    pub fn cancel(&mut self, i: usize) {
        if !matches!(self.jobs[i].state, State::Ended(_)) {
            self.end(vec![i], CANCELLED);
        }
    }

    /// All that wait for their first attempt and had to begin by now.
    pub fn expire(&mut self) {
        let late = |job: &Job| {
            let waits = matches!(job.state, State::Ready | State::Scheduled | State::Behind | State::AtLimit);
            job.asks.expires && job.attempt == 0 && waits
        };
        self.end((0..self.jobs.len()).filter(|&i| late(&self.jobs[i])).collect(), EXPIRED);
    }

    /// A dead job gets its attempts anew, unless another job has its key.
    pub fn retry_dead(&mut self, i: usize) {
        if self.jobs[i].state != State::Dead {
            return;
        }
        if let Some(key) = self.jobs[i].asks.key {
            if self.keys.contains_key(&key) {
                return;
            }
            self.keys.insert(key, (i, None));
        }
        let job = &mut self.jobs[i];
        (job.attempt, job.asks.expires) = (0, false);
        job.state = if job.coordinated { State::Scheduled } else { State::Ready };
        self.revive(i);
    }

    /// Those come back that wait only for jobs that are live again.
    fn revive(&mut self, parent: usize) {
        let below = self.below(parent);
        let is_live = |job: &Job| !matches!(job.state, State::Dead | State::Ended(_));
        let waits = |this: &Self, i: usize| this.jobs[i].after.iter().all(|&p| is_live(&this.jobs[p]));
        while let Some(i) = below.iter().copied().find(|&i| {
            let job = &self.jobs[i];
            let has_key = job.asks.key.is_none_or(|key| !self.keys.contains_key(&key));
            job.revivable && has_key && waits(self, i)
        }) {
            if let Some(key) = self.jobs[i].asks.key {
                self.keys.insert(key, (i, None));
            }
            (self.jobs[i].state, self.jobs[i].revivable) = (State::Behind, false);
        }
        for i in below {
            if self.jobs[i].revivable && waits(self, i) {
                self.drop_for_good(i);
            }
        }
    }

    /// Jobs that waited for this one, and those that waited for them, the oldest first.
    fn below(&self, of: usize) -> BTreeSet<usize> {
        let mut below = BTreeSet::new();
        let mut next = vec![of];
        while let Some(parent) = next.pop() {
            let children = (0..self.jobs.len()).filter(|&c| self.jobs[c].after.contains(&parent));
            next.extend(children.filter(|&c| below.insert(c)));
        }
        below
    }

    fn drop_for_good(&mut self, i: usize) {
        for i in self.below(i).into_iter().chain([i]) {
            (self.jobs[i].after, self.jobs[i].revivable) = (BTreeSet::new(), false);
        }
    }

    /// The clock reaches what is put off.
    pub fn promote(&mut self) {
        self.jobs.iter_mut().for_each(|job| job.asks.delayed = false);
        for i in 0..self.jobs.len() {
            if self.jobs[i].state == State::Scheduled {
                self.jobs[i].state = self.state_of(i);
            }
        }
    }

    pub fn lose(&mut self, broker: usize) {
        let lost: Vec<usize> = (0..self.jobs.len()).filter(|&i| self.jobs[i].state == State::Leased(broker)).collect();
        lost.iter().for_each(|&i| self.end_attempt(i, Action::Lost, false));
        self.hold_back(&lost);
    }

    pub fn set_limit(&mut self, limit: Option<usize>, strict: bool) {
        (self.limit, self.strict) = (limit, strict);
        self.hold_back(&Vec::from_iter(0..self.jobs.len()));
    }

    /// Jobs of a type that a claim may take.
    pub fn may_begin(&self, type_id: i32) -> usize {
        let count =
            |has: fn(State) -> bool| self.jobs.iter().filter(|job| job.type_id == type_id && has(job.state)).count();
        let ready = count(|state| state == State::Ready);
        let running = count(|state| matches!(state, State::Leased(_)));
        self.max_running.map_or(ready, |limit| ready.min(limit.saturating_sub(running)))
    }

    fn at(&self, type_id: i32, limit_key: u8) -> impl Iterator<Item = (usize, &Job)> {
        let here = move |job: &Job| job.type_id == type_id && job.asks.limit_key == Some(limit_key);
        self.jobs.iter().enumerate().filter(move |(_, job)| here(job))
    }

    /// Jobs that have a slot of a key.
    pub fn holders(&self, type_id: i32, limit_key: u8) -> usize {
        let holds = |job: &Job| match job.state {
            State::Ready | State::Leased(_) => true,
            State::Scheduled => self.strict && job.attempt > 0,
            _ => false,
        };
        self.at(type_id, limit_key).filter(|(_, job)| holds(job)).count()
    }

    /// Jobs that wait at a key, and how many of them may run.
    pub fn waiting(&self, type_id: i32, limit_key: u8) -> (Vec<usize>, usize) {
        let waiting: Vec<usize> =
            self.at(type_id, limit_key).filter(|(_, job)| job.state == State::AtLimit).map(|(i, _)| i).collect();
        let free = self.limit.map_or(usize::MAX, |limit| limit.saturating_sub(self.holders(type_id, limit_key)));
        let may_run = waiting.len().min(free);
        (waiting, may_run)
    }

    fn end(&mut self, those: Vec<usize>, state: i16) {
        those.iter().for_each(|&i| self.jobs[i].state = State::Ended(state));
        self.follow(those.into_iter().map(|i| (i, state)).collect(), None);
    }

    /// Keys are freed or go on, those behind run or are cancelled. `new`: these jobs had ended before, for this one.
    fn follow(&mut self, ended: Vec<(usize, i16)>, new: Option<usize>) {
        let mut ended: Vec<_> = ended.into_iter().map(|(i, state)| (i, state, state == DEAD)).collect();
        let mut released = BTreeSet::new();
        while let Some((i, state, revivable)) = ended.pop() {
            if !revivable && new.is_none() {
                self.jobs[i].after.clear();
            }
            if let Some(key) = self.jobs[i].asks.key {
                released.extend(self.free_key(key, i));
            }
            for child in 0..self.jobs.len() {
                let job = &self.jobs[child];
                if !job.after.contains(&i) {
                    continue;
                }
                let policy = job.asks.on_failure;
                if job.state != State::Behind {
                    // Cancelled before, because another job died.
                    let of_call = new.is_none_or(|new| new == child);
                    match state {
                        SUCCEEDED if of_call => drop(self.jobs[child].after.remove(&i)),
                        _ if !revivable && of_call => self.drop_for_good(child),
                        _ => {}
                    }
                    continue;
                }
                match (policy, state) {
                    (DependencyFailure::Wait, DEAD) => {}
                    (DependencyFailure::Run, _) | (_, SUCCEEDED) => {
                        self.jobs[child].after.remove(&i);
                        released.insert(child);
                    }
                    _ => {
                        let job = &mut self.jobs[child];
                        (job.state, job.revivable) = (State::Ended(CANCELLED), revivable);
                        job.after.retain(|_| revivable);
                        ended.push((child, CANCELLED, revivable));
                    }
                }
            }
        }
        for i in released {
            if self.jobs[i].state == State::Behind {
                self.jobs[i].state = self.state_of(i);
            }
        }
    }

    fn free_key(&mut self, key: u8, ended: usize) -> Option<usize> {
        let (holder, next) = self.keys.get(&key).copied()?;
        if next == Some(ended) {
            self.keys.insert(key, (holder, None));
            return None;
        }
        if holder != ended {
            return None;
        }
        self.keys.remove(&key);
        let next = next?;
        self.keys.insert(key, (next, None));
        self.jobs[next].is_next = false;
        Some(next)
    }
}

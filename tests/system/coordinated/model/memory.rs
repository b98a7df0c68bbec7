//! A model of the expected behaviour: the complete semantics of coordinated jobs in memory, without a database.

use std::collections::{BTreeMap, BTreeSet};

use howdah_core::job::{DependencyFailure, EnqueueOutcome, KeyPolicy};
use howdah_engine::store::Action;

pub const MAX_ATTEMPTS: i16 = 3;
/// Ids of the task type to which jobs are enqueued, and of the task type of their second stage.
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
    /// The job waits for other jobs.
    Behind,
    AtLimit,
    Dead,
    Ended(i16),
}

/// Options with which a job is enqueued. `after` has indexes of jobs in the order of their creation.
#[derive(Clone, Debug)]
pub struct EnqueueOptions {
    pub key: Option<u8>,
    pub policy: KeyPolicy,
    /// Whether the job waits until the running holder of its key has used up its retries.
    pub waits_for_retries: bool,
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
    pub options: EnqueueOptions,
    /// The unfinished jobs on which this job depends.
    pub after: BTreeSet<usize>,
    /// Whether the job waits for the running holder of its key.
    pub is_next: bool,
    /// Whether the end of the job affects other jobs, keys or limits.
    pub coordinated: bool,
    pub revivable: bool, // cancelled because a job died; a retry of that job revives it
}

/// The job that holds a key, and the job that waits for the end of that holder.
pub type Key = (usize, Option<usize>);

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub jobs: Vec<Job>,
    pub keys: BTreeMap<u8, Key>,
    pub limit: Option<usize>,
    pub strict: bool,
    /// Concurrency limit of each task type.
    pub max_running: Option<usize>,
}

impl Model {
    /// Enqueues a job. Returns the job that was created or found, with the outcome; `None` if the enqueue was refused.
    pub fn enqueue(&mut self, options: EnqueueOptions) -> Option<(usize, EnqueueOutcome)> {
        let new = self.jobs.len();
        let mut is_next = false;
        if let Some(key) = options.key {
            match self.keys.get(&key).copied() {
                None => drop(self.keys.insert(key, (new, None))),
                Some((holder, next)) => {
                    let target = next.unwrap_or(holder);
                    match options.policy {
                        KeyPolicy::Keep | KeyPolicy::ReplaceIfNewer => return Some((target, EnqueueOutcome::Kept)),
                        KeyPolicy::Reject => return None,
                        policy if !matches!(self.jobs[target].state, State::Leased(_)) => {
                            self.replace(target, options);
                            let debounced = policy == KeyPolicy::Debounce;
                            let outcome = if debounced { EnqueueOutcome::Debounced } else { EnqueueOutcome::Replaced };
                            return Some((target, outcome));
                        }
                        _ => {}
                    }
                    self.jobs[holder].coordinated = true;
                    self.keys.insert(key, (holder, Some(new)));
                    is_next = true;
                }
            }
        }
        let coordinated = is_next || options.limit_key.is_some() || options.staged;
        let after = options.after.clone();
        let job = Job {
            state: State::Behind,
            attempt: 0,
            type_id: TYPES[0],
            options,
            after,
            is_next,
            coordinated,
            revivable: false,
        };
        self.jobs.push(job);
        self.place_after(new);
        Some((new, if is_next { EnqueueOutcome::Next } else { EnqueueOutcome::New }))
    }

    /// Sets the state of a new job, and handles dependencies that ended before the job was created.
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

    fn replace(&mut self, target: usize, options: EnqueueOptions) {
        let job = &mut self.jobs[target];
        job.coordinated |= options.limit_key.is_some() || options.staged;
        job.attempt = 0;
        job.type_id = TYPES[0];
        // Replacing a job keeps its key and its relations to other jobs.
        job.options = EnqueueOptions { key: job.options.key, on_failure: job.options.on_failure, ..options };
        self.jobs[target].state = self.state_of(target);
    }

    fn state_of(&self, i: usize) -> State {
        let job = &self.jobs[i];
        if job.is_next || !job.after.is_empty() {
            State::Behind
        } else if job.options.delayed {
            State::Scheduled
        } else if job.options.limit_key.is_some() && self.limit.is_some() {
            State::AtLimit
        } else {
            State::Ready
        }
    }

    pub fn ack(&mut self, i: usize) {
        if self.jobs[i].options.staged {
            let job = &mut self.jobs[i];
            (job.options.staged, job.options.expires, job.attempt, job.type_id) = (false, false, 0, TYPES[1]);
            self.jobs[i].state = self.state_of(i);
        } else {
            self.end(vec![i], SUCCEEDED);
        }
    }

    pub fn nack(&mut self, i: usize, action: Action, later: bool) {
        self.end_attempt(i, action, later);
        self.hold_back(&[i]);
    }

    /// Makes ready jobs of `those` wait if they exceed the limit of their limit key.
    fn hold_back(&mut self, those: &[usize]) {
        let is_over = |job: &Job| {
            let holders = job.options.limit_key.map(|key| self.holders(job.type_id, key));
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
        // A snoozed job has started, so it no longer expires, although the attempt does not count.
        job.options.expires &= !matches!(action, Action::Snooze);
        let failed = matches!(action, Action::Retry | Action::Lost);
        if job.state == State::Dead {
            self.follow(vec![(i, DEAD)], None);
        } else if failed && self.is_superseded(i) {
            self.end(vec![i], CANCELLED);
        }
    }

    /// Whether a newer job waits for the key of this job and replaces it, so that this job is not retried.
    fn is_superseded(&self, i: usize) -> bool {
        let key = self.jobs[i].options.key.and_then(|key| self.keys.get(&key));
        matches!(key, Some(&(holder, Some(next))) if holder == i && !self.jobs[next].options.waits_for_retries)
    }

    pub fn cancel(&mut self, i: usize) {
        if !matches!(self.jobs[i].state, State::Ended(_)) {
            self.end(vec![i], CANCELLED);
        }
    }

    /// Expires all jobs that have an expiry and still wait for their first attempt.
    pub fn expire(&mut self) {
        let late = |job: &Job| {
            let waits = matches!(job.state, State::Ready | State::Scheduled | State::Behind | State::AtLimit);
            job.options.expires && job.attempt == 0 && waits
        };
        self.end((0..self.jobs.len()).filter(|&i| late(&self.jobs[i])).collect(), EXPIRED);
    }

    /// Retries a dead job with new attempts, unless another job holds its key.
    pub fn retry_dead(&mut self, i: usize) {
        if self.jobs[i].state != State::Dead {
            return;
        }
        if let Some(key) = self.jobs[i].options.key {
            if self.keys.contains_key(&key) {
                return;
            }
            self.keys.insert(key, (i, None));
        }
        let job = &mut self.jobs[i];
        (job.attempt, job.options.expires) = (0, false);
        job.state = if job.coordinated { State::Scheduled } else { State::Ready };
        self.revive(i);
    }

    /// Makes cancelled jobs below `parent` wait again, if all their dependencies are live again.
    fn revive(&mut self, parent: usize) {
        let below = self.below(parent);
        let is_live = |job: &Job| !matches!(job.state, State::Dead | State::Ended(_));
        let waits = |this: &Self, i: usize| this.jobs[i].after.iter().all(|&p| is_live(&this.jobs[p]));
        while let Some(i) = below.iter().copied().find(|&i| {
            let job = &self.jobs[i];
            let has_key = job.options.key.is_none_or(|key| !self.keys.contains_key(&key));
            job.revivable && has_key && waits(self, i)
        }) {
            if let Some(key) = self.jobs[i].options.key {
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

    /// Returns the jobs that depend on this job directly or indirectly, oldest first.
    fn below(&self, job: usize) -> BTreeSet<usize> {
        let mut below = BTreeSet::new();
        let mut next = vec![job];
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

    /// Makes scheduled jobs due.
    pub fn promote(&mut self) {
        self.jobs.iter_mut().for_each(|job| job.options.delayed = false);
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

    /// Number of ready jobs of a type that a claim may lease under the type's concurrency limit.
    pub fn may_begin(&self, type_id: i32) -> usize {
        let count =
            |has: fn(State) -> bool| self.jobs.iter().filter(|job| job.type_id == type_id && has(job.state)).count();
        let ready = count(|state| state == State::Ready);
        let running = count(|state| matches!(state, State::Leased(_)));
        self.max_running.map_or(ready, |limit| ready.min(limit.saturating_sub(running)))
    }

    fn at(&self, type_id: i32, limit_key: u8) -> impl Iterator<Item = (usize, &Job)> {
        let here = move |job: &Job| job.type_id == type_id && job.options.limit_key == Some(limit_key);
        self.jobs.iter().enumerate().filter(move |(_, job)| here(job))
    }

    /// Number of jobs that hold a slot of a limit key.
    pub fn holders(&self, type_id: i32, limit_key: u8) -> usize {
        let holds = |job: &Job| match job.state {
            State::Ready | State::Leased(_) => true,
            State::Scheduled => self.strict && job.attempt > 0,
            _ => false,
        };
        self.at(type_id, limit_key).filter(|(_, job)| holds(job)).count()
    }

    /// Returns the jobs that wait at a limit key, and the number of them for which a slot is free.
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

    /// Handles the end of jobs: frees their keys or gives the keys to the next jobs, and releases or cancels their dependents.
    /// With `new`, the jobs ended before `new` was enqueued, and only `new` is affected.
    fn follow(&mut self, ended: Vec<(usize, i16)>, new: Option<usize>) {
        let mut ended: Vec<_> = ended.into_iter().map(|(i, state)| (i, state, state == DEAD)).collect();
        let mut released = BTreeSet::new();
        while let Some((i, state, revivable)) = ended.pop() {
            if !revivable && new.is_none() {
                self.jobs[i].after.clear();
            }
            if let Some(key) = self.jobs[i].options.key {
                released.extend(self.free_key(key, i));
            }
            for child in 0..self.jobs.len() {
                let job = &self.jobs[child];
                if !job.after.contains(&i) {
                    continue;
                }
                let policy = job.options.on_failure;
                if job.state != State::Behind {
                    // The child does not wait for its dependencies any more, because the death of another job has
                    // cancelled it.
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

//! Which store is asked next, and when a call has waited for long enough.

use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use crate::{error::Error, job::LeasedJob, session::Unsent};

/// The stores of a call, by their places.
pub(super) struct Asking {
    count: usize,
    queue: VecDeque<usize>,
    looking: HashSet<usize>,
    /// When one was asked last.
    asked: Instant,
    /// After this time without an answer, the next one is asked, too.
    patience: Duration,
    /// How long after the last time those that do not answer are given up.
    longest: Duration,
    /// All are asked for the last time, and given up then.
    last_until: Option<Instant>,
    has_answered: bool,
    failure: Option<Error>,
}

impl Asking {
    /// All are asked, beginning with any, so that the first does not always fill the answer.
    pub(super) fn new(count: usize, patience: Duration, longest: Duration) -> Self {
        let first = rand::random::<u32>() as usize % count.max(1);
        let queue = (first..count).chain(0..first).collect();
        let (looking, asked) = (HashSet::new(), Instant::now());
        let (last_until, has_answered, failure) = (None, false, None);
        Self { count, queue, looking, asked, patience, longest, last_until, has_answered, failure }
    }

    /// The store to ask now.
    pub(super) fn next(&mut self) -> Option<usize> {
        let now = Instant::now();
        if !self.looking.is_empty() && now < self.asked + self.patience {
            return None;
        }
        let at = self.queue.iter().position(|nth| !self.looking.contains(nth))?;
        let nth = self.queue.remove(at)?;
        self.looking.insert(nth);
        self.asked = now;
        Some(nth)
    }

    /// It may have jobs.
    pub(super) fn ask(&mut self, nth: usize) {
        if !self.queue.contains(&nth) {
            self.queue.push_front(nth);
        }
    }

    /// All are asked for the last time.
    pub(super) fn ask_last(&mut self) {
        self.last_until = Some(Instant::now() + self.longest);
        for nth in 0..self.count {
            if !self.queue.contains(&nth) && !self.looking.contains(&nth) {
                self.queue.push_back(nth);
            }
        }
    }

    /// A store has answered; these are its jobs, if it has some.
    pub(super) fn answered(
        &mut self,
        nth: usize,
        looked: Result<(Vec<LeasedJob>, Unsent), Error>,
    ) -> Option<(Vec<LeasedJob>, Unsent)> {
        self.looking.remove(&nth);
        match looked {
            Ok((jobs, unsent)) => {
                self.has_answered = true;
                (!jobs.is_empty()).then_some((jobs, unsent))
            }
            Err(error) => {
                self.failure = Some(error);
                None
            }
        }
    }

    /// Nobody is being asked.
    pub(super) fn is_idle(&self) -> bool {
        self.looking.is_empty() && self.queue.is_empty()
    }

    pub(super) fn is_last(&self) -> bool {
        self.last_until.is_some()
    }

    /// Whether time will bring it on: another store is asked, or the slow ones are given up.
    pub(super) fn is_waiting(&self) -> bool {
        !self.looking.is_empty() && (self.has_others() || self.is_last())
    }

    /// Until when the ones that are being asked have time to answer.
    pub(super) fn patient_until(&self) -> Instant {
        let next = self.asked + self.patience;
        match self.last_until {
            Some(last) if next > last || !self.has_others() && Instant::now() >= next => last,
            _ => next,
        }
    }

    /// All that are left have had their time, and there is no more. Those of which it is known that they are `away` have less.
    pub(super) fn gives_up(&self, is_away: impl Fn(usize) -> bool) -> bool {
        let now = Instant::now();
        let nobody_else = !self.has_others() && now >= self.asked + self.patience;
        self.last_until.is_some_and(|last| now >= last || nobody_else && self.looking.iter().all(|nth| is_away(*nth)))
    }

    /// Somebody is to be asked who is not being asked.
    fn has_others(&self) -> bool {
        self.queue.iter().any(|nth| !self.looking.contains(nth))
    }

    /// Why no store has answered.
    pub(super) fn failure(&mut self) -> Option<Error> {
        if self.has_answered { None } else { self.failure.take() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);

    fn away() -> Result<(Vec<LeasedJob>, Unsent), Error> {
        Err(Error::Unavailable("away".into()))
    }

    #[test]
    fn stores_are_asked_one_after_the_other() {
        let mut asking = Asking::new(2, LONG, LONG);
        let first = asking.next().unwrap();
        assert_eq!(asking.next(), None, "it is waited for");
        assert!(asking.answered(first, away()).is_none());
        assert_eq!(asking.next(), Some(1 - first));
        assert!(matches!(asking.failure(), Some(Error::Unavailable(_))));
    }

    #[test]
    fn a_slow_store_holds_up_no_other_and_is_given_up_late() {
        let mut asking = Asking::new(2, Duration::ZERO, LONG);
        let first = asking.next().unwrap();
        assert!(asking.is_waiting() && asking.patient_until() <= Instant::now());
        let second = asking.next().unwrap();
        assert_eq!(first + second, 1);
        asking.ask(second);
        assert_eq!((asking.next(), asking.is_waiting()), (None, false), "it is being asked");
        asking.ask_last();
        assert!(asking.is_waiting() && !asking.gives_up(|_| false));
        assert!(asking.patient_until() > Instant::now() + LONG / 2);
        assert!(!asking.gives_up(|nth| nth == first) && asking.gives_up(|_| true), "only if all are known to be away");
    }

    #[test]
    fn stores_that_have_had_their_time_are_given_up_when_all_are_asked_for_the_last_time() {
        let mut asking = Asking::new(1, Duration::ZERO, Duration::ZERO);
        asking.next().unwrap();
        assert!(!asking.gives_up(|_| true));
        asking.ask_last();
        assert!(asking.is_waiting() && asking.gives_up(|_| false));
    }
}

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
    /// The next is asked, too, if nobody has answered by then.
    patient_until: Instant,
    is_last: bool,
    has_answered: bool,
    failure: Option<Error>,
}

impl Asking {
    /// All are asked, beginning with any, so that the first does not always fill the answer.
    pub(super) fn new(count: usize) -> Self {
        let first = rand::random::<u32>() as usize % count.max(1);
        let queue = (first..count).chain(0..first).collect();
        let patient_until = Instant::now();
        let (looking, is_last, has_answered, failure) = (HashSet::new(), false, false, None);
        Self { count, queue, looking, patient_until, is_last, has_answered, failure }
    }

    /// The store to ask now.
    pub(super) fn next(&mut self, patience: Duration) -> Option<usize> {
        let now = Instant::now();
        if !self.looking.is_empty() && now < self.patient_until {
            return None;
        }
        let at = self.queue.iter().position(|nth| !self.looking.contains(nth))?;
        let nth = self.queue.remove(at)?;
        self.looking.insert(nth);
        self.patient_until = now + patience;
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
        self.is_last = true;
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
        self.is_last
    }

    /// Whether time will bring it on: another store is asked, or the slow ones are given up.
    pub(super) fn is_waiting(&self) -> bool {
        let others = self.queue.iter().any(|nth| !self.looking.contains(nth));
        !self.looking.is_empty() && (others || self.is_last)
    }

    pub(super) fn patient_until(&self) -> Instant {
        self.patient_until
    }

    /// All that are left are slow, and there is no time.
    pub(super) fn gives_up(&self) -> bool {
        self.is_last && self.queue.iter().all(|nth| self.looking.contains(nth))
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

    #[test]
    fn stores_are_asked_one_after_the_other_and_slow_ones_are_not_waited_for() {
        let mut asking = Asking::new(3);
        let first = asking.next(LONG).unwrap();
        assert_eq!(asking.next(LONG), None, "it is waited for");
        assert!(asking.answered(first, Err(Error::Unavailable("away".into()))).is_none());
        let second = asking.next(Duration::ZERO).unwrap();
        let third = asking.next(LONG).unwrap();
        assert_eq!(first + second + third, 3);
        asking.ask(second);
        assert_eq!((asking.next(LONG), asking.is_waiting()), (None, false), "it is being asked");
        asking.ask_last();
        assert!(asking.is_waiting() && !asking.gives_up());
        assert!(matches!(asking.failure(), Some(Error::Unavailable(_))));
    }
}

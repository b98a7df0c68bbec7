//! Which store is asked next, and when a call has waited for long enough.

use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use super::silence;
use crate::{error::Error, job::LeasedJob, session::Unsent};

/// How long stores have.
#[derive(Clone, Copy)]
pub(super) struct Times {
    /// After this time without an answer, the next one is asked, too.
    pub(super) patience: Duration,
    /// Those that have not answered this long after all were asked for the last time are given up.
    pub(super) longest: Duration,
    /// One that has failed is asked again after this time.
    pub(super) again: Duration,
}

/// The stores of a call, by their places.
pub(super) struct Asking {
    count: usize,
    queue: VecDeque<usize>,
    looking: HashSet<usize>,
    /// When one was asked last.
    asked: Instant,
    times: Times,
    /// All are asked for the last time, and have until then.
    last_until: Option<Instant>,
    /// Those that have failed, and when they are asked again.
    failed: VecDeque<(Instant, usize)>,
    has_answered: bool,
    failure: Option<Error>,
}

impl Asking {
    /// All are asked, beginning with any, so that the first does not always fill the answer; those that are away come last.
    pub(super) fn new(count: usize, is_away: impl Fn(usize) -> bool, times: Times) -> Self {
        let first = rand::random::<u32>() as usize % count.max(1);
        let (away, near): (Vec<usize>, Vec<usize>) = (first..count).chain(0..first).partition(|nth| is_away(*nth));
        let queue = near.into_iter().chain(away).collect();
        let (looking, asked) = (HashSet::new(), Instant::now());
        let (last_until, failed, has_answered, failure) = (None, VecDeque::new(), false, None);
        Self { count, queue, looking, asked, times, last_until, failed, has_answered, failure }
    }

    /// The store to ask now.
    pub(super) fn next(&mut self) -> Option<usize> {
        let now = Instant::now();
        while let Some(&(at, nth)) = self.failed.front()
            && at <= now
        {
            self.failed.pop_front();
            if !self.queue.contains(&nth) {
                self.queue.push_back(nth);
            }
        }
        if !self.looking.is_empty() && now < self.asked + self.times.patience {
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
        self.last_until = Some(Instant::now() + self.times.longest);
        self.failed.clear();
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
                if !self.is_last() {
                    self.failed.push_back((Instant::now() + self.times.again, nth));
                }
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
        let next = self.asked + self.times.patience;
        match self.last_until {
            Some(last) if next > last || !self.has_others() && Instant::now() >= next => last,
            _ => next,
        }
    }

    /// All that are left have had their time, and nobody else can be asked. Those for which the call does not wait have less.
    pub(super) fn gives_up(&self, is_skipped: impl FnMut(usize) -> bool) -> bool {
        let now = Instant::now();
        let nobody_else = !self.has_others() && now >= self.asked + self.times.patience;
        self.last_until.is_some_and(|last| now >= last || nobody_else && self.looking.iter().copied().all(is_skipped))
    }

    /// Somebody has failed who will be asked again.
    pub(super) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// When that is.
    pub(super) fn again_at(&self) -> Instant {
        self.failed.front().map_or_else(Instant::now, |(at, _)| *at)
    }

    /// Somebody is to be asked who is not being asked.
    fn has_others(&self) -> bool {
        self.queue.iter().any(|nth| !self.looking.contains(nth))
    }

    /// Why no store has answered; `None`: one has.
    pub(super) fn failure(&mut self) -> Option<Error> {
        (!self.has_answered).then(|| self.failure.take().unwrap_or_else(silence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);

    fn asking(count: usize, patience: Duration, longest: Duration) -> Asking {
        Asking::new(count, |_| false, Times { patience, longest, again: Duration::ZERO })
    }

    fn away() -> Result<(Vec<LeasedJob>, Unsent), Error> {
        Err(Error::Unavailable("away".into()))
    }

    #[test]
    fn stores_are_asked_one_after_the_other_and_those_that_are_away_last() {
        let mut asking = Asking::new(2, |nth| nth == 0, Times { patience: LONG, longest: LONG, again: LONG });
        assert_eq!(asking.next(), Some(1));
        assert_eq!(asking.next(), None, "it is waited for");
        assert!(asking.answered(1, away()).is_none());
        assert_eq!(asking.next(), Some(0));
        assert!(matches!(asking.failure(), Some(Error::Unavailable(text)) if text == "away"));
    }

    #[test]
    fn a_slow_store_holds_up_no_other_and_is_given_up_late() {
        let mut asking = asking(2, Duration::ZERO, LONG);
        let first = asking.next().unwrap();
        assert!(asking.is_waiting() && asking.patient_until() <= Instant::now());
        let second = asking.next().unwrap();
        assert_eq!(first + second, 1);
        asking.ask(second);
        assert_eq!((asking.next(), asking.is_waiting()), (None, false), "it is being asked");
        asking.ask_last();
        assert!(asking.is_waiting() && !asking.gives_up(|_| false));
        assert!(asking.patient_until() > Instant::now() + LONG / 2);
        assert!(!asking.gives_up(|nth| nth == first) && asking.gives_up(|_| true), "only if it waits for none");
    }

    #[test]
    fn stores_that_have_had_their_time_are_given_up_when_all_are_asked_for_the_last_time() {
        let mut asking = asking(1, Duration::ZERO, Duration::ZERO);
        asking.next().unwrap();
        assert!(!asking.gives_up(|_| true));
        asking.ask_last();
        assert!(asking.is_waiting() && asking.gives_up(|_| false));
        assert!(matches!(asking.failure(), Some(Error::Unavailable(_))), "silence is no empty answer");
    }

    #[test]
    fn a_store_that_has_failed_is_asked_again_while_the_call_waits() {
        let mut asking = asking(1, LONG, LONG);
        for _ in 0..3 {
            let nth = asking.next().unwrap();
            assert!(asking.answered(nth, away()).is_none() && asking.has_failed());
            assert!(asking.again_at() <= Instant::now());
        }
        asking.next().unwrap();
        asking.ask_last();
        assert!(asking.answered(0, away()).is_none() && !asking.has_failed() && asking.is_idle());
    }
}

//! The order in which a pull call queries its stores, and the time at which it stops waiting for answers.

use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

use howdah_core::{error::Error, job::LeasedJob};
use howdah_engine::session::Unsent;
use tokio::time::Instant;

use super::no_store_answered;

/// Time limits for the queries of a pull call.
#[derive(Clone, Copy)]
pub(super) struct Times {
    /// Time after which the next store is queried as well if the queried store has not answered.
    pub(super) overlap_after: Duration,
    /// Time from the start of the last round of queries until the call stops waiting for answers.
    pub(super) longest: Duration,
    /// Pause before a store whose query failed is queried again.
    pub(super) again: Duration,
}

/// State of a pull call's queries. Stores are identified by their position in the list of stores.
pub(super) struct QueryOrder {
    count: usize,
    queue: VecDeque<usize>,
    querying: HashSet<usize>,
    /// Start time of the most recent query.
    asked: Instant,
    times: Times,
    /// End of the last round of queries. `None` until the last round starts.
    last_until: Option<Instant>,
    /// Stores whose query failed, with the time of their next query.
    failed: VecDeque<(Instant, usize)>,
    has_answered: bool,
    failure: Option<Error>,
}

impl QueryOrder {
    /// Queues all stores in rotated order with a random start, so that no store is preferred. Unreachable stores come
    /// last.
    pub(super) fn new(count: usize, is_unreachable: impl Fn(usize) -> bool, times: Times) -> Self {
        let first = rand::random::<u32>() as usize % count.max(1);
        let (away, near): (Vec<usize>, Vec<usize>) =
            (first..count).chain(0..first).partition(|nth| is_unreachable(*nth));
        let queue = near.into_iter().chain(away).collect();
        let (querying, asked) = (HashSet::new(), Instant::now());
        let (last_until, failed, has_answered, failure) = (None, VecDeque::new(), false, None);
        Self { count, queue, querying, asked, times, last_until, failed, has_answered, failure }
    }

    /// Returns the store to query now. `None` if no store is queued, or if a query younger than `overlap_after` is
    /// running.
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
        if !self.querying.is_empty() && now < self.asked + self.times.overlap_after {
            return None;
        }
        let at = self.queue.iter().position(|nth| !self.querying.contains(nth))?;
        let nth = self.queue.remove(at)?;
        self.querying.insert(nth);
        self.asked = now;
        Some(nth)
    }

    /// Puts a store that may have jobs at the front of the queue.
    pub(super) fn enqueue(&mut self, nth: usize) {
        if !self.queue.contains(&nth) {
            self.queue.push_front(nth);
        }
    }

    /// Starts the last round, which queries all stores.
    pub(super) fn start_last_round(&mut self) {
        self.last_until = Some(Instant::now() + self.times.longest);
        self.failed.clear();
        for nth in 0..self.count {
            if !self.queue.contains(&nth) && !self.querying.contains(&nth) {
                self.queue.push_back(nth);
            }
        }
    }

    /// Records the answer of a store. Returns the jobs in the answer, if any.
    pub(super) fn answered(
        &mut self,
        nth: usize,
        answer: Result<(Vec<LeasedJob>, Unsent), Error>,
    ) -> Option<(Vec<LeasedJob>, Unsent)> {
        self.querying.remove(&nth);
        match answer {
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

    /// Whether no query is running and no store is queued.
    pub(super) fn is_idle(&self) -> bool {
        self.querying.is_empty() && self.queue.is_empty()
    }

    pub(super) fn is_last(&self) -> bool {
        self.last_until.is_some()
    }

    /// Whether to wait for `timeout_at`, at which another store is queried or the call stops waiting for slow stores.
    pub(super) fn is_waiting(&self) -> bool {
        !self.querying.is_empty() && (self.has_others() || self.is_last())
    }

    /// Returns the time at which the next queued store is queried, or at which the last round ends.
    pub(super) fn timeout_at(&self) -> Instant {
        let next = self.asked + self.times.overlap_after;
        match self.last_until {
            Some(last) if next > last || !self.has_others() && Instant::now() >= next => last,
            _ => next,
        }
    }

    /// Whether the call stops waiting for answers. That is only possible in the last round: at its end, or when all
    /// remaining queries are to stores in `is_skipped` and their `overlap_after` is over.
    pub(super) fn gives_up(&self, is_skipped: impl FnMut(usize) -> bool) -> bool {
        let now = Instant::now();
        let nobody_else = !self.has_others() && now >= self.asked + self.times.overlap_after;
        self.last_until.is_some_and(|last| now >= last || nobody_else && self.querying.iter().copied().all(is_skipped))
    }

    /// Whether a store will be queried again after a failed query.
    pub(super) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Returns the time at which the first failed store is queried again.
    pub(super) fn again_at(&self) -> Instant {
        self.failed.front().map_or_else(Instant::now, |(at, _)| *at)
    }

    /// Whether a queued store is not being queried at present.
    fn has_others(&self) -> bool {
        self.queue.iter().any(|nth| !self.querying.contains(nth))
    }

    /// Returns the error of the call if no store has answered. `None` if a store has answered.
    pub(super) fn failure(&mut self) -> Option<Error> {
        (!self.has_answered).then(|| self.failure.take().unwrap_or_else(no_store_answered))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);

    fn order(count: usize, overlap_after: Duration, longest: Duration) -> QueryOrder {
        QueryOrder::new(count, |_| false, Times { overlap_after, longest, again: Duration::ZERO })
    }

    fn away() -> Result<(Vec<LeasedJob>, Unsent), Error> {
        Err(Error::Unavailable("away".into()))
    }

    #[test]
    fn stores_are_queried_one_after_the_other_and_unreachable_stores_last() {
        let mut order = QueryOrder::new(2, |nth| nth == 0, Times { overlap_after: LONG, longest: LONG, again: LONG });
        assert_eq!(order.next(), Some(1));
        assert_eq!(order.next(), None, "the first store has time to answer");
        assert!(order.answered(1, away()).is_none());
        assert_eq!(order.next(), Some(0));
        assert!(matches!(order.failure(), Some(Error::Unavailable(text)) if text == "away"));
    }

    #[test]
    fn a_slow_store_holds_up_no_other_and_is_given_up_late() {
        let mut order = order(2, Duration::ZERO, LONG);
        let first = order.next().unwrap();
        assert!(order.is_waiting() && order.timeout_at() <= Instant::now());
        let second = order.next().unwrap();
        assert_eq!(first + second, 1);
        order.enqueue(second);
        assert_eq!(
            (order.next(), order.is_waiting()),
            (None, false),
            "a store that is being queried is not queried twice"
        );
        order.start_last_round();
        assert!(order.is_waiting() && !order.gives_up(|_| false));
        assert!(order.timeout_at() > Instant::now() + LONG / 2);
        assert!(
            !order.gives_up(|nth| nth == first) && order.gives_up(|_| true),
            "the late wait for a store keeps the call waiting"
        );
    }

    #[test]
    fn stores_that_used_up_their_time_are_given_up_in_the_last_round() {
        let mut order = order(1, Duration::ZERO, Duration::ZERO);
        order.next().unwrap();
        assert!(!order.gives_up(|_| true));
        order.start_last_round();
        assert!(order.is_waiting() && order.gives_up(|_| false));
        assert!(matches!(order.failure(), Some(Error::Unavailable(_))), "a missing answer is not an empty one");
    }

    #[test]
    fn a_store_that_has_failed_is_asked_again_while_the_call_waits() {
        let mut order = order(1, LONG, LONG);
        for _ in 0..3 {
            let nth = order.next().unwrap();
            assert!(order.answered(nth, away()).is_none() && order.has_failed());
            assert!(order.again_at() <= Instant::now());
        }
        order.next().unwrap();
        order.start_last_round();
        assert!(order.answered(0, away()).is_none() && !order.has_failed() && order.is_idle());
    }
}

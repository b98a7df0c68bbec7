//! Extensions and progress reports that the broker has not answered.

use std::collections::HashSet;

use howdah_proto::v1::{Extension, ProgressReport, SettleResult, SettleStatus};
use tonic::Status;

use crate::{Error, Result};

use super::mailbox::Ask;

/// A request for a lease.
pub(crate) trait Asked: Clone {
    /// Id and token.
    fn lease(&self) -> (i64, i64);
    /// The approximate bytes in a message.
    fn weight(&self) -> usize;
}

impl Asked for Extension {
    fn lease(&self) -> (i64, i64) {
        (self.id, self.token)
    }

    fn weight(&self) -> usize {
        64
    }
}

impl Asked for ProgressReport {
    fn lease(&self) -> (i64, i64) {
        (self.id, self.token)
    }

    fn weight(&self) -> usize {
        let text = self.text.as_ref().map_or(0, String::len);
        64 + text + self.checkpoint.as_ref().map_or(0, bytes::Bytes::len)
    }
}

/// A list is enough: such requests are rare, and answered soon.
#[derive(Debug)]
pub(crate) struct Asks<T> {
    calls: Vec<Call<T>>,
}

#[derive(Debug)]
struct Call<T> {
    call: Ask<T>,
    state: State,
}

impl<T> Default for Asks<T> {
    fn default() -> Self {
        Self { calls: Vec::new() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Unsent,
    Sent,
    /// It could not be stored, and is sent again later.
    Later,
    /// Another request for the same job is not answered yet: a message names a job only once.
    Behind,
}

impl<T: Asked> Call<T> {
    fn lease(&self) -> (i64, i64) {
        self.call.what.lease()
    }
}

impl<T: Asked> Asks<T> {
    pub(crate) fn add(&mut self, call: Ask<T>) {
        self.calls.push(Call { call, state: State::Behind });
        self.tidy();
    }

    pub(crate) fn has_unsent(&self) -> bool {
        self.calls.iter().any(|call| call.state == State::Unsent)
    }

    /// The next requests to send: at most this many, and this many bytes, and at least one.
    pub(crate) fn next_batch(&mut self, max: usize, max_bytes: usize) -> Vec<T> {
        self.tidy();
        let unsent = self.calls.iter_mut().filter(|call| call.state == State::Unsent);
        let mut bytes = 0;
        let fits = |call: &&mut Call<T>| {
            let first = bytes == 0;
            bytes += call.call.what.weight();
            first || bytes <= max_bytes
        };
        let send = |call: &mut Call<T>| {
            call.state = State::Sent;
            call.call.what.clone()
        };
        unsent.take(max).take_while(fits).map(send).collect()
    }

    /// Returns whether some are to be sent again a little later.
    pub(crate) fn answered(&mut self, results: Vec<SettleResult>) -> bool {
        let mut later = false;
        for result in results {
            let asked = |call: &Call<T>| call.state == State::Sent && call.lease() == (result.id, result.token);
            let Some(position) = self.calls.iter().position(asked) else {
                continue;
            };
            if result.status() == SettleStatus::Unavailable {
                self.calls[position].state = State::Later;
                later = true;
            } else {
                let call = self.calls.remove(position).call;
                // The caller may have gone away.
                let _ = call.reply.send(meaning(result));
            }
        }
        self.tidy();
        later
    }

    /// Requests that could not be stored may be sent again.
    pub(crate) fn send_again(&mut self) {
        for call in &mut self.calls {
            if call.state == State::Later {
                call.state = State::Unsent;
            }
        }
    }

    /// A new stream has started: requests that were not answered on the old one are sent again.
    pub(crate) fn resume(&mut self) {
        for call in &mut self.calls {
            call.state = State::Behind;
        }
        self.tidy();
    }

    /// Drops requests without callers, and lets the next one of an answered job move up.
    fn tidy(&mut self) {
        self.calls.retain(|call| call.state == State::Sent || !call.call.reply.is_closed());
        let ahead = self.calls.iter().filter(|call| call.state != State::Behind);
        let mut ahead: HashSet<(i64, i64)> = ahead.map(Call::lease).collect();
        for call in &mut self.calls {
            if call.state == State::Behind && ahead.insert(call.lease()) {
                call.state = State::Unsent;
            }
        }
    }
}

fn meaning(result: SettleResult) -> Result<()> {
    match result.status() {
        SettleStatus::Ok => Ok(()),
        SettleStatus::Invalid => Err(Status::invalid_argument(result.message).into()),
        _ => Err(Error::LeaseLost { id: result.id }),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    fn call(id: i64) -> (Ask<Extension>, oneshot::Receiver<Result<()>>) {
        let (reply, answer) = oneshot::channel();
        let what = Extension { id, token: 7, duration: None };
        (Ask { what, reply }, answer)
    }

    fn ok(id: i64) -> SettleResult {
        SettleResult { id, token: 7, status: SettleStatus::Ok.into(), message: String::new() }
    }

    #[test]
    fn a_message_names_a_job_once_and_the_second_request_follows() {
        let mut extensions = Asks::default();
        let (first, mut first_answer) = call(1);
        let (second, mut second_answer) = call(1);
        extensions.add(first);
        extensions.add(second);
        assert_eq!(extensions.next_batch(10, 1000).len(), 1);
        assert!(!extensions.has_unsent(), "the second one waits");
        assert!(!extensions.answered(vec![ok(1)]));
        first_answer.try_recv().unwrap().unwrap();
        assert_eq!(extensions.next_batch(10, 1000).len(), 1);
        extensions.answered(vec![ok(1)]);
        second_answer.try_recv().unwrap().unwrap();
    }

    #[test]
    fn a_message_is_no_larger_than_it_may_be_but_for_a_single_one() {
        let mut asks = Asks::default();
        let _answers: Vec<_> = (0..3)
            .map(|id| {
                let (reply, answer) = oneshot::channel();
                let checkpoint = Some(vec![0; 1000].into());
                asks.add(Ask { what: ProgressReport { id, checkpoint, ..Default::default() }, reply });
                answer
            })
            .collect();
        assert_eq!(asks.next_batch(10, 2500).len(), 2);
        assert_eq!(asks.next_batch(10, 100).len(), 1);
        assert!(!asks.has_unsent());
    }

    #[test]
    fn what_nobody_waits_for_is_not_sent() {
        let mut extensions = Asks::default();
        let (given_up, answer) = call(1);
        let (wanted, _wanted_answer) = call(1);
        extensions.add(given_up);
        extensions.add(wanted);
        drop(answer);
        assert_eq!(extensions.next_batch(10, 1000).len(), 1, "only the one that is wanted");
        assert!(!extensions.has_unsent());
    }
}

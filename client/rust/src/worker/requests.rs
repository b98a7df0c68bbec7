//! Unanswered extensions and progress reports.

use std::collections::HashSet;

use howdah_proto::v1::{Extension, ProgressReport, SettleResult, SettleStatus};
use tonic::Status;

use crate::{Error, Result};

use super::mailbox::Request;

/// An extension or a progress report.
pub(crate) trait LeaseMessage: Clone {
    /// Id and token of the lease.
    fn lease(&self) -> (i64, i64);
    /// Approximate size in a message, in bytes.
    fn size(&self) -> usize;
}

impl LeaseMessage for Extension {
    fn lease(&self) -> (i64, i64) {
        (self.id, self.token)
    }

    fn size(&self) -> usize {
        64
    }
}

impl LeaseMessage for ProgressReport {
    fn lease(&self) -> (i64, i64) {
        (self.id, self.token)
    }

    fn size(&self) -> usize {
        let text = self.text.as_ref().map_or(0, String::len);
        64 + text + self.checkpoint.as_ref().map_or(0, bytes::Bytes::len)
    }
}

/// Unanswered extensions or progress reports, in order. A list is fast enough, because few are unanswered at a time.
#[derive(Debug)]
pub(crate) struct PendingRequests<T> {
    entries: Vec<Entry<T>>,
    /// Set after a stream broke with more than [`RESEND_LIMIT`] bytes of unanswered requests. Until all are answered, each
    /// message has at most that many bytes and waits for the answer to the previous one, because a proxy may limit the bytes
    /// of a stream.
    one_at_a_time: bool,
}

/// Maximum bytes of unanswered requests that are resent together after a stream broke. With more, requests are sent as
/// `one_at_a_time` says.
const RESEND_LIMIT: usize = 64 << 10;

#[derive(Debug)]
struct Entry<T> {
    request: Request<T>,
    state: State,
}

impl<T> Default for PendingRequests<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), one_at_a_time: false }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Unsent,
    Sent,
    /// The broker could not store the request; it is resent later.
    Later,
    /// Waits until an earlier request for the same job is answered, because a message may name a job only once.
    Behind,
}

impl<T: LeaseMessage> Entry<T> {
    fn lease(&self) -> (i64, i64) {
        self.request.message.lease()
    }
}

impl<T: LeaseMessage> PendingRequests<T> {
    pub(crate) fn add(&mut self, request: Request<T>) {
        self.entries.push(Entry { request, state: State::Behind });
        self.tidy();
    }

    pub(crate) fn has_unsent(&self) -> bool {
        let has = |state| self.entries.iter().any(|entry| entry.state == state);
        has(State::Unsent) && !(self.one_at_a_time && has(State::Sent))
    }

    /// Takes the next requests to send: at most `max`, and at most `max_bytes` unless the first one alone is larger.
    pub(crate) fn next_batch(&mut self, max: usize, max_bytes: usize) -> Vec<T> {
        self.tidy();
        let max_bytes = if self.one_at_a_time { max_bytes.min(RESEND_LIMIT) } else { max_bytes };
        let unsent = self.entries.iter_mut().filter(|entry| entry.state == State::Unsent);
        let mut bytes = 0;
        let fits = |entry: &&mut Entry<T>| {
            let first = bytes == 0;
            bytes += entry.request.message.size();
            first || bytes <= max_bytes
        };
        let send = |entry: &mut Entry<T>| {
            entry.state = State::Sent;
            entry.request.message.clone()
        };
        unsent.take(max).take_while(fits).map(send).collect()
    }

    /// Handles the broker's results for requests. Returns whether some requests must be resent later.
    pub(crate) fn answered(&mut self, results: Vec<SettleResult>) -> bool {
        let mut later = false;
        for result in results {
            let is_answered =
                |entry: &Entry<T>| entry.state == State::Sent && entry.lease() == (result.id, result.token);
            let Some(position) = self.entries.iter().position(is_answered) else {
                continue;
            };
            if result.status() == SettleStatus::Unavailable {
                self.entries[position].state = State::Later;
                later = true;
            } else {
                let request = self.entries.remove(position).request;
                // Sending the reply fails only if the handler has stopped waiting for it.
                let _ = request.reply.send(to_result(result));
            }
        }
        self.tidy();
        self.one_at_a_time &= !self.entries.is_empty();
        later
    }

    /// Makes the requests that the broker could not store ready to be sent again.
    pub(crate) fn resend(&mut self) {
        for entry in &mut self.entries {
            if entry.state == State::Later {
                entry.state = State::Unsent;
            }
        }
    }

    /// Makes the requests that the previous stream left unanswered ready to be sent again.
    pub(crate) fn resume(&mut self) {
        let sent = self.entries.iter().filter(|entry| entry.state == State::Sent);
        self.one_at_a_time |= sent.map(|entry| entry.request.message.size()).sum::<usize>() > RESEND_LIMIT;
        for entry in &mut self.entries {
            entry.state = State::Behind;
        }
        self.tidy();
    }

    /// Drops unsent requests whose handler no longer waits. Makes the first request of each job ready to be sent.
    fn tidy(&mut self) {
        self.entries.retain(|entry| entry.state == State::Sent || !entry.request.reply.is_closed());
        let ahead = self.entries.iter().filter(|entry| entry.state != State::Behind);
        let mut ahead: HashSet<(i64, i64)> = ahead.map(Entry::lease).collect();
        for entry in &mut self.entries {
            if entry.state == State::Behind && ahead.insert(entry.lease()) {
                entry.state = State::Unsent;
            }
        }
    }
}

fn to_result(result: SettleResult) -> Result<()> {
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

    fn extension(id: i64) -> (Request<Extension>, oneshot::Receiver<Result<()>>) {
        let (reply, answer) = oneshot::channel();
        let message = Extension { id, token: 7, duration: None };
        (Request { message, reply }, answer)
    }

    fn ok(id: i64) -> SettleResult {
        SettleResult { id, token: 7, status: SettleStatus::Ok.into(), message: String::new() }
    }

    #[test]
    fn a_second_request_for_the_same_job_waits_for_the_answer_to_the_first() {
        let mut extensions = PendingRequests::default();
        let (first, mut first_answer) = extension(1);
        let (second, mut second_answer) = extension(1);
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
    fn a_message_with_several_requests_keeps_the_size_limit() {
        let mut requests = PendingRequests::default();
        let _answers: Vec<_> = (0..3)
            .map(|id| {
                let (reply, answer) = oneshot::channel();
                let checkpoint = Some(vec![0; 1000].into());
                requests.add(Request { message: ProgressReport { id, checkpoint, ..Default::default() }, reply });
                answer
            })
            .collect();
        assert_eq!(requests.next_batch(10, 2500).len(), 2);
        assert_eq!(requests.next_batch(10, 100).len(), 1);
        assert!(!requests.has_unsent());
    }

    #[test]
    fn a_request_without_a_caller_is_not_sent() {
        let mut extensions = PendingRequests::default();
        let (given_up, answer) = extension(1);
        let (wanted, _wanted_answer) = extension(1);
        extensions.add(given_up);
        extensions.add(wanted);
        drop(answer);
        assert_eq!(extensions.next_batch(10, 1000).len(), 1, "only the request whose caller still waits");
        assert!(!extensions.has_unsent());
    }
}

//! Unanswered extensions and progress reports.

use std::collections::{HashMap, HashSet, VecDeque};

use howdah_proto::v1::{SettleResult, SettleStatus, work_request::Message};
use tokio::sync::oneshot;
use tonic::Status;

use crate::{Error, Result};

use super::ledger::Key;

/// An extension or a progress report of a handler.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) key: Key,
    /// An `Extend` or a `Progress` with one entry.
    pub(crate) message: Message,
    /// Answers the waiting handler.
    pub(crate) reply: oneshot::Sender<Result<()>>,
}

/// Maximum bytes of unanswered requests that are resent together after a stream broke. With more bytes, `one_at_a_time` is set.
const RESEND_LIMIT: usize = 64 << 10;

/// The unanswered requests of a worker.
#[derive(Debug, Default)]
pub(crate) struct PendingRequests {
    /// The requests for each lease, in order. Only the first one is sent, because a message may name a job only once.
    leases: HashMap<Key, VecDeque<Request>>,
    /// Leases whose first request is to be sent.
    unsent: VecDeque<Key>,
    /// Leases whose first request was sent on this stream.
    sent: HashSet<Key>,
    /// Leases whose first request the broker could not store. It is resent when the backoff ends.
    later: Vec<Key>,
    /// Set after a stream broke with more than [`RESEND_LIMIT`] bytes of unanswered requests. Until all are answered, each
    /// message has at most that many bytes and waits for the answer to the previous one, because a proxy may limit the bytes
    /// of a stream.
    one_at_a_time: bool,
}

impl PendingRequests {
    pub(crate) fn add(&mut self, request: Request) {
        let requests = self.leases.entry(request.key).or_default();
        if requests.is_empty() {
            self.unsent.push_back(request.key);
        }
        requests.push_back(request);
    }

    pub(crate) fn has_unsent(&self) -> bool {
        let may_send = !self.one_at_a_time || self.sent.is_empty();
        may_send && !self.unsent.is_empty()
    }

    /// Joins the next requests of one kind into a message: at most `max`, and at most `max_bytes` unless the first one alone is
    /// larger. Drops requests whose handler no longer waits.
    pub(crate) fn next_message(&mut self, max: usize, max_bytes: usize) -> Option<Message> {
        let max_bytes = if self.one_at_a_time { max_bytes.min(RESEND_LIMIT) } else { max_bytes };
        let (mut message, mut count, mut bytes) = (None, 0, 0);
        while count < max
            && let Some(&key) = self.unsent.front()
        {
            let requests = self.leases.entry(key).or_default();
            requests.retain(|request| !request.reply.is_closed());
            let Some(next) = requests.front() else {
                self.leases.remove(&key);
                self.unsent.pop_front();
                continue;
            };
            bytes += next.message.encoded_len();
            let fits = match &mut message {
                None => {
                    message = Some(next.message.clone());
                    true
                }
                Some(message) => bytes <= max_bytes && append(message, &next.message),
            };
            if !fits {
                break;
            }
            self.sent.insert(key);
            self.unsent.pop_front();
            count += 1;
        }
        message
    }

    /// Handles the broker's results for requests. Returns whether some requests must be resent later.
    pub(crate) fn answered(&mut self, results: Vec<SettleResult>) -> bool {
        for result in results {
            let key = Key { id: result.id, token: result.token };
            if !self.sent.remove(&key) {
                continue;
            }
            if result.status() == SettleStatus::Unavailable {
                self.later.push(key);
                continue;
            }
            let requests = self.leases.entry(key).or_default();
            if let Some(request) = requests.pop_front() {
                // Sending the reply fails only if the handler has stopped waiting for it.
                let _ = request.reply.send(to_result(result));
            }
            if requests.is_empty() {
                self.leases.remove(&key);
            } else {
                self.unsent.push_back(key);
            }
        }
        self.one_at_a_time &= !self.leases.is_empty();
        !self.later.is_empty()
    }

    /// Makes the requests that the broker could not store ready to be sent again.
    pub(crate) fn resend(&mut self) {
        self.unsent.extend(self.later.drain(..));
    }

    /// Makes all requests that the previous stream left unanswered ready to be sent again.
    pub(crate) fn resume(&mut self) {
        let first = |key| self.leases.get(key).and_then(|requests| requests.front());
        let unanswered = self.sent.iter().filter_map(first);
        self.one_at_a_time |= unanswered.map(|request| request.message.encoded_len()).sum::<usize>() > RESEND_LIMIT;
        self.unsent.extend(self.sent.drain());
        self.resend();
    }
}

/// Adds the entries of one message to another message of the same kind. Returns false if the kinds differ.
fn append(all: &mut Message, more: &Message) -> bool {
    match (all, more) {
        (Message::Extend(all), Message::Extend(more)) => all.extensions.extend_from_slice(&more.extensions),
        (Message::Progress(all), Message::Progress(more)) => all.reports.extend_from_slice(&more.reports),
        _ => return false,
    }
    true
}

fn to_result(result: SettleResult) -> Result<()> {
    match result.status() {
        SettleStatus::Ok => Ok(()),
        SettleStatus::Invalid => Err(Status::invalid_argument(result.message).into()),
        _ => Err(Error::LeaseLost { id: result.id }),
    }
}

#[cfg(test)]
mod tests {
    use howdah_proto::v1::{Extend, Extension, Progress, ProgressReport};

    use super::*;

    type Answer = oneshot::Receiver<Result<()>>;

    fn add(requests: &mut PendingRequests, id: i64, message: Message) -> Answer {
        let (reply, answer) = oneshot::channel();
        requests.add(Request { key: Key { id, token: 7 }, message, reply });
        answer
    }

    fn extend(requests: &mut PendingRequests, id: i64) -> Answer {
        let extension = Extension { id, token: 7, duration: None };
        add(requests, id, Message::Extend(Extend { extensions: vec![extension] }))
    }

    fn checkpoint(requests: &mut PendingRequests, id: i64) -> Answer {
        let report = ProgressReport { id, token: 7, checkpoint: Some(vec![0; 1000].into()), ..Default::default() };
        add(requests, id, Message::Progress(Progress { reports: vec![report] }))
    }

    /// The ids in the next message.
    fn next(requests: &mut PendingRequests, max_bytes: usize) -> Vec<i64> {
        match requests.next_message(10, max_bytes) {
            Some(Message::Extend(extend)) => extend.extensions.iter().map(|extension| extension.id).collect(),
            Some(Message::Progress(progress)) => progress.reports.iter().map(|report| report.id).collect(),
            _ => Vec::new(),
        }
    }

    fn ok(id: i64) -> Vec<SettleResult> {
        vec![SettleResult { id, token: 7, status: SettleStatus::Ok.into(), message: String::new() }]
    }

    #[test]
    fn a_second_request_for_the_same_job_waits_for_the_answer_to_the_first() {
        let mut requests = PendingRequests::default();
        let mut first = extend(&mut requests, 1);
        let mut second = checkpoint(&mut requests, 1);
        assert_eq!(next(&mut requests, 10_000), [1]);
        assert!(!requests.has_unsent(), "the second one waits");
        assert!(!requests.answered(ok(1)));
        first.try_recv().unwrap().unwrap();
        assert_eq!(next(&mut requests, 10_000), [1]);
        requests.answered(ok(1));
        second.try_recv().unwrap().unwrap();
    }

    #[test]
    fn a_message_has_requests_of_one_kind_and_keeps_the_size_limit() {
        let mut requests = PendingRequests::default();
        let _answers = [1, 2, 3].map(|id| checkpoint(&mut requests, id));
        let _extension = extend(&mut requests, 4);
        assert_eq!(next(&mut requests, 2500), [1, 2]);
        assert_eq!(next(&mut requests, 100), [3]);
        assert_eq!(next(&mut requests, 10_000), [4]);
        assert!(!requests.has_unsent());
    }

    #[test]
    fn a_request_without_a_caller_is_not_sent() {
        let mut requests = PendingRequests::default();
        drop(extend(&mut requests, 1));
        let _wanted = checkpoint(&mut requests, 1);
        assert!(matches!(requests.next_message(10, 10_000), Some(Message::Progress(_))));
        drop(extend(&mut requests, 2));
        assert_eq!(requests.next_message(10, 10_000), None);
        assert!(!requests.has_unsent());
    }
}

//! Sends outcomes by unary calls.
//!
//! To a proxy, a stream is one request, and some proxies limit the bytes of a request. If a stream breaks with many bytes of
//! unanswered outcomes, the next one may break at the same point, again and again. So these outcomes are sent by `SettleJobs`, a
//! few at a time. A unary call that is too large fails with HTTP 413; a stream is only cut.

use howdah_proto::v1::{Nack, SettleJobsRequest, SettleResult, outcome::Outcome as End};

use crate::{Error, Result, call::call};

use super::{
    ledger::{Key, Ledger, State, Way},
    outcome::size,
    session::{Mail, Session},
};

/// Maximum bytes of a `SettleJobs` call with more than one outcome.
const CALL_BYTES: usize = 64 << 10;

/// State of a session's `SettleJobs` calls.
#[derive(Debug)]
pub(crate) struct UnarySettler {
    /// Whether a `SettleJobs` call is pending.
    is_busy: bool,
    max_bytes: usize,
}

impl Default for UnarySettler {
    fn default() -> Self {
        Self { is_busy: false, max_bytes: CALL_BYTES }
    }
}

/// Result of a `SettleJobs` call, and the leases that the call named.
#[derive(Debug)]
pub(crate) struct UnaryAnswer {
    keys: Vec<Key>,
    result: Result<Vec<SettleResult>>,
}

impl Ledger {
    /// Queues the outcomes of a failed `SettleJobs` call again.
    fn requeue_unary(&mut self, keys: Vec<Key>) {
        keys.into_iter().rev().for_each(|key| self.unary.push_front(key));
    }

    /// Queues the outcomes of a `SettleJobs` call for the stream, unless the call has settled them.
    fn move_to_stream(&mut self, keys: &[Key]) {
        for key in keys {
            if matches!(self.state_mut(*key), Some(State::Ended { way: Way::Unary, .. })) {
                self.queue(*key);
            }
        }
    }

    /// Replaces an outcome that a proxy refuses because of its size by a small nack without a retry. Returns the size of the
    /// refused outcome in bytes.
    fn fail_too_large(&mut self, key: Key, error: &Error) -> usize {
        let Some(State::Ended { outcome, .. }) = self.state_mut(key) else {
            return 0;
        };
        let bytes = size(outcome);
        let error = format!("the outcome takes {bytes} bytes and does not reach the broker: {error}");
        *outcome = End::Nack(Nack { error, no_retry: true, ..Nack::default() });
        self.move_to_stream(&[key]);
        bytes
    }
}

impl Session {
    /// Makes the next `SettleJobs` call, if outcomes are queued. The result arrives as mail. While outcomes wait for the end of a
    /// backoff, no call is made.
    pub(crate) fn settle_unary(&mut self) {
        if self.unary.is_busy || self.resend_at.is_some() {
            return;
        }
        let outcomes = self.ledger.take(Way::Unary, usize::MAX, self.unary.max_bytes);
        if outcomes.is_empty() {
            return;
        }
        self.unary.is_busy = true;
        let keys = outcomes.iter().map(|outcome| Key { id: outcome.id, token: outcome.token }).collect();
        let (client, mail) = (self.client.clone(), self.mail_sender.clone());
        tokio::spawn(async move {
            let answer = call!(Change client.workers().settle_jobs(SettleJobsRequest { outcomes }));
            let answer = UnaryAnswer { keys, result: answer.map(|answer| answer.results) };
            // Sending fails only if the worker has ended.
            let _ = mail.send(Mail::Unary(answer));
        });
    }

    /// Handles the result of a `SettleJobs` call.
    pub(crate) fn unary_settled(&mut self, UnaryAnswer { keys, result }: UnaryAnswer) {
        self.unary.is_busy = false;
        match result {
            Ok(results) => {
                self.answered(&results);
                self.ledger.move_to_stream(&keys);
            }
            Err(error) if error.is_too_large() && keys.len() > 1 => {
                self.unary.max_bytes /= 2;
                self.ledger.requeue_unary(keys);
            }
            Err(error) if error.is_too_large() => {
                for key in keys {
                    let bytes = self.ledger.fail_too_large(key, &error);
                    tracing::error!(job = key.id, bytes, %error, "the outcome is too large for a proxy: the job fails");
                }
            }
            Err(error) if error.is_retried() => {
                tracing::debug!(%error, "outcomes were not sent; trying again");
                self.ledger.requeue_unary(keys);
                self.resend_later();
            }
            // The broker refused `SettleJobs`, but it may still accept the outcomes on a stream.
            Err(error) => {
                tracing::warn!(%error, "a call with outcomes was refused; sending the outcomes on the stream");
                self.ledger.move_to_stream(&keys);
            }
        }
    }
}

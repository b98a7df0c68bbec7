//! The mailbox of a worker. It has outcomes, extensions and progress reports of handlers, and results of `SettleJobs` calls,
//! all of which the worker reads together.
//!
//! A channel would wake the worker for each message. With a mailbox, only a handler that finds it empty wakes the worker, so
//! under load the worker reads many messages each time.

use std::{fmt, mem};

use howdah_proto::v1::{Extension, ProgressReport};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::{Result, telemetry::Settling};

use super::{ledger::Key, outcome::Outcome, unary::UnaryAnswer};

pub(crate) struct Mailbox {
    /// `None` after the worker has ended: messages are then no longer read.
    mail: Mutex<Option<Mail>>,
    /// Signals that a message was put into an empty mailbox.
    pub(crate) wake: Notify,
}

/// The contents of the mailbox.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    pub(crate) done: Vec<(Key, Outcome, Settling)>,
    pub(crate) extensions: Vec<Request<Extension>>,
    pub(crate) reports: Vec<Request<ProgressReport>>,
    pub(crate) unary: Option<UnaryAnswer>,
}

/// An extension or a progress report, with the sender that answers the waiting handler.
#[derive(Debug)]
pub(crate) struct Request<T> {
    pub(crate) message: T,
    pub(crate) reply: oneshot::Sender<Result<()>>,
}

impl Mailbox {
    pub(crate) fn new() -> Self {
        Self { mail: Mutex::new(Some(Mail::default())), wake: Notify::new() }
    }

    /// Adds the outcome of a handler.
    pub(crate) fn done(&self, key: Key, outcome: Outcome, settling: Settling) {
        self.put(|mail| mail.done.push((key, outcome, settling)));
    }

    /// Adds the result of a `SettleJobs` call. There is at most one, because at most one call is pending.
    pub(crate) fn unary(&self, answer: UnaryAnswer) {
        self.put(|mail| mail.unary = Some(answer));
    }

    /// Adds a handler's request for an extension.
    pub(crate) fn extend(&self, key: Key, duration: prost_types::Duration) -> oneshot::Receiver<Result<()>> {
        let (reply, answer) = oneshot::channel();
        let message = Extension { id: key.id, token: key.token, duration: Some(duration) };
        self.put(|mail| mail.extensions.push(Request { message, reply }));
        answer
    }

    /// Adds a progress report; fills in id and token.
    pub(crate) fn report(&self, key: Key, report: ProgressReport) -> oneshot::Receiver<Result<()>> {
        let (reply, answer) = oneshot::channel();
        let message = ProgressReport { id: key.id, token: key.token, ..report };
        self.put(|mail| mail.reports.push(Request { message, reply }));
        answer
    }

    fn put(&self, put: impl FnOnce(&mut Mail)) {
        let mut guard = self.mail.lock();
        let Some(mail) = guard.as_mut() else {
            return;
        };
        let was_empty = mail.is_empty();
        put(mail);
        drop(guard);
        if was_empty {
            self.wake.notify_one();
        }
    }

    /// Takes all messages. Leaves `empty` in their place, so that its memory is reused.
    pub(crate) fn take(&self, empty: Mail) -> Mail {
        debug_assert!(empty.is_empty());
        match self.mail.lock().as_mut() {
            Some(mail) => mem::replace(mail, empty),
            None => empty,
        }
    }

    /// Closes the mailbox of an ended worker. Handlers that wait for an answer get an error.
    pub(crate) fn close(&self) {
        *self.mail.lock() = None;
    }
}

impl Mail {
    fn is_empty(&self) -> bool {
        self.done.is_empty() && self.extensions.is_empty() && self.reports.is_empty() && self.unary.is_none()
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").finish_non_exhaustive()
    }
}

//! Messages from the handlers to the worker: outcomes, extensions and progress, taken together.
//!
//! A channel would wake the worker for each. Here the handler that finds the box empty wakes it, and under load the
//! worker empties the box once for many.

use std::{fmt, mem};

use howdah_proto::v1::{Extension, ProgressReport};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::{Result, telemetry::Settling};

use super::{ledger::Key, outcome::Outcome};

pub(crate) struct Mailbox {
    /// `None` once the worker has ended: then it is not read any more.
    mail: Mutex<Option<Mail>>,
    /// Signals that something was put into an empty box.
    pub(crate) wake: Notify,
}

/// The contents of the box.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    pub(crate) done: Vec<(Key, Outcome, Settling)>,
    pub(crate) extensions: Vec<Ask<Extension>>,
    pub(crate) reports: Vec<Ask<ProgressReport>>,
}

/// An extension or a report, with the caller that waits for the answer.
#[derive(Debug)]
pub(crate) struct Ask<T> {
    pub(crate) what: T,
    pub(crate) reply: oneshot::Sender<Result<()>>,
}

impl Mailbox {
    pub(crate) fn new() -> Self {
        Self { mail: Mutex::new(Some(Mail::default())), wake: Notify::new() }
    }

    /// A handler has ended.
    pub(crate) fn done(&self, key: Key, outcome: Outcome, settling: Settling) {
        self.put(|mail| mail.done.push((key, outcome, settling)));
    }

    /// A handler asks for an extension.
    pub(crate) fn extend(&self, key: Key, duration: prost_types::Duration) -> oneshot::Receiver<Result<()>> {
        let (reply, answer) = oneshot::channel();
        let what = Extension { id: key.id, token: key.token, duration: Some(duration) };
        self.put(|mail| mail.extensions.push(Ask { what, reply }));
        answer
    }

    /// A handler reports progress; id and token are filled in.
    pub(crate) fn report(&self, key: Key, report: ProgressReport) -> oneshot::Receiver<Result<()>> {
        let (reply, answer) = oneshot::channel();
        let what = ProgressReport { id: key.id, token: key.token, ..report };
        self.put(|mail| mail.reports.push(Ask { what, reply }));
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

    /// Takes everything, and leaves `empty`, whose memory is used again.
    pub(crate) fn take(&self, empty: Mail) -> Mail {
        debug_assert!(empty.is_empty());
        match self.mail.lock().as_mut() {
            Some(mail) => mem::replace(mail, empty),
            None => empty,
        }
    }

    /// The worker has ended; waiting callers get an error.
    pub(crate) fn close(&self) {
        *self.mail.lock() = None;
    }
}

impl Mail {
    fn is_empty(&self) -> bool {
        self.done.is_empty() && self.extensions.is_empty() && self.reports.is_empty()
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").finish_non_exhaustive()
    }
}

//! Every option of an outcome, once. They can be said of a `v1::Outcome` and of what a worker settles alike.

use std::time::Duration;

use bytes::Bytes;
use howdah_proto::v1::{
    Ack, LeasedJob, Nack, Outcome, Release, Snooze,
    outcome::{self, Outcome as Kind},
};

use super::wire;

fn outcome(job: &LeasedJob, kind: Kind) -> Outcome {
    Outcome { id: job.id, token: job.token, outcome: Some(kind) }
}

/// It went well.
pub fn ack(job: &LeasedJob) -> Outcome {
    outcome(job, Kind::Ack(Ack::default()))
}

/// It failed; what follows is up to its retry policy.
pub fn nack(job: &LeasedJob, error: &str) -> Outcome {
    outcome(job, Kind::Nack(Nack { error: error.into(), ..Nack::default() }))
}

/// Later, and the attempt does not count.
pub fn snooze(job: &LeasedJob, delay: Duration) -> Outcome {
    outcome(job, Kind::Snooze(Snooze { delay: Some(wire(delay)) }))
}

/// Not here, and the attempt does not count.
pub fn release(job: &LeasedJob) -> Outcome {
    outcome(job, Kind::Release(Release {}))
}

/// The options.
pub trait OutcomeOptions: Sized {
    /// Any change of the message.
    fn with(self, change: impl FnOnce(&mut outcome::Outcome)) -> Self;

    /// Of an ack.
    fn result(self, result: impl Into<Bytes>) -> Self {
        self.with(|outcome| {
            if let Kind::Ack(ack) = outcome {
                ack.result = result.into()
            }
        })
    }

    /// Of an ack.
    fn next_stage(self, task_type: &str) -> Self {
        self.with(|outcome| {
            if let Kind::Ack(ack) = outcome {
                ack.next_stage = task_type.into()
            }
        })
    }

    /// Of a nack.
    fn no_retry(self) -> Self {
        self.with(|outcome| {
            if let Kind::Nack(nack) = outcome {
                nack.no_retry = true
            }
        })
    }

    /// Of a nack, whatever the retry policy says.
    fn retry_after(self, delay: Duration) -> Self {
        self.with(|outcome| {
            if let Kind::Nack(nack) = outcome {
                nack.retry_after = Some(wire(delay))
            }
        })
    }

    /// Of a nack: the next attempt is due now.
    fn at_once(self) -> Self {
        self.retry_after(Duration::ZERO)
    }
}

impl OutcomeOptions for Outcome {
    fn with(mut self, change: impl FnOnce(&mut outcome::Outcome)) -> Self {
        change(self.outcome.as_mut().expect("an outcome"));
        self
    }
}

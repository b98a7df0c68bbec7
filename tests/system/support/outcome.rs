//! Every option of an outcome, defined once for both a `v1::Outcome` and a `Settling`.

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

/// Returns an ack: the job succeeded.
pub fn ack(job: &LeasedJob) -> Outcome {
    outcome(job, Kind::Ack(Ack::default()))
}

/// Returns a nack of the job. The retry policy decides about the next attempt.
pub fn nack(job: &LeasedJob, error: &str) -> Outcome {
    outcome(job, Kind::Nack(Nack { error: error.into(), ..Nack::default() }))
}

/// Returns a snooze: the job runs later, and the attempt does not count.
pub fn snooze(job: &LeasedJob, delay: Duration) -> Outcome {
    outcome(job, Kind::Snooze(Snooze { delay: Some(wire(delay)) }))
}

/// Returns a release: the job goes to another worker, and the attempt does not count.
pub fn release(job: &LeasedJob) -> Outcome {
    outcome(job, Kind::Release(Release {}))
}

/// Builder methods for the options of an outcome.
pub trait OutcomeOptions: Sized {
    /// Applies any change to the message.
    fn with(self, change: impl FnOnce(&mut outcome::Outcome)) -> Self;

    /// Sets the result of an ack.
    fn result(self, result: impl Into<Bytes>) -> Self {
        self.with(|outcome| {
            if let Kind::Ack(ack) = outcome {
                ack.result = result.into()
            }
        })
    }

    /// Moves the job of an ack to its next stage.
    fn next_stage(self, task_type: &str) -> Self {
        self.with(|outcome| {
            if let Kind::Ack(ack) = outcome {
                ack.next_stage = task_type.into()
            }
        })
    }

    /// Makes a nack fail the job for good.
    fn no_retry(self) -> Self {
        self.with(|outcome| {
            if let Kind::Nack(nack) = outcome {
                nack.no_retry = true
            }
        })
    }

    /// Sets the details of a nack, and the place of its error.
    fn details(self, details: &str, place: &str) -> Self {
        self.with(|outcome| {
            if let Kind::Nack(nack) = outcome {
                (nack.details, nack.place) = (details.into(), place.into());
            }
        })
    }

    /// Sets the retry delay of a nack, which overrides the retry policy.
    fn retry_after(self, delay: Duration) -> Self {
        self.with(|outcome| {
            if let Kind::Nack(nack) = outcome {
                nack.retry_after = Some(wire(delay))
            }
        })
    }

    /// Makes the next attempt after a nack due at once.
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

//! Model sizes. The faults of a size occur in any order, each up to its limit. All faults together would give too many states
//! to explore, so there is one size for each combination of faults that matters.

use clap::ValueEnum;

use crate::{state::Faults, tables::Outcome};

#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Name to display.
    pub name: &'static str,
    pub jobs: i64,
    pub brokers: i32,
    pub workers: usize,
    /// Window of a worker: maximum number of jobs that it holds.
    pub window: usize,
    /// Attempts allowed per job.
    pub max_attempts: i16,
    /// Outcomes that workers send.
    pub outcomes: &'static [Outcome],
    /// Maximum number of times that each fault occurs.
    pub faults: Faults,
}

/// Set of sizes to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sizes {
    /// Takes seconds. Used by the tests.
    Small,
    /// Takes minutes.
    Large,
}

const NONE: Faults =
    Faults { claims: 2, broker_kills: 0, stops: 0, worker_kills: 0, breaks: 0, lost: 0, expiries: 0, timeouts: 0 };

const fn size(name: &'static str, faults: Faults) -> Size {
    Size { name, jobs: 1, brokers: 2, workers: 1, window: 1, max_attempts: 2, outcomes: &[Outcome::Ack], faults }
}

impl Size {
    /// Returns a copy of this size with another name and other faults.
    const fn with(self, name: &'static str, faults: Faults) -> Self {
        Self { name, faults, ..self }
    }
}

const BREAK: Size = size("a stream breaks", Faults { breaks: 1, ..NONE });
const TIMEOUT: Size = size("a stream breaks, an attempt times out", Faults { breaks: 1, timeouts: 1, ..NONE });
const KILL: Size = size("a stream breaks, a broker is killed", Faults { breaks: 1, broker_kills: 1, ..NONE });
const STOP: Size = size("a stream breaks, a broker drains", Faults { breaks: 1, stops: 1, ..NONE });
const EXPIRE: Size = size("a stream breaks, a running broker expires", Faults { breaks: 1, expiries: 1, ..NONE });
const LOST: Size = size("two answers of Postgres are lost", Faults { lost: 2, ..NONE });
const RIVALS: Size = Size {
    workers: 2,
    outcomes: &[Outcome::Ack, Outcome::Retry],
    ..size("two workers, a stream breaks", Faults { breaks: 1, ..NONE })
};
const KILLED: Size = Size { workers: 2, ..size("two workers, one is killed", Faults { worker_kills: 1, ..NONE }) };
const TWO_JOBS: Size =
    Size { jobs: 2, window: 2, ..size("two jobs, a running broker expires", Faults { expiries: 1, ..NONE }) };

impl Sizes {
    /// Returns all sizes of the set.
    pub fn all(self) -> Vec<Size> {
        match self {
            Self::Small => vec![RIVALS, BREAK, TIMEOUT, KILL, STOP, EXPIRE, LOST, KILLED, TWO_JOBS],
            Self::Large => vec![
                BREAK.with("a stream breaks, an answer is lost", Faults { breaks: 1, lost: 1, ..NONE }),
                Size { outcomes: &[Outcome::Ack, Outcome::Retry], ..EXPIRE }
                    .with("two outcomes, a stream breaks, a running broker expires", EXPIRE.faults),
                BREAK.with("three claims, a stream breaks twice", Faults { claims: 3, breaks: 2, ..NONE }),
                Size { workers: 2, ..EXPIRE }
                    .with("two workers, a stream breaks, a running broker expires", EXPIRE.faults),
                BREAK.with("a broker is killed, an answer is lost", Faults { broker_kills: 1, lost: 1, ..NONE }),
                BREAK.with("a broker is killed, another one expires", Faults { broker_kills: 1, expiries: 1, ..NONE }),
                TWO_JOBS.with(
                    "two jobs, a stream breaks, a running broker expires",
                    Faults { breaks: 1, expiries: 1, ..NONE },
                ),
                BREAK.with("a running broker expires, an answer is lost", Faults { expiries: 1, lost: 1, ..NONE }),
            ],
        }
    }
}

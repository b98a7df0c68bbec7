//! The test kit. A test starts a broker on a new database, enqueues jobs, works on them and checks the result:
//!
//! ```ignore
//! let broker = TestBroker::start().await;
//! let id = broker.enqueue("mail").key("k").delay(secs(5)).await;
//! let mut worker = broker.worker("mail").window(10).await;
//! let job = worker.next().await;
//! worker.nack(&job, "no route").no_retry().await;
//! assert_eq!(broker.state(id).await, JobState::Dead);
//! ```
//!
//! Builders make plain protocol messages: `enqueue(...)` builds a `v1::NewJob`, `worker(...)` a `v1::Subscribe`,
//! `ack(...)` a `v1::Outcome`. A test of the messages themselves sends them with `broker.jobs()`, `Worker::subscribe`,
//! `worker.send` or `open`.

mod address; // free addresses
mod broker; // a broker in the test process
mod clients; // plain gRPC and HTTP connections
mod database; // one Postgres for all tests, one database per test
mod enqueue; // builders for enqueue requests
mod gate; // blocks a broker in a statement
mod new_job; // every option of a job, once
mod operate; // reads, awaits and cancels jobs; settings
mod outcome; // every option of an outcome, once
mod program; // the real program in a separate process
mod pull; // pulling jobs by unary calls
pub mod python; // Python with packages
mod refusal; // errors as callers receive them
mod replica; // a primary and a replica
mod signals; // waiting for events
mod sized; // sizes of tests in README's command and in `just full`
pub mod stores; // a second store beside the database of each test
mod subscribe; // every option of a subscription, once
mod time; // durations and timestamps of the protocol
mod trace; // records the changes of each job and replays them
mod worker; // a worker on a stream

pub use address::unused_address;
pub use broker::{Service, TestBroker};
pub use clients::{jobs_client, open, task_types_client, workers_client};
pub use database::{
    TestDatabase, cluster_config, database, database_with_clock, database_with_test_clock, postgres_programs,
};
pub use gate::gate;
pub use new_job::{IntoNewJob, JobOptions, new_job};
pub use outcome::{OutcomeOptions, ack, nack, release, snooze};
pub use program::{Program, ServingProgram, has_language, howdah, id_of, open_directory, root, run};
pub use refusal::Refusal;
pub use replica::{Replicated, signal_postgres, socket_dir};
pub use signals::{PATIENCE, eventually, until, until_on, until_still, with_timeout};
pub use sized::{is_full_run, sized};
pub use time::{HOUR, MINUTE, at, far, millis, secs, wire};
pub use worker::{Worker, lease};

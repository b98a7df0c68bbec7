//! What the tests are written with. A test starts a broker on a database of its own, enqueues, works, and looks:
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
//! What is built here are the messages of the protocol, no more: `enqueue(...)` builds a `v1::NewJob`, `worker(...)` a
//! `v1::Subscribe`, `ack(...)` a `v1::Outcome`. A test that is about the messages themselves writes them with
//! `broker.jobs()`, `Worker::subscribe`, `worker.send` or `open`.

mod address; // where nobody listens yet
mod broker; // a broker in this process, and several on one database
mod clients; // connections without anything around them
mod database; // one Postgres for all tests, a database for each
mod enqueue; // what a producer sends, and what it is answered
mod gate; // a broker that is held up in a statement
mod new_job; // every option of a job, once
mod operate; // jobs looked at, waited for, cancelled; settings of task types
mod outcome; // every option of an outcome, once
mod program; // the real program
mod pull; // jobs without a stream
pub mod python; // Python with packages
mod refusal; // an error as callers see it
mod replica; // a primary, and a replica that follows it
mod signals; // waiting for what must come
pub mod stores; // a second store beside the database of each test
mod subscribe; // every option of a subscription, once
mod time; // durations and timestamps as the protocol has them
mod trace; // a record of what happened to each job, and its replay
mod worker; // a worker on a stream

pub use address::unused_address;
pub use broker::{Service, TestBroker};
pub use clients::{jobs_client, open, task_types_client, workers_client};
pub use database::{TestDatabase, cluster_config, database, postgres_programs};
pub use gate::{gate, gate_at};
pub use new_job::{IntoNewJob, JobOptions, new_job};
pub use outcome::{OutcomeOptions, ack, nack, release, snooze};
pub use program::{Program, ServingProgram, has_language, howdah, open_directory, root, run};
pub use refusal::Refusal;
pub use replica::{Replicated, signal_postgres, socket_dir};
pub use signals::{PATIENCE, eventually, soon, until, until_on, until_still};
pub use time::{HOUR, MINUTE, at, millis, secs, wire};
pub use worker::{Worker, lease};

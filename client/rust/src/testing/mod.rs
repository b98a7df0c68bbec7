//! Support for tests of programs that use Howdah; needs the feature `testing`.
//!
//! - [`perform`] runs a handler without a broker, and returns its outcome and reports
//! - [`recording_client`] creates a client without a broker, and a [`Recorder`] of the enqueued jobs
//! - [`Broker`] is a real broker with a temporary Postgres, for one test
//!
//! ```
//! use howdah_client::{Client, Job, JobError, NewJob, Outcome, testing};
//!
//! async fn welcome(job: Job) -> Result<Outcome, JobError> {
//!     job.progress(0.5, "half way").await?;
//!     Outcome::json(&job.json::<String>()?.to_uppercase())
//! }
//!
//! async fn sign_up(client: &Client, name: &str) -> howdah_client::Result<()> {
//!     client.enqueue(NewJob::new("mail.welcome").json(name)?).await.map(drop)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> howdah_client::Result<()> {
//! let done = testing::perform(welcome, NewJob::new("mail.welcome").json("ann")?).await;
//! assert_eq!(done.outcome, Outcome::ack(r#""ANN""#));
//! assert_eq!(done.reports[0].fraction, Some(0.5));
//!
//! let (client, recorder) = testing::recording_client();
//! sign_up(&client, "ann").await?;
//! recorder.assert_enqueued_with("mail.welcome", |job| job.payload == r#""ann""#);
//! # Ok(()) }
//! ```

mod broker;
mod perform;
mod recorder;
pub(crate) mod rules;

pub use self::{
    broker::Broker,
    perform::{Attempt, Performed, perform},
    recorder::{Recorder, recording_client},
};

//! Moves a task type with its jobs to another store (`docs/internals/stores.md`). Every step is an idempotent
//! transaction in one of the two stores. So after any interruption, the next call resumes the move.

mod pass;
mod start;

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use howdah_core::{
    error::Error,
    job::{StoreNumber, TaskTypeName, TypeId},
};
use howdah_engine::store::{Actor, LeftToMove, StoreError};
use parking_lot::Mutex;
use tokio::sync::mpsc::Sender;
use tokio_util::sync::CancellationToken;

use super::served::{ServedStore, Stores};

/// Interval at which a move checks whether jobs that were running in the old store have ended.
const LOOK: Duration = Duration::from_secs(1);
/// Interval at which a move checks whether all brokers use its new settings version. It is short, because brokers are
/// notified of a change and read it within milliseconds.
const ASK: Duration = Duration::from_millis(50);
/// Pause before a step of a move is retried because its store did not answer.
const AGAIN: Duration = Duration::from_millis(500);
/// Maximum time that a progress report waits for the caller to read it. Then the move stops, because the task type must
/// not stay paused for long.
const UNREAD: Duration = Duration::from_secs(30);

/// Phase of a move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MovePhase {
    /// The move waits until all brokers know that the task type is paused.
    #[default]
    Pausing,
    /// Jobs are being moved, and the task type is paused.
    Moving,
    /// The new store runs the task type's jobs. The move waits for jobs that still run in the old store, and moves
    /// those that must run again.
    Following,
    /// The move is complete.
    Done,
}

/// Progress of a move.
#[derive(Clone, Debug, Default)]
pub(crate) struct MoveProgress {
    pub(crate) phase: MovePhase,
    /// Number of jobs that this call has moved.
    pub(crate) moved: i64,
    pub(crate) left: LeftToMove,
    /// Number of schedules moved to the new store (`schedules`). Number of schedules left in the old store because the
    /// new one has another schedule with the same name (`staying_schedules`).
    pub(crate) schedules: usize,
    pub(crate) staying_schedules: usize,
    /// Error because of which a step of the move is being retried. Empty while no step is being retried.
    pub(crate) problem: String,
}

/// Moves that this process is executing, each with the number of the old store and the type's id there.
#[derive(Debug, Default)]
pub(super) struct Moves(Mutex<HashSet<(StoreNumber, TypeId)>>);

/// A move of a task type that has passed its checks and has not started yet.
pub(crate) struct Move {
    stores: Arc<Stores>,
    name: TaskTypeName,
    /// Positions of the old and the new store in the list of stores.
    from: usize,
    to: usize,
    type_id: TypeId,
    /// Earliest creation time of the task type in any store but the new one. In the new store, the type gets a still
    /// earlier creation time, which makes the new store its home.
    oldest: SystemTime,
    by: Actor,
}

/// Reason why a move of a task type stops early.
enum Stop {
    /// The caller no longer listens, or the broker is stopping.
    Cancelled,
    /// The move cannot continue.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Whether a move retries a step after this error. Steps are idempotent, so a step with an unknown result is retried,
/// too.
fn passes(error: &StoreError) -> bool {
    error.is_retryable() || matches!(error, StoreError::Unknown(_))
}

/// A move in progress.
struct Running<'a> {
    job: &'a Move,
    progress: MoveProgress,
    to: Sender<Result<MoveProgress, Error>>,
    stopping: CancellationToken,
    /// Id of the task type in the new store.
    new_type: TypeId,
}

impl Move {
    fn served(&self, nth: usize) -> Result<&ServedStore, Error> {
        self.stores
            .all()
            .get(nth)
            .ok_or_else(|| Error::Internal("bug: a store of the move is not in the list".into()))?
            .served()
    }

    /// Returns the names of the old and the new store.
    pub(crate) fn stores(&self) -> (String, String) {
        let name = |nth: usize| self.stores.all().get(nth).map(|store| store.name().to_owned()).unwrap_or_default();
        (name(self.from), name(self.to))
    }

    /// Moves the jobs and reports progress until all have moved or the caller no longer listens.
    pub(crate) async fn run(self, to: Sender<Result<MoveProgress, Error>>, stopping: CancellationToken) {
        let Ok(from) = self.served(self.from) else { return };
        let key = (from.number, self.type_id);
        if !self.stores.moves.0.lock().insert(key) {
            let said = format!("task type {} is already being moved by this broker", self.name);
            return drop(to.send(Err(Error::Moving(said))).await);
        }
        let mut running =
            Running { job: &self, progress: MoveProgress::default(), to: to.clone(), stopping, new_type: 0 };
        let ended = running.run_on().await;
        // Gives up the ownership of the move. Otherwise another broker could resume the move only after this broker's
        // row has expired.
        let store = from.broker.operator.store();
        if let Err(error) = store.release_move(self.type_id, from.broker.operator.broker_id()).await {
            tracing::debug!(%error, "cannot give up the move of a task type; other brokers can resume it later");
        }
        self.stores.moves.0.lock().remove(&key);
        match ended {
            Ok(()) => tracing::info!(task_type = %self.name, jobs = running.progress.moved, "moved a task type"),
            Err(Stop::Cancelled) => tracing::info!(task_type = %self.name, "moving a task type was interrupted"),
            Err(Stop::Failed(error)) => {
                tracing::warn!(task_type = %self.name, %error, "moving a task type was interrupted");
                let _ = to.send(Err(error)).await;
            }
        }
    }
}

impl Running<'_> {
    /// The old store.
    fn source(&self) -> Result<&ServedStore, Stop> {
        Ok(self.job.served(self.job.from)?)
    }

    fn target(&self) -> Result<&ServedStore, Stop> {
        Ok(self.job.served(self.job.to)?)
    }

    /// Sends the progress to the caller. Stops the move if the caller does not read the report within `UNREAD`, because
    /// the task type must not stay paused.
    async fn report(&self) -> Result<(), Stop> {
        if self.stopping.is_cancelled() {
            return Err(Error::Unavailable("this broker is stopping; repeat the call to resume the move".into()).into());
        }
        self.to.send_timeout(Ok(self.progress.clone()), UNREAD).await.map_err(|_| Stop::Cancelled)
    }

    /// Waits for this time. Fails early if the caller no longer listens or the broker is stopping.
    async fn pause(&self, pause: Duration) -> Result<(), Stop> {
        tokio::select! {
            () = tokio::time::sleep(pause) => Ok(()),
            () = self.to.closed() => Err(Stop::Cancelled),
            () = self.stopping.cancelled() => self.report().await,
        }
    }

    /// Runs a step of the move at a store. After a temporary error, reports the error as `problem` and retries until
    /// the step succeeds.
    async fn step<T, F>(&mut self, store: &str, run: impl Fn() -> F) -> Result<T, Stop>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        loop {
            match run().await {
                Ok(done) => {
                    if !std::mem::take(&mut self.progress.problem).is_empty() {
                        self.report().await?;
                    }
                    return Ok(done);
                }
                Err(error) if passes(&error) => {
                    tracing::debug!(store, %error, "a step of moving a task type failed; trying again");
                    let problem = format!("store {store}: {}", error.public_text());
                    if self.progress.problem != problem {
                        self.progress.problem = problem;
                        self.report().await?;
                    }
                    self.pause(AGAIN).await?;
                }
                Err(error) => return Err(Error::from(error).into()),
            }
        }
    }
}

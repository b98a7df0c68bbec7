//! Moves a task type to another store (`docs/internals/stores.md`). Every step is an idempotent transaction in one of the two
//! stores, so after any interruption the next call resumes the move.

mod pass;
mod start;

use std::{
    collections::HashSet,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tokio::sync::mpsc::Sender;
use tokio_util::sync::CancellationToken;

use super::served::{ServedStore, SharedStores};
use crate::{
    error::Error,
    job::{StoreNumber, TaskTypeName, TypeId},
    store::{Actor, LeftToMove, StoreError},
};

/// Interval at which a move looks for running jobs that have ended in the old store.
const LOOK: Duration = Duration::from_secs(1);
/// Interval at which a move checks whether all brokers use its new settings version. It is short, because brokers are
/// notified of a change and read it within milliseconds.
const ASK: Duration = Duration::from_millis(50);
/// Wait before a step is retried if its store does not answer.
const AGAIN: Duration = Duration::from_millis(500);
/// Maximum time for which a progress report waits until the caller reads it. Then the move stops, because the task type
/// is paused meanwhile.
const UNREAD: Duration = Duration::from_secs(30);

/// Phase of a move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MovePhase {
    /// Waits until all brokers know that the type is paused for the move.
    #[default]
    Pausing,
    /// Jobs are being moved.
    Moving,
    /// The type runs in the new store. Jobs that still run in the old store end there or follow.
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
    /// Number of schedules that have moved to the new store, and number of schedules that stay in the old store because
    /// the new one has another schedule with the same name.
    pub(crate) schedules: usize,
    pub(crate) staying_schedules: usize,
    /// Error of the store whose answer the move waits for. Empty while no step is being retried.
    pub(crate) problem: String,
}

/// Moves that this process is executing: number of the old store, and id of the type there.
#[derive(Debug, Default)]
pub(super) struct Moves(Mutex<HashSet<(StoreNumber, TypeId)>>);

/// A move that has passed its checks and has not started.
pub(crate) struct Move {
    stores: SharedStores,
    name: TaskTypeName,
    /// Positions of the old and the new store in the list of stores.
    from: usize,
    to: usize,
    type_id: TypeId,
    /// Creation time of the type in the oldest store other than the new one. The type in the new store is dated before
    /// it, so that the new store becomes the home.
    oldest: SystemTime,
    by: Actor,
}

/// Reason why a move stops.
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

/// Whether a move retries a step that failed with this error. Steps are idempotent, so an unknown outcome is retried
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
    /// Id of the type in the new store.
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

    /// Names of the old and the new store.
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
        // Gives up the ownership of the move. Otherwise other brokers could resume it only after this broker's lease
        // has expired.
        let store = from.broker.operator.store();
        if let Err(error) = store.release_move(self.type_id, from.broker.operator.broker_id()).await {
            tracing::debug!(%error, "cannot give up the ownership of a move of a task type");
        }
        self.stores.moves.0.lock().remove(&key);
        match ended {
            Ok(()) => tracing::info!(task_type = %self.name, jobs = running.progress.moved, "a task type has moved"),
            Err(Stop::Cancelled) => tracing::info!(task_type = %self.name, "the move of a task type was interrupted"),
            Err(Stop::Failed(error)) => {
                tracing::warn!(task_type = %self.name, %error, "the move of a task type was interrupted");
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

    /// Sends the progress to the caller. Stops the move if the caller does not read it within `UNREAD`, because the
    /// type must not stay paused.
    async fn report(&self) -> Result<(), Stop> {
        if self.stopping.is_cancelled() {
            return Err(Error::Unavailable("this broker is stopping; repeat the call to resume the move".into()).into());
        }
        self.to.send_timeout(Ok(self.progress.clone()), UNREAD).await.map_err(|_| Stop::Cancelled)
    }

    /// Waits, unless the caller no longer listens.
    async fn pause(&self, pause: Duration) -> Result<(), Stop> {
        tokio::select! {
            () = tokio::time::sleep(pause) => Ok(()),
            () = self.to.closed() => Err(Stop::Cancelled),
            () = self.stopping.cancelled() => self.report().await,
        }
    }

    /// Runs a step of the move at a store. Retries temporary errors until the store answers, and reports the error as
    /// `problem`.
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
                    tracing::debug!(store, %error, "retrying a step of a move");
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

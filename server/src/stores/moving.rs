//! A task type moves to another store (`docs/internals/stores.md`). Every step is a transaction in one of the two stores that may be
//! repeated, so whatever stops a move, the next call goes on where it was.

mod pass;
mod start;

use std::{
    collections::HashSet,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tokio::sync::mpsc::Sender;
use tokio_util::sync::CancellationToken;

use super::fleet::{Engine, SharedFleet};
use crate::{
    error::Error,
    job::{StoreNumber, TaskTypeName, TypeId},
    store::{Actor, LeftToMove, StoreError},
};

/// How often to look whether jobs that run have ended: as often as brokers sweep.
const LOOK: Duration = Duration::from_secs(1);
/// How often to ask whether brokers have read the settings. They are notified, so it takes milliseconds.
const ASK: Duration = Duration::from_millis(50);
/// How long to wait before a step is repeated whose store does not answer.
const AGAIN: Duration = Duration::from_millis(500);
/// How long a caller may leave a report unread.
const UNREAD: Duration = Duration::from_secs(30);

/// What a move does at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MovePhase {
    /// It waits until all brokers know that the type rests.
    #[default]
    Pausing,
    /// Jobs move.
    Moving,
    /// The type goes on in the new store. Jobs that still run in the old one end there, or follow.
    Following,
    /// It is over.
    Done,
}

/// How far a move is.
#[derive(Clone, Debug, Default)]
pub(crate) struct MoveProgress {
    pub(crate) phase: MovePhase,
    /// Jobs that this call has moved.
    pub(crate) moved: i64,
    pub(crate) left: LeftToMove,
    /// Schedules that have moved, and those of whose name the new store has another one.
    pub(crate) schedules: usize,
    pub(crate) staying_schedules: usize,
    /// Why it waits for a store; empty: it does not.
    pub(crate) problem: String,
}

/// The moves that this process goes on with: the number of the store that a type leaves, and the type there.
#[derive(Debug, Default)]
pub(super) struct Moves(Mutex<HashSet<(StoreNumber, TypeId)>>);

/// A move that can begin.
pub(crate) struct Move {
    fleet: SharedFleet,
    name: TaskTypeName,
    /// Positions in the list of stores.
    from: usize,
    to: usize,
    type_id: TypeId,
    /// When the oldest store got the type.
    oldest: SystemTime,
    by: Actor,
}

/// Why a move stops.
enum Stop {
    /// Nobody waits for it any more, or the broker stops.
    Cancelled,
    /// It cannot go on.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Whether a step that failed so may be repeated: its store will answer again.
fn passes(error: &StoreError) -> bool {
    error.may_be_repeated() || matches!(error, StoreError::Unknown(_))
}

/// A move under way.
struct Running<'a> {
    job: &'a Move,
    progress: MoveProgress,
    to: Sender<Result<MoveProgress, Error>>,
    stopping: CancellationToken,
    /// The type in the store that it goes to.
    new_type: TypeId,
}

impl Move {
    fn engine(&self, nth: usize) -> Result<&Engine, Error> {
        self.fleet.members().get(nth).ok_or_else(|| Error::Internal("a store of a move is none".into()))?.engine()
    }

    /// The names of the two stores.
    pub(crate) fn stores(&self) -> (String, String) {
        let name =
            |nth: usize| self.fleet.members().get(nth).map(|member| member.name().to_owned()).unwrap_or_default();
        (name(self.from), name(self.to))
    }

    /// Moves the jobs, and reports how far it is, until all have moved or nobody waits for it.
    pub(crate) async fn run(self, to: Sender<Result<MoveProgress, Error>>, stopping: CancellationToken) {
        let Ok(from) = self.engine(self.from) else { return };
        let key = (from.number, self.type_id);
        if !self.fleet.moves.0.lock().insert(key) {
            let said = format!("task type {} is being moved by this broker already", self.name);
            return drop(to.send(Err(Error::Moving(said))).await);
        }
        let mut running =
            Running { job: &self, progress: MoveProgress::default(), to: to.clone(), stopping, new_type: 0 };
        let ended = running.run_on().await;
        // Another broker may go on with it at once.
        let store = from.broker.operator.store();
        if let Err(error) = store.disown_move(self.type_id, from.broker.operator.broker_id()).await {
            tracing::debug!(%error, "a move stays with this broker");
        }
        self.fleet.moves.0.lock().remove(&key);
        match ended {
            Ok(()) => tracing::info!(task_type = %self.name, jobs = running.progress.moved, "a task type has moved"),
            Err(Stop::Cancelled) => tracing::info!(task_type = %self.name, "a move rests"),
            Err(Stop::Failed(error)) => {
                tracing::warn!(task_type = %self.name, %error, "a move rests");
                let _ = to.send(Err(error)).await;
            }
        }
    }
}

impl Running<'_> {
    /// The stores, each with its broker.
    fn source(&self) -> Result<&Engine, Stop> {
        Ok(self.job.engine(self.job.from)?)
    }

    fn target(&self) -> Result<&Engine, Stop> {
        Ok(self.job.engine(self.job.to)?)
    }

    /// Says how far it is. Nobody listens or reads any more: it stops, because the type rests meanwhile.
    async fn tell(&self) -> Result<(), Stop> {
        if self.stopping.is_cancelled() {
            return Err(Error::Unavailable("this broker is stopping; call again, and the move goes on".into()).into());
        }
        self.to.send_timeout(Ok(self.progress.clone()), UNREAD).await.map_err(|_| Stop::Cancelled)
    }

    /// Waits, unless nobody listens any more.
    async fn pause(&self, pause: Duration) -> Result<(), Stop> {
        tokio::select! {
            () = tokio::time::sleep(pause) => Ok(()),
            () = self.to.closed() => Err(Stop::Cancelled),
            () = self.stopping.cancelled() => self.tell().await,
        }
    }

    /// Runs a step until its store has answered.
    async fn step<T, F>(&mut self, store: &str, run: impl Fn() -> F) -> Result<T, Stop>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        loop {
            match run().await {
                Ok(done) => {
                    if !std::mem::take(&mut self.progress.problem).is_empty() {
                        self.tell().await?;
                    }
                    return Ok(done);
                }
                Err(error) if passes(&error) => {
                    tracing::debug!(store, %error, "a step of a move is repeated");
                    let problem = format!("store {store}: {}", error.told());
                    if self.progress.problem != problem {
                        self.progress.problem = problem;
                        self.tell().await?;
                    }
                    self.pause(AGAIN).await?;
                }
                Err(error) => return Err(Error::from(error).into()),
            }
        }
    }
}

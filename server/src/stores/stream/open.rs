//! The first message of a stream: what all engines of it go by.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicBool},
};

use futures::Stream;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{EngineOfStream, Home, Merge, Serving, inbox::Inbox, lane::Lane, own::Own, router, wanted::Wanted};
use crate::{
    access::{Caller, Operation},
    config::Config,
    dispatch::Turns,
    error::Error,
    job::{Lease, StoreNumber},
    session::{ClientInfo, ClientMessage, SessionId, SubscribeArgs, first_message},
};

/// What is the same for all engines of a stream.
pub(super) struct Shared {
    pub(super) engines: Vec<EngineOfStream>,
    pub(super) inboxes: Vec<Inbox>,
    pub(super) caller: Caller,
    pub(super) client: ClientInfo,
    pub(super) config: Arc<Config>,
    pub(super) turns: Arc<Turns>,
    pub(super) wanted: Wanted,
    pub(super) own: Own,
    /// The id that the worker came with, or a new one.
    pub(super) session_id: SessionId,
    /// The turn of the id that its Welcome has.
    pub(super) next_turn: u32,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) max_message_bytes: usize,
    /// The worker wants no more jobs.
    pub(super) is_draining: AtomicBool,
    /// Cancelled when the worker got its Welcome.
    pub(super) welcomed: CancellationToken,
    /// Cancelled when the worker has closed its side.
    pub(super) closing: CancellationToken,
    /// Cancelled when nobody reads what goes out any more.
    pub(super) gone: CancellationToken,
}

impl Shared {
    /// The engine of a job; `None`: no store has such an id.
    pub(super) fn engine_of(&self, id: i64) -> Option<usize> {
        engine_of(&self.engines, id)
    }
}

fn engine_of(engines: &[EngineOfStream], id: i64) -> Option<usize> {
    let number = StoreNumber::of_id(id)?;
    engines.iter().position(|engine| engine.may_have(number))
}

/// Opens a stream and reads it to its end.
pub(super) async fn open_and_read<S>(
    engines: Vec<EngineOfStream>,
    caller: Caller,
    client: ClientInfo,
    home: Home,
    mut incoming: S,
    opened: oneshot::Sender<Result<Merge, Error>>,
) where
    S: Stream<Item = Result<ClientMessage, Error>> + Send + Unpin + 'static,
{
    let (shared, held, lost) = match open(engines, caller, client, home, &mut incoming).await {
        Ok(open) => open,
        Err(error) => return drop(opened.send(Err(error))),
    };
    let (failing, failed) = oneshot::channel();
    let lane = |(engine, held): (usize, &Vec<Lease>)| Lane::new(&shared, engine, held.clone()).events();
    let lanes: Vec<_> = held.iter().enumerate().map(lane).collect();
    // If the answers are gone already, they are dropped here, and the stream ends.
    drop(opened.send(Ok(Merge::new(shared.clone(), lanes.into_iter(), held, lost, failed))));
    tokio::select! {
        () = shared.gone.cancelled() => {}
        result = router::read(&shared, &mut incoming) => match result {
            Ok(()) => {
                shared.closing.cancel();
                shared.inboxes.iter().for_each(Inbox::close);
            }
            Err(error) => drop(failing.send(error)),
        },
    }
}

async fn open<S>(
    engines: Vec<EngineOfStream>,
    caller: Caller,
    client: ClientInfo,
    home: Home,
    incoming: &mut S,
) -> Result<(Arc<Shared>, Vec<Vec<Lease>>, Vec<Lease>), Error>
where
    S: Stream<Item = Result<ClientMessage, Error>> + Send + Unpin + 'static,
{
    let served: Vec<Serving> = engines.iter().filter_map(EngineOfStream::now).collect();
    let Some(config) = served.first().map(|serving| serving.context.config.clone()) else {
        return Err(Error::Unavailable("no store can be reached".into()));
    };
    let SubscribeArgs { windows, session_id, held, labels, max_message_bytes } =
        first_message(incoming, config.limits.first_message).await?;
    for window in &windows {
        caller.check(Operation::Work, &window.task_type)?;
    }
    let session_id = session_id.unwrap_or_else(SessionId::new);
    let turns = served.iter().map(|serving| serving.context.sessions.turn_of(&caller, &session_id));
    let next_turn = turns.fold(session_id.turn(), u32::max).saturating_add(1);
    let mut held_by: Vec<Vec<Lease>> = vec![Vec::new(); engines.len()];
    let mut lost = Vec::new();
    for lease in held {
        match engine_of(&engines, lease.id).and_then(|engine| held_by.get_mut(engine)) {
            Some(held) => held.push(lease),
            None => lost.push(lease),
        }
    }
    let counts = held_by.iter().map(|held| u32::try_from(held.len()).unwrap_or(u32::MAX)).collect();
    let shared = Arc::new(Shared {
        inboxes: engines.iter().map(|_| Inbox::new()).collect(),
        turns: Turns::new(counts),
        wanted: Wanted::new(&windows, engines.len(), home),
        engines,
        caller,
        client,
        config,
        own: Own::default(),
        session_id,
        next_turn,
        labels,
        max_message_bytes,
        is_draining: AtomicBool::new(false),
        welcomed: CancellationToken::new(),
        closing: CancellationToken::new(),
        gone: CancellationToken::new(),
    });
    Ok((shared, held_by, lost))
}

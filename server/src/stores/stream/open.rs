//! Opens a worker's stream over several stores: reads the first message, and builds the state that all stores of the
//! stream share.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use futures::Stream;
use howdah_core::{
    config::Config,
    error::Error,
    job::{Lease, StoreNumber},
};
use howdah_engine::{
    access::{Caller, Operation},
    dispatch::FillRights,
    session::{ClientInfo, ClientMessage, SessionId, SubscribeArgs, first_message},
};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    Home, Merge, Serving, StreamStore, inbox::Inbox, local_messages::LocalMessages, router, store_stream::StoreStream,
    wanted::Wanted,
};

/// State that all stores of a worker's stream share.
pub(super) struct Shared {
    pub(super) stores: Vec<StreamStore>,
    pub(super) inboxes: Vec<Inbox>,
    pub(super) caller: Caller,
    pub(super) client: ClientInfo,
    pub(super) config: Arc<Config>,
    pub(super) rights: Arc<FillRights>,
    pub(super) wanted: Wanted,
    pub(super) local: LocalMessages,
    /// Session id from the worker's subscription, or a new one.
    pub(super) session_id: SessionId,
    /// Generation of the session id that is sent in the `Welcome`.
    pub(super) next_generation: u32,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) max_message_bytes: usize,
    /// Liveness: time without a message after which the worker counts as lost.
    pub(super) liveness: Duration,
    /// Whether the worker has sent a `Drain` and gets no more jobs.
    pub(super) is_draining: AtomicBool,
    /// Cancelled when the `Welcome` is sent.
    pub(super) welcomed: CancellationToken,
    /// Cancelled when the worker has closed its side of the stream.
    pub(super) closing: CancellationToken,
    /// Cancelled when the outgoing side of the stream is dropped, because the worker's connection has ended.
    pub(super) gone: CancellationToken,
}

impl Shared {
    /// Returns the position of the store to which a job id belongs. `None` if the id belongs to no store of the stream.
    pub(super) fn store_no_of(&self, id: i64) -> Option<usize> {
        store_no_of(&self.stores, id)
    }
}

fn store_no_of(stores: &[StreamStore], id: i64) -> Option<usize> {
    let number = StoreNumber::of_id(id)?;
    stores.iter().position(|store_no| store_no.may_have(number))
}

/// Opens a stream, hands its outgoing side to `opened`, and reads the worker's messages to the end.
pub(super) async fn open_and_read<S>(
    stores: Vec<StreamStore>,
    caller: Caller,
    client: ClientInfo,
    home: Home,
    mut incoming: S,
    opened: oneshot::Sender<Result<Merge, Error>>,
) where
    S: Stream<Item = Result<ClientMessage, Error>> + Send + Unpin + 'static,
{
    let (shared, held, lost) = match open(stores, caller, client, home, &mut incoming).await {
        Ok(open) => open,
        Err(error) => return drop(opened.send(Err(error))),
    };
    let (failing, failed) = oneshot::channel();
    let stream = |(store_no, held): (usize, &Vec<Lease>)| StoreStream::new(&shared, store_no, held.clone()).events();
    let streams: Vec<_> = held.iter().enumerate().map(stream).collect();
    // If the worker's connection has already ended, `send` fails and returns the `Merge`. Dropping the `Merge` ends the
    // stream.
    drop(opened.send(Ok(Merge::new(shared.clone(), streams.into_iter(), held, lost, failed))));
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
    stores: Vec<StreamStore>,
    caller: Caller,
    client: ClientInfo,
    home: Home,
    incoming: &mut S,
) -> Result<(Arc<Shared>, Vec<Vec<Lease>>, Vec<Lease>), Error>
where
    S: Stream<Item = Result<ClientMessage, Error>> + Send + Unpin + 'static,
{
    let served: Vec<Serving> = stores.iter().filter_map(StreamStore::now).collect();
    let Some(config) = served.first().map(|serving| serving.context.config.clone()) else {
        return Err(Error::Unavailable("the broker has not reached any store since it started; try again".into()));
    };
    let SubscribeArgs { windows, session_id, held, labels, max_message_bytes, liveness } =
        first_message(incoming, config.limits.first_message).await?;
    for window in &windows {
        caller.check(Operation::Work, &window.task_type)?;
    }
    let session_id = session_id.unwrap_or_else(SessionId::random);
    let generations = served.iter().map(|serving| serving.context.sessions.generation_of(&caller, &session_id));
    let next_generation = generations.fold(session_id.generation(), u32::max).saturating_add(1);
    let mut held_by: Vec<Vec<Lease>> = vec![Vec::new(); stores.len()];
    let mut lost = Vec::new();
    for lease in held {
        match store_no_of(&stores, lease.id).and_then(|store_no| held_by.get_mut(store_no)) {
            Some(held) => held.push(lease),
            None => lost.push(lease),
        }
    }
    let counts = held_by.iter().map(|held| u32::try_from(held.len()).unwrap_or(u32::MAX)).collect();
    let shared = Arc::new(Shared {
        inboxes: stores.iter().map(|_| Inbox::new()).collect(),
        rights: FillRights::new(counts),
        wanted: Wanted::new(&windows, stores.len(), home),
        stores,
        caller,
        client,
        liveness: liveness.unwrap_or(config.liveness),
        config,
        local: LocalMessages::default(),
        session_id,
        next_generation,
        labels,
        max_message_bytes,
        is_draining: AtomicBool::new(false),
        welcomed: CancellationToken::new(),
        closing: CancellationToken::new(),
        gone: CancellationToken::new(),
    });
    Ok((shared, held_by, lost))
}

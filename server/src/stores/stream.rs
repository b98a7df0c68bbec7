//! A worker's stream, served by the brokers of several stores. The worker has a session with the same id in each store,
//! and the stores share its windows (`dispatch::FillRights`). One task reads the stream and passes each message to its
//! store. The messages of all stores are merged as the transport can send them. An unreachable store does not delay the
//! others.

mod inbox; // queue of a worker's messages to one store
mod store_stream; // the worker's session in one store, retried while the store is unreachable
mod merge; // outgoing messages of all stores
mod open; // opens a stream from its first message
mod local_messages; // answers and pings that come from no store
mod router; // incoming messages, passed to their stores
mod wanted; // the worker's windows, and which store gets which

use std::sync::Arc;

use futures::{Stream, StreamExt as _};
use howdah_core::{
    error::Error,
    job::{StoreNumber, TaskTypeName},
};
use howdah_engine::{
    access::Caller,
    session::{self, ClientInfo, ClientMessage, ServerMessage, SessionContext},
};
use tokio::sync::{oneshot, watch};

use merge::Merge;

/// Maximum number of stores of a worker's stream.
pub const MOST_STORES: usize = u64::BITS as usize;

/// A store whose database has been reached, as workers' streams use it.
#[derive(Clone)]
pub struct Serving {
    pub number: StoreNumber,
    /// State with which the store's broker serves the sessions of workers.
    pub context: Arc<SessionContext>,
}

/// A configured store, as seen by the streams of workers.
#[derive(Clone)]
pub struct StreamStore {
    pub name: String,
    /// Configured number of the store, used until its database is reached. `None` if no number is configured.
    pub configured: Option<StoreNumber>,
    /// The number and context of the store. `None` until its database is reached.
    pub serving: watch::Receiver<Option<Serving>>,
}

impl StreamStore {
    /// Creates a `StreamStore` whose database has been reached.
    pub fn served(name: &str, number: StoreNumber, context: Arc<SessionContext>) -> Self {
        let (_, serving) = watch::channel(Some(Serving { number, context }));
        Self { name: name.to_owned(), configured: Some(number), serving }
    }

    /// Returns the number and context of the store. `None` if its database was not reached yet.
    pub(super) fn now(&self) -> Option<Serving> {
        self.serving.borrow().clone()
    }

    /// Whether jobs whose ids have this store number may belong to the store. True if the store's own number is
    /// unknown.
    fn may_have(&self, number: StoreNumber) -> bool {
        match &*self.serving.borrow() {
            Some(serving) => serving.number == number,
            None => self.configured.is_none_or(|configured| configured == number),
        }
    }
}

/// Function that returns the position of a task type's home store. That store creates the type if no store has it.
pub type Home = Arc<dyn Fn(&TaskTypeName) -> usize + Send + Sync>;

/// Serves a worker's stream. With a single store, calls `session::serve`. A message never mixes jobs of several stores.
pub fn serve<S>(
    stores: Vec<StreamStore>,
    caller: Caller,
    client: ClientInfo,
    home: Home,
    incoming: S,
) -> impl Stream<Item = Result<ServerMessage, Error>> + Send + 'static
where
    S: Stream<Item = Result<ClientMessage, Error>> + Send + Unpin + 'static,
{
    if let [only] = &stores[..]
        && let Some(Serving { context, .. }) = only.now()
    {
        return session::serve(context, caller, client, incoming).left_stream();
    }
    let (opened, opening) = oneshot::channel();
    tokio::spawn(open::open_and_read(stores, caller, client, home, incoming, opened));
    let stopped = || Err(Error::Unavailable("the broker is stopping".into()));
    let answers = futures::stream::once(opening).flat_map(move |opened| match opened.unwrap_or_else(|_| stopped()) {
        Ok(merge) => Merge::messages(merge).left_stream(),
        Err(error) => futures::stream::iter([Err(error)]).right_stream(),
    });
    answers.right_stream()
}

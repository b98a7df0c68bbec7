//! One worker's stream, served by the engines of several stores. In each the worker has a session of the same id; windows
//! are dealt to in turn (`dispatch::Turns`). A task reads and hands each message to the engine that it is for; what the
//! engines send is put together when the transport can take it. An engine whose database is away holds up nobody.

mod inbox; // messages on their way to an engine
mod lane; // one engine: attached, and attached again
mod merge; // what goes out
mod open; // the first message
mod own; // answers that no engine gives
mod router; // what comes in
mod wanted; // which windows an engine gets

use std::sync::Arc;

use futures::{Stream, StreamExt as _};
use tokio::sync::{oneshot, watch};

use crate::{
    access::Caller,
    error::Error,
    job::{StoreNumber, TaskTypeName},
    session::{self, ClientInfo, ClientMessage, ServerMessage, SessionContext},
};
use merge::Merge;

/// The most engines of a stream.
pub const MOST_ENGINES: usize = u64::BITS as usize;

/// An engine that is there.
#[derive(Clone)]
pub struct Serving {
    /// The number of its store.
    pub number: StoreNumber,
    /// Its part that serves workers.
    pub context: Arc<SessionContext>,
}

/// An engine, for the streams of workers.
#[derive(Clone)]
pub struct EngineOfStream {
    /// The name of its store.
    pub name: String,
    /// The number that the configuration gives its store. It is asked for while the engine is not there.
    pub configured: Option<StoreNumber>,
    /// The engine, as soon as it is there.
    pub serving: watch::Receiver<Option<Serving>>,
}

impl EngineOfStream {
    /// One that is there.
    pub fn served(name: &str, number: StoreNumber, context: Arc<SessionContext>) -> Self {
        let (_, serving) = watch::channel(Some(Serving { number, context }));
        Self { name: name.to_owned(), configured: Some(number), serving }
    }

    /// The engine, if it is there.
    pub(super) fn now(&self) -> Option<Serving> {
        self.serving.borrow().clone()
    }

    /// Whether an id is of its store, as far as that is known.
    fn may_have(&self, number: StoreNumber) -> bool {
        match &*self.serving.borrow() {
            Some(serving) => serving.number == number,
            None => self.configured.is_none_or(|configured| configured == number),
        }
    }
}

/// Which engine creates a type that no store has.
pub type Home = Arc<dyn Fn(&TaskTypeName) -> usize + Send + Sync>;

/// Serves a worker, as `session::serve` does, which it is with one engine. Jobs of a message are of one store.
pub fn serve<S>(
    engines: Vec<EngineOfStream>,
    caller: Caller,
    client: ClientInfo,
    home: Home,
    incoming: S,
) -> impl Stream<Item = Result<ServerMessage, Error>> + Send + 'static
where
    S: Stream<Item = Result<ClientMessage, Error>> + Send + Unpin + 'static,
{
    if let [only] = &engines[..]
        && let Some(Serving { context, .. }) = only.now()
    {
        return session::serve(context, caller, client, incoming).left_stream();
    }
    let (opened, opening) = oneshot::channel();
    tokio::spawn(open::open_and_read(engines, caller, client, home, incoming, opened));
    let stopped = || Err(Error::Unavailable("the broker is stopping".into()));
    let answers = futures::stream::once(opening).flat_map(move |opened| match opened.unwrap_or_else(|_| stopped()) {
        Ok(merge) => Merge::messages(merge).left_stream(),
        Err(error) => futures::stream::iter([Err(error)]).right_stream(),
    });
    answers.right_stream()
}

//! The stream of a session. After the first message, both directions run independently.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _};
use howdah_core::{config::Config, error::Error, job::TaskTypeName};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    ClientInfo, ClientMessage, Closing, ServerMessage, Session, Sessions, StoreShare, SubscribeArgs,
    attach::{Attachment, attach},
    permit, reader,
    sending::outgoing,
};
use crate::{
    access::Caller,
    dispatch::Dispatch,
    progress::Progress,
    registry::Registry,
    settle::{Release, Settle},
    store::Store,
    wake::Wake,
};

/// Serves a worker's stream. Returns the response stream before the first message is read, because clients wait for it.
pub fn serve<S>(
    context: Arc<SessionContext>,
    caller: Caller,
    client: ClientInfo,
    mut incoming: S,
) -> impl Stream<Item = Result<ServerMessage, Error>> + Send + 'static
where
    S: Stream<Item = Result<ClientMessage, Error>> + Send + Unpin + 'static,
{
    let (opened, opening) = oneshot::channel();
    tokio::spawn(async move {
        match first_message(&mut incoming, context.config.limits.first_message).await {
            Ok(subscribe) => open_and_read(context, caller, client, subscribe, incoming, opened, None).await,
            Err(error) => drop(opened.send(Err(error))),
        }
    });
    answers(opening)
}

/// Serves a worker's stream in one of several stores. The caller has already read the first message.
pub fn serve_share<S>(
    context: Arc<SessionContext>,
    caller: Caller,
    client: ClientInfo,
    subscribe: SubscribeArgs,
    share: StoreShare,
    incoming: S,
) -> impl Stream<Item = Result<ServerMessage, Error>> + Send + 'static
where
    S: Stream<Item = Result<ClientMessage, Error>> + Send + Unpin + 'static,
{
    let (opened, opening) = oneshot::channel();
    tokio::spawn(open_and_read(context, caller, client, subscribe, incoming, opened, Some(share)));
    answers(opening)
}

type Opened = Result<(Attachment, oneshot::Receiver<Error>), Error>;

fn answers(opening: oneshot::Receiver<Opened>) -> impl Stream<Item = Result<ServerMessage, Error>> + Send + 'static {
    futures::stream::once(opening).flat_map(|opened| match opened {
        Ok(Ok((attachment, failed))) => outgoing(attachment, failed).left_stream(),
        Ok(Err(error)) => one_error(error).right_stream(),
        Err(_) => one_error(Error::Unavailable("the broker is stopping".into())).right_stream(),
    })
}

fn one_error(error: Error) -> impl Stream<Item = Result<ServerMessage, Error>> + Send {
    futures::stream::iter([Err(error)])
}

/// Reads the first message of a stream, which must arrive within this time.
pub async fn first_message<S>(incoming: &mut S, within: Duration) -> Result<SubscribeArgs, Error>
where
    S: Stream<Item = Result<ClientMessage, Error>> + Send + Unpin,
{
    match tokio::time::timeout(within, incoming.next()).await {
        Err(_) => Err(Error::Deadline(format!("no first message within {within:?}; send subscribe"))),
        Ok(None) => Err(Error::Precondition("the stream was closed before subscribe was sent".into())),
        Ok(Some(Err(error))) => Err(error),
        Ok(Some(Ok(ClientMessage::Subscribe(subscribe)))) => Ok(subscribe),
        Ok(Some(Ok(_))) => Err(Error::Precondition("the first message must be subscribe".into())),
    }
}

async fn open_and_read<S>(
    context: Arc<SessionContext>,
    caller: Caller,
    client: ClientInfo,
    subscribe: SubscribeArgs,
    mut incoming: S,
    opened: oneshot::Sender<Opened>,
    share: Option<StoreShare>,
) where
    S: Stream<Item = Result<ClientMessage, Error>> + Send + Unpin + 'static,
{
    let types: HashSet<TaskTypeName> = subscribe.windows.iter().map(|w| w.task_type.clone()).collect();
    match attach(&context, &caller, client, subscribe, share.as_ref()).await {
        Err(error) => drop(opened.send(Err(error))),
        Ok(attachment) => {
            let (session, stream, gone) = (attachment.session.clone(), attachment.stream, attachment.gone.clone());
            let (failing, failed) = oneshot::channel();
            // If the response stream has ended already, sending fails, and the attachment is dropped.
            drop(opened.send(Ok((attachment, failed))));
            tokio::select! {
                () = gone.cancelled() => {}
                error = permit::ended(&context, &session) => drop(failing.send(error)),
                result = reader::read(&context, &session, &mut incoming, types, share.as_ref(), stream) => match result {
                    Ok(()) => session.close(stream),
                    Err(error) => drop(failing.send(error)),
                },
            }
        }
    }
}

impl Session {
    /// Records that the worker has closed its side: the stream ends after all answers were sent.
    fn close(&self, stream: u64) {
        let mut state = self.state.lock();
        // The end of an old stream must not close a newer stream of the session.
        if state.stream == Some(stream) && state.closing == Closing::Open {
            state.closing = Closing::ByWorker;
        }
        drop(state);
        self.changed.notify_one();
    }
}

/// Components of the broker that a worker's stream uses.
pub struct SessionContext {
    pub config: Arc<Config>,
    pub store: Store,
    pub registry: Arc<Registry>,
    pub dispatch: Arc<Dispatch>,
    pub settle: Settle,
    pub progress: Progress,
    pub release: Release,
    pub(crate) wake: Wake,
    pub sessions: Arc<Sessions>,
    /// Cancelled when the broker starts to stop.
    pub(crate) draining: CancellationToken,
}

impl SessionContext {
    /// Returns whether the broker is stopping.
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }
}

//! The stream of a session: opened by its first message, then one direction each way.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{ClientMessage, ServerMessage, Session, Sessions, SubscribeArgs, ending, ending::Outgoing, reader};
use crate::{
    broker::SharedBroker,
    dispatch::Window,
    error::Error,
    job::{Lease, TaskTypeName},
    store::Adopted,
};

/// A session on a stream. Dropped with the stream, however that ends: the session is left, and what was
/// not sent goes back.
pub(super) struct Attachment {
    pub(super) broker: SharedBroker,
    pub(super) session: Arc<Session>,
    pub(super) stream: u64,
    /// Stops the reader.
    pub(super) gone: CancellationToken,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.gone.cancel();
        ending::detach(&self.broker, &self.session, self.stream);
    }
}

/// Serves a worker. The answer stream is there before the first message is read: clients wait for it.
pub fn serve<S>(broker: SharedBroker, incoming: S) -> impl Stream<Item = Result<ServerMessage, Error>> + Send + 'static
where
    S: Stream<Item = Result<ClientMessage, Error>> + Send + Unpin + 'static,
{
    let (opened, opening) = oneshot::channel();
    tokio::spawn(open_and_read(broker, incoming, opened));
    futures::stream::once(opening).flat_map(|opened| match opened {
        Ok(Ok((attachment, failed))) => outgoing(attachment, failed).left_stream(),
        Ok(Err(error)) => one_error(error).right_stream(),
        Err(_) => one_error(Error::Unavailable("the broker is stopping".into())).right_stream(),
    })
}

fn one_error(error: Error) -> impl Stream<Item = Result<ServerMessage, Error>> + Send {
    futures::stream::iter([Err(error)])
}

type Opened = Result<(Attachment, oneshot::Receiver<Error>), Error>;

async fn open_and_read<S>(broker: SharedBroker, mut incoming: S, opened: oneshot::Sender<Opened>)
where
    S: Stream<Item = Result<ClientMessage, Error>> + Send + Unpin + 'static,
{
    let first = tokio::time::timeout(broker.config().limits.first_message, incoming.next()).await;
    let subscribe = match first {
        Err(_) => Err(Error::Deadline(format!(
            "no first message within {:?}; send subscribe",
            broker.config().limits.first_message
        ))),
        Ok(None) => Err(Error::Precondition("the stream was closed before subscribe was sent".into())),
        Ok(Some(Err(error))) => Err(error),
        Ok(Some(Ok(ClientMessage::Subscribe(subscribe)))) => Ok(subscribe),
        Ok(Some(Ok(_))) => Err(Error::Precondition("the first message must be subscribe".into())),
    };
    let mut types: HashSet<TaskTypeName> = HashSet::new();
    if let Ok(subscribe) = &subscribe {
        types.extend(subscribe.windows.iter().map(|w| w.task_type.clone()));
    }
    let attachment = match subscribe {
        Ok(subscribe) => attach(&broker, subscribe).await,
        Err(error) => Err(error),
    };
    match attachment {
        Err(error) => drop(opened.send(Err(error))),
        Ok(attachment) => {
            let (session, stream, gone) = (attachment.session.clone(), attachment.stream, attachment.gone.clone());
            let (failing, failed) = oneshot::channel();
            // The response stream may be gone already: then the attachment was dropped with it.
            drop(opened.send(Ok((attachment, failed))));
            tokio::select! {
                () = gone.cancelled() => {}
                result = reader::read(&broker, &session, &mut incoming, types) => match result {
                    Ok(()) => session.close(stream),
                    Err(error) => drop(failing.send(error)),
                },
            }
        }
    }
}

/// Puts a session on this stream: adopts what it still holds, opens its windows.
async fn attach(broker: &SharedBroker, subscribe: SubscribeArgs) -> Result<Attachment, Error> {
    if broker.is_draining() {
        return Err(Error::Unavailable("the broker is stopping; connect to another".into()));
    }
    let names: Vec<_> = subscribe.windows.iter().map(|w| w.task_type.clone()).collect();
    let types = broker.registry().resolve(&names).await?;
    // On this stream from here on: the grace time of an old one cannot end in between.
    let (session, stream) = broker.sessions().get_or_new(subscribe.session_id.clone());
    let attachment =
        Attachment { broker: broker.clone(), session: session.clone(), stream, gone: CancellationToken::new() };
    broker.dispatch().leave(session.key());
    let mut wanted = subscribe.held.clone();
    wanted.sort_unstable();
    wanted.dedup();
    let adopted = match adopt(broker, &wanted).await {
        Ok(adopted) => adopted,
        Err(error) => {
            // It may have been committed, and then they are this broker's, whom nobody else relieves.
            ending::give_back_unless_held(broker, wanted);
            return Err(error);
        }
    };
    // The worker on an old stream of this session is this one: what it did not list it never got.
    let unlisted = session.take_over(&adopted, &wanted, subscribe.max_message_bytes as u64);
    broker.release(unlisted);
    for (window, type_id) in subscribe.windows.iter().zip(types) {
        let held = session.load_of(type_id);
        broker.dispatch().set_window(&session, type_id, Window { jobs: window.jobs as u32, bytes: window.bytes }, held);
    }
    if broker.is_draining() {
        // It came while the others were told to leave.
        Sessions::drain_one(&session, broker.dispatch());
    }
    tracing::debug!(session = session.id(), labels = ?subscribe.labels, kept = adopted.len(), "worker connected");
    Ok(attachment)
}

/// Tokens of one job that are tried; a worker has one.
const ADOPT_TURNS: usize = 3;

/// Takes over the leases that the worker proves. It may name a job twice, with two tokens: the statement
/// takes each id once, so they go in turns.
async fn adopt(broker: &SharedBroker, wanted: &[Lease]) -> Result<Vec<Adopted>, Error> {
    let mut adopted = Vec::new();
    let mut rest = wanted.to_vec();
    for _ in 0..ADOPT_TURNS {
        if rest.is_empty() {
            break;
        }
        let mut last = None;
        let (now, later): (Vec<Lease>, Vec<Lease>) =
            rest.into_iter().partition(|lease| last.replace(lease.id) != Some(lease.id));
        adopted.extend(broker.store().adopt(&now, broker.dispatch().broker_id()).await?);
        rest = later;
    }
    Ok(adopted)
}

/// What goes out: polled when the transport can take it.
fn outgoing(
    attachment: Attachment,
    failed: oneshot::Receiver<Error>,
) -> impl Stream<Item = Result<ServerMessage, Error>> + Send {
    let ping = attachment.broker.config().ping_interval;
    futures::stream::unfold(Some((attachment, failed)), move |open| async move {
        let (attachment, mut failed) = open?;
        match next(&attachment, &mut failed, ping).await {
            Next::Message(message) => Some((Ok(message), Some((attachment, failed)))),
            Next::Failed(error) => Some((Err(error), None)),
            Next::End => None,
        }
    })
}

enum Next {
    Message(ServerMessage),
    Failed(Error),
    End,
}

async fn next(attachment: &Attachment, failed: &mut oneshot::Receiver<Error>, ping: Duration) -> Next {
    let session = &attachment.session;
    let quiet = tokio::time::sleep(ping);
    tokio::pin!(quiet);
    loop {
        let changed = session.changed.notified();
        match session.next_message(attachment.stream, attachment.broker.dispatch()) {
            Outgoing::Message(message) => return Next::Message(message),
            Outgoing::Nothing => {}
            Outgoing::Over => return Next::End,
        }
        tokio::select! {
            () = changed => {}
            () = &mut quiet => return Next::Message(ServerMessage::Ping),
            // A closed channel is the reader's good end.
            error = &mut *failed, if !failed.is_terminated() => {
                if let Ok(error) = error {
                    return Next::Failed(error);
                }
            }
        }
    }
}

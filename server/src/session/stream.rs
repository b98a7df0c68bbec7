//! The stream of a session: it starts with the first message, then both directions go on independently.

use std::{collections::HashSet, sync::Arc};

use futures::{Stream, StreamExt as _};
use tokio::sync::oneshot;

use super::{
    ClientInfo, ClientMessage, ServerMessage, Session, SessionContext,
    attach::{Attachment, attach},
    permit, reader,
    sending::outgoing,
};
use crate::{access::Caller, error::Error, job::TaskTypeName};

/// Serves a worker. The answer stream exists before the first message is read, because clients wait for it.
pub fn serve<S>(
    context: Arc<SessionContext>,
    caller: Caller,
    client: ClientInfo,
    incoming: S,
) -> impl Stream<Item = Result<ServerMessage, Error>> + Send + 'static
where
    S: Stream<Item = Result<ClientMessage, Error>> + Send + Unpin + 'static,
{
    let (opened, opening) = oneshot::channel();
    tokio::spawn(open_and_read(context, caller, client, incoming, opened));
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

async fn open_and_read<S>(
    context: Arc<SessionContext>,
    caller: Caller,
    client: ClientInfo,
    mut incoming: S,
    opened: oneshot::Sender<Opened>,
) where
    S: Stream<Item = Result<ClientMessage, Error>> + Send + Unpin + 'static,
{
    let first = tokio::time::timeout(context.config.limits.first_message, incoming.next()).await;
    let subscribe = match first {
        Err(_) => Err(Error::Deadline(format!(
            "no first message within {:?}; send subscribe",
            context.config.limits.first_message
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
        Ok(subscribe) => attach(&context, &caller, client, subscribe).await,
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
                error = permit::ended(&context, &session) => drop(failing.send(error)),
                result = reader::read(&context, &session, &mut incoming, types) => match result {
                    Ok(()) => session.close(stream),
                    Err(error) => drop(failing.send(error)),
                },
            }
        }
    }
}

impl Session {
    /// The worker has closed its side: the stream ends when everything is answered.
    fn close(&self, stream: u64) {
        let mut state = self.state.lock();
        // The end of an old stream must not end a new one.
        state.closing |= state.stream == Some(stream);
        drop(state);
        self.changed.notify_one();
    }
}

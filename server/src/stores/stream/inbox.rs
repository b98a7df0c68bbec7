//! Messages on their way to an engine. It is bounded, and nobody waits for it for long: the others' messages come on the same
//! stream.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::Stream;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::session::ClientMessage;

/// Bytes of messages that wait for an engine, or one message.
const BYTES: u32 = 1 << 20;
/// What a message and an item of it count besides their texts.
const OVERHEAD: usize = 64;
/// How long an engine may hold up the others, once: after that it does not, until it has room again.
const PATIENCE: Duration = Duration::from_millis(250);

type Sender = mpsc::UnboundedSender<(ClientMessage, Option<OwnedSemaphorePermit>)>;

/// Messages for one engine.
pub(super) struct Inbox {
    /// `None`: the engine is not attached.
    sender: Mutex<Option<Sender>>,
    room: Arc<Semaphore>,
    is_stuck: AtomicBool,
}

impl Inbox {
    pub(super) fn new() -> Self {
        let room = Arc::new(Semaphore::new(BYTES as usize));
        Self { sender: Mutex::new(None), room, is_stuck: AtomicBool::new(false) }
    }

    /// The engine has attached, and reads what this sends.
    pub(super) fn open(&self, sender: Sender) {
        *self.sender.lock() = Some(sender);
    }

    /// Nothing more comes.
    pub(super) fn close(&self) {
        self.sender.lock().take();
    }

    pub(super) fn is_open(&self) -> bool {
        self.sender.lock().is_some()
    }

    /// Sends a message with items of so many bytes. It is given back if the engine is not there, or does not read.
    pub(super) async fn send(&self, message: ClientMessage, bytes: usize) -> Result<(), ClientMessage> {
        if !self.is_open() {
            return Err(message);
        }
        let bytes = u32::try_from(bytes + OVERHEAD).unwrap_or(BYTES).min(BYTES);
        let room = match self.room.clone().try_acquire_many_owned(bytes) {
            Ok(room) => room,
            Err(_) if self.is_stuck.load(Ordering::Relaxed) => return Err(message),
            Err(_) => {
                let room = tokio::time::timeout(PATIENCE, self.room.clone().acquire_many_owned(bytes)).await;
                let Ok(Ok(room)) = room else {
                    self.is_stuck.store(true, Ordering::Relaxed);
                    return Err(message);
                };
                room
            }
        };
        self.is_stuck.store(false, Ordering::Relaxed);
        self.put(message, Some(room))
    }

    /// Sends a message that has no items.
    pub(super) fn tell(&self, message: ClientMessage) {
        // If the engine is not there, it learns of it when it comes.
        drop(self.put(message, None));
    }

    fn put(&self, message: ClientMessage, room: Option<OwnedSemaphorePermit>) -> Result<(), ClientMessage> {
        match &*self.sender.lock() {
            Some(sender) => sender.send((message, room)).map_err(|unsent| unsent.0.0),
            None => Err(message),
        }
    }
}

/// What an engine reads, and what the inbox sends with.
pub(super) fn channel<E>() -> (Sender, impl Stream<Item = Result<ClientMessage, E>> + Send + Unpin + 'static)
where
    E: Send + 'static,
{
    let (sender, receiver) = mpsc::unbounded_channel();
    let read = futures::stream::unfold(
        receiver,
        |mut receiver: mpsc::UnboundedReceiver<(ClientMessage, Option<OwnedSemaphorePermit>)>| async move {
            let (message, _room) = receiver.recv().await?;
            Some((Ok(message), receiver))
        },
    );
    (sender, Box::pin(read))
}

/// What items with texts of so many bytes count.
pub(super) fn weight(texts: impl Iterator<Item = usize>) -> usize {
    texts.map(|bytes| bytes + OVERHEAD).sum()
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;
    use crate::error::Error;

    #[tokio::test]
    async fn what_an_engine_does_not_read_comes_back_and_fits_again_when_it_reads() {
        let inbox = Inbox::new();
        let send = async |bytes| inbox.send(ClientMessage::Ping, bytes).await.is_ok();
        assert!(!send(1).await, "it is not attached");
        let (sender, mut read) = channel::<Error>();
        inbox.open(sender);
        assert!(send(usize::MAX / 2).await, "one message always fits");
        assert!(!send(1).await);
        assert!(inbox.is_stuck.load(Ordering::Relaxed), "nobody waits for it again");
        assert!(!send(1).await);
        assert!(matches!(read.next().await, Some(Ok(ClientMessage::Ping))));
        assert!(send(1).await);
        assert!(!inbox.is_stuck.load(Ordering::Relaxed));
        inbox.close();
        assert!(read.next().await.is_some() && read.next().await.is_none());
        assert!(!send(1).await, "it reads no more");
    }
}

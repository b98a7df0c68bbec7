//! Queue of a worker's messages to one store. The queue is bounded. The reader of the stream waits only briefly for
//! room in it, because messages for other stores follow on the same stream.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::Stream;
use howdah_engine::session::ClientMessage;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Maximum size of the queue in bytes. A single message may be larger.
const BYTES: u32 = 1 << 20;
/// Bytes that the queue counts for a message, and for each of its items, in addition to their texts.
const OVERHEAD: usize = 64;
/// Maximum time that the stream waits for room in a full queue. After a wait without success, messages that do not fit
/// are returned at once, until a message fits again.
const MAX_WAIT: Duration = Duration::from_millis(250);

type Sender = mpsc::UnboundedSender<(ClientMessage, Option<OwnedSemaphorePermit>)>;

/// Bounded queue of the worker's messages to one store.
pub(super) struct Inbox {
    /// Sender to the worker's session in the store. `None` while the worker has no session there.
    sender: Mutex<Option<Sender>>,
    room: Arc<Semaphore>,
    is_stuck: AtomicBool,
}

impl Inbox {
    pub(super) fn new() -> Self {
        let room = Arc::new(Semaphore::new(BYTES as usize));
        Self { sender: Mutex::new(None), room, is_stuck: AtomicBool::new(false) }
    }

    /// Opens the queue: messages now go to `sender`, from which the worker's session in the store reads.
    pub(super) fn open(&self, sender: Sender) {
        *self.sender.lock() = Some(sender);
    }

    /// Closes the queue, which ends the worker's session in the store.
    pub(super) fn close(&self) {
        self.sender.lock().take();
    }

    pub(super) fn is_open(&self) -> bool {
        self.sender.lock().is_some()
    }

    /// Queues a message. `bytes` is the [`weight`] of its items. Returns the message as the error if the queue is not
    /// open or stays full.
    pub(super) async fn send(&self, message: ClientMessage, bytes: usize) -> Result<(), ClientMessage> {
        if !self.is_open() {
            return Err(message);
        }
        let bytes = u32::try_from(bytes + OVERHEAD).unwrap_or(BYTES).min(BYTES);
        let room = match self.room.clone().try_acquire_many_owned(bytes) {
            Ok(room) => room,
            Err(_) if self.is_stuck.load(Ordering::Relaxed) => return Err(message),
            Err(_) => {
                let room = tokio::time::timeout(MAX_WAIT, self.room.clone().acquire_many_owned(bytes)).await;
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

    /// Queues a message that has no items, even if the queue is full. Drops the message if the queue is not open.
    pub(super) fn send_unbounded(&self, message: ClientMessage) {
        // A dropped message does no harm: a new session in the store starts with the current windows and the current
        // `Drain`.
        drop(self.put(message, None));
    }

    #[allow(clippy::result_large_err, reason = "the error returns the message that was not stored")]
    fn put(&self, message: ClientMessage, room: Option<OwnedSemaphorePermit>) -> Result<(), ClientMessage> {
        match &*self.sender.lock() {
            Some(sender) => sender.send((message, room)).map_err(|unsent| unsent.0.0),
            None => Err(message),
        }
    }
}

/// Creates a queue. Returns the sender for an [`Inbox`], and the stream of messages from which the session reads.
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

/// Returns the size of a message's items, as the queue counts it. `texts` are the lengths of the items' texts.
pub(super) fn weight(texts: impl Iterator<Item = usize>) -> usize {
    texts.map(|bytes| bytes + OVERHEAD).sum()
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;
    use howdah_core::error::Error;

    #[tokio::test]
    async fn a_message_that_a_store_does_not_read_is_returned_until_the_store_reads_again() {
        let inbox = Inbox::new();
        let send = async |bytes| inbox.send(ClientMessage::Ping, bytes).await.is_ok();
        assert!(!send(1).await, "the store is not attached");
        let (sender, mut read) = channel::<Error>();
        inbox.open(sender);
        assert!(send(usize::MAX / 2).await, "one message always fits");
        assert!(!send(1).await);
        assert!(inbox.is_stuck.load(Ordering::Relaxed), "the stream does not wait again");
        assert!(!send(1).await);
        assert!(matches!(read.next().await, Some(Ok(ClientMessage::Ping))));
        assert!(send(1).await);
        assert!(!inbox.is_stuck.load(Ordering::Relaxed));
        inbox.close();
        assert!(read.next().await.is_some() && read.next().await.is_none());
        assert!(!send(1).await, "the store no longer reads");
    }
}

//! Passes the worker's messages to the stores that own the jobs. A store that does not read its messages delays the
//! others only once, by at most `inbox::MAX_WAIT`.

use std::sync::atomic::Ordering;

use futures::Stream;
use howdah_core::{
    error::Error,
    job::{Lease, ProgressReport, SettleStatus, Settlement},
};
use howdah_engine::{
    access::Operation,
    session::{ClientMessage, Heartbeat, WindowArgs, reader::MOST_UNANSWERED},
};

use super::{inbox::weight, local_messages::Kind, open::Shared};

/// Reads the worker's messages until the worker closes its side of the stream.
pub(super) async fn read<S>(shared: &Shared, incoming: &mut S) -> Result<(), Error>
where
    S: Stream<Item = Result<ClientMessage, Error>> + Send + Unpin,
{
    shared.welcomed.cancelled().await;
    let heartbeat = Heartbeat::new(Some(shared.liveness));
    while let Some(message) = heartbeat.next(incoming, || shared.local.ping()).await {
        match message? {
            ClientMessage::Subscribe(_) => {
                return Err(Error::Precondition(
                    "subscribe was sent already; send window to change the subscription".into(),
                ));
            }
            ClientMessage::Window(window) => set_window(shared, window)?,
            ClientMessage::Settle { accepted, refused } => {
                shared.local.answer(Kind::Settled, refused);
                let item = |item: &Settlement| (item.lease, item.outcome.weight());
                let message = |accepted| ClientMessage::Settle { accepted, refused: Vec::new() };
                split(shared, Kind::Settled, accepted, item, message).await;
            }
            ClientMessage::Extend { accepted, refused } => {
                shared.local.answer(Kind::Extended, refused);
                let message = |accepted| ClientMessage::Extend { accepted, refused: Vec::new() };
                split(shared, Kind::Extended, accepted, |item| (item.0, 0), message).await;
            }
            ClientMessage::Progress { accepted, refused } => {
                shared.local.answer(Kind::Progressed, refused);
                let item = |item: &ProgressReport| (item.lease, item.weight());
                let message = |accepted| ClientMessage::Progress { accepted, refused: Vec::new() };
                split(shared, Kind::Progressed, accepted, item, message).await;
            }
            ClientMessage::Drain => drain(shared),
            ClientMessage::Ping => shared.local.answer_ping(),
            ClientMessage::Pong => {}
            ClientMessage::Lost => {
                shared.inboxes.iter().for_each(|inbox| inbox.send_unbounded(ClientMessage::Lost));
                return Err(Error::WorkerSilent(shared.liveness));
            }
        }
        shared.local.until_answered(MOST_UNANSWERED).await;
    }
    Ok(())
}

fn set_window(shared: &Shared, window: WindowArgs) -> Result<(), Error> {
    shared.caller.check(Operation::Work, &window.task_type)?;
    let limit = shared.config.limits.stream_types;
    if shared.wanted.types_with(&window.task_type) > limit {
        return Err(Error::invalid(
            "window.task_type",
            format!("is one task type too many; a stream may have at most {limit}"),
        ));
    }
    shared.wanted.set(window);
    Ok(())
}

fn drain(shared: &Shared) {
    shared.is_draining.store(true, Ordering::Release);
    for inbox in &shared.inboxes {
        inbox.send_unbounded(ClientMessage::Drain);
    }
}

/// Splits a message by store, and sends each store the items about its jobs. The answer is `LeaseLost` for items whose
/// id belongs to no store. It is `Unavailable` for a store whose session is not open or whose queue is full.
async fn split<T>(
    shared: &Shared,
    kind: Kind,
    items: Vec<T>,
    of: impl Fn(&T) -> (Lease, usize),
    message: impl Fn(Vec<T>) -> ClientMessage,
) {
    let mut parts: Vec<Vec<T>> = shared.inboxes.iter().map(|_| Vec::new()).collect();
    let mut unknown = Vec::new();
    for item in items {
        let (lease, _) = of(&item);
        match shared.store_no_of(lease.id).and_then(|store_no| parts.get_mut(store_no)) {
            Some(part) => part.push(item),
            None => unknown.push(lease),
        }
    }
    shared.local.answer_all(kind, unknown.into_iter(), SettleStatus::LeaseLost);
    for (inbox, part) in shared.inboxes.iter().zip(parts) {
        if part.is_empty() {
            continue;
        }
        let leases: Vec<Lease> = part.iter().map(|item| of(item).0).collect();
        let bytes = weight(part.iter().map(|item| of(item).1));
        if inbox.send(message(part), bytes).await.is_err() {
            shared.local.answer_all(kind, leases.into_iter(), SettleStatus::Unavailable);
        }
    }
}

//! One store's part of a worker's stream. `StoreStream` opens the worker's session in the store ("attaches" the worker)
//! once the store's database is reachable. It passes on the windows of the task types that the store has.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::{
    StreamExt as _,
    future::{BoxFuture, FutureExt as _, OptionFuture},
    stream::BoxStream,
};
use howdah_core::{
    error::Error,
    job::{Lease, TaskTypeName, TypeId},
};
use howdah_engine::{
    backoff::Backoff,
    detached::detached,
    dispatch::FillRights,
    registry::Awaited,
    session::{ClientMessage, ServerMessage, SessionContext, StoreShare, SubscribeArgs, WindowArgs, serve_share},
    store::StoreError,
};
use tokio::sync::watch;

use super::{Serving, inbox, open::Shared, wanted::Given};

/// First and longest pause between two attempts to open the worker's session. The pauses grow exponentially.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Pause before a failed lookup of task types is repeated.
const LOOKUP_RETRY: Duration = Duration::from_secs(1);

/// An event that one store adds to the merged stream.
pub(super) enum Event {
    /// The worker's session in the store is open. The worker still holds the leases in `kept`; the leases in `lost`
    /// have ended.
    Attached { kept: Vec<Lease>, lost: Vec<Lease> },
    /// A message for the worker.
    Message(ServerMessage),
    /// The worker's session cannot be opened now. `StoreStream` retries, and meanwhile the worker keeps its leases of
    /// the store.
    Unreachable(Error),
    /// An error that ends the worker's whole stream.
    Failed(Error),
    /// The worker's session in this store has ended. No more events follow.
    Ended,
}

/// Opens and keeps the worker's session in one store, and reads its messages.
pub(super) struct StoreStream {
    shared: Arc<Shared>,
    store_no: usize,
    serving: watch::Receiver<Option<Serving>>,
    held: Vec<Lease>,
    attached: Option<Attached>,
    /// Whether to pause before the next attempt to open the session. False before the first attempt.
    pauses: bool,
    /// Whether a failed attempt at a reachable store was already retried once without an `Unreachable` event. At most
    /// one such retry is made per stream.
    has_tried_again: bool,
    backoff: Backoff,
}

struct Attached {
    messages: BoxStream<'static, Result<ServerMessage, Error>>,
    context: Arc<SessionContext>,
    given: Given,
    changed: watch::Receiver<u64>,
    /// Reports when a subscribed task type that was missing in the store is created there.
    awaited: Awaited,
    lookup: OptionFuture<BoxFuture<'static, LookupResult>>,
    is_looking_up: bool,
    /// Whether to look up the missing types once more after the current lookup, because windows or types have changed
    /// since its start.
    repeats_lookup: bool,
}

/// Result of looking up or creating task types.
enum LookupResult {
    Found(Vec<TaskTypeName>, Result<HashMap<TaskTypeName, TypeId>, StoreError>),
    Created(Vec<WindowArgs>, Result<(), StoreError>),
}

impl StoreStream {
    pub(super) fn new(shared: &Arc<Shared>, store_no: usize, held: Vec<Lease>) -> Self {
        let serving = match shared.stores.get(store_no) {
            Some(store) => store.serving.clone(),
            None => watch::channel(None).1,
        };
        let backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        Self {
            shared: shared.clone(),
            store_no,
            serving,
            held,
            attached: None,
            pauses: false,
            has_tried_again: false,
            backoff,
        }
    }

    /// Returns all events of the store, followed by [`Event::Ended`].
    pub(super) fn events(self) -> BoxStream<'static, (usize, Event)> {
        let end = (self.store_no, Event::Ended);
        let events = futures::stream::unfold(self, |mut stream| async move {
            let event = stream.next().await?;
            Some(((stream.store_no, event), stream))
        });
        events.chain(futures::stream::iter([end])).boxed()
    }

    async fn next(&mut self) -> Option<Event> {
        if let Some(attached) = &mut self.attached {
            return attached.next(&self.shared, self.store_no).await;
        }
        let (shared, store_no) = (self.shared.clone(), self.store_no);
        let attached = tokio::select! {
            attached = self.attach_or_again() => attached,
            () = shared.closing.cancelled() => return None,
        };
        match attached {
            Ok((attached, event)) => {
                self.attached = Some(attached);
                Some(event)
            }
            Err(error @ (Error::Unavailable(_) | Error::Locked(_))) => {
                let name = shared.stores.get(store_no).map_or("", |store| store.name.as_str());
                tracing::debug!(store = name, %error, "cannot open a worker's session at this store now; trying again");
                self.pauses = true;
                Some(Event::Unreachable(error))
            }
            Err(error) => Some(Event::Failed(error)),
        }
    }

    /// Opens the worker's session in the store. If a reachable store refuses, retries once without an `Unreachable`
    /// event: the broker may just be checking whether a lease of the worker has ended.
    async fn attach_or_again(&mut self) -> Result<(Attached, Event), Error> {
        match self.attach().await {
            Err(Error::Unavailable(_) | Error::Locked(_)) if !self.has_tried_again && self.answers() => {
                (self.has_tried_again, self.pauses) = (true, true);
                self.attach().await
            }
            attached => attached,
        }
    }

    fn answers(&self) -> bool {
        self.serving.borrow().as_ref().is_some_and(|serving| !serving.context.store.is_unreachable())
    }

    async fn attach(&mut self) -> Result<(Attached, Event), Error> {
        let Serving { context, .. } = self.serving().await?;
        if std::mem::take(&mut self.pauses) {
            self.backoff.pause().await;
        }
        let shared = &self.shared;
        let mut given = Given::default();
        let changed = shared.wanted.watch();
        let asked = shared.wanted.news(&mut given).unknown;
        let (registry, names) = (context.registry.clone(), asked.clone());
        let found = detached(async move { registry.find_all(&names).await }).await?;
        let (mut windows, _) = shared.wanted.found(self.store_no, &mut given, &asked, |name| found.contains_key(name));
        if shared.is_draining.load(Ordering::Acquire) {
            windows.clear();
        }
        let subscribe = SubscribeArgs {
            windows,
            session_id: Some(shared.session_id.clone()),
            held: self.held.clone(),
            labels: shared.labels.clone(),
            max_message_bytes: shared.max_message_bytes,
            liveness: Some(shared.liveness),
        };
        let share = StoreShare {
            store_no: self.store_no,
            rights: Arc::<FillRights>::clone(&shared.rights),
            next_generation: shared.next_generation,
        };
        let (sender, incoming) = inbox::channel();
        let (caller, client) = (shared.caller.clone(), shared.client.clone());
        let mut messages = serve_share(context.clone(), caller, client, subscribe, share, incoming).boxed();
        let (kept, lost) = match messages.next().await {
            Some(Ok(ServerMessage::Welcome { kept, lost, .. })) => (kept, lost),
            Some(Err(error)) => return Err(error),
            Some(Ok(_)) | None => return Err(Error::Unavailable("the broker is stopping".into())),
        };
        if let Some(inbox) = shared.inboxes.get(self.store_no) {
            inbox.open(sender);
            if shared.closing.is_cancelled() {
                inbox.close();
            }
            if shared.is_draining.load(Ordering::Acquire) {
                inbox.send_unbounded(ClientMessage::Drain);
            }
        }
        let awaited = context.registry.await_types(shared.wanted.missing(&given));
        let (lookup, is_looking_up, repeats_lookup) = (OptionFuture::default(), false, false);
        let attached = Attached { messages, context, given, changed, awaited, lookup, is_looking_up, repeats_lookup };
        Ok((attached, Event::Attached { kept, lost }))
    }

    /// Waits until the store's database is reached. The first attempt fails instead of waiting, so that the `Welcome`
    /// is not delayed.
    async fn serving(&mut self) -> Result<Serving, Error> {
        if !self.pauses && self.serving.borrow().is_none() {
            return Err(Error::Unavailable(
                "the database of the store was not reached since this broker started".into(),
            ));
        }
        loop {
            if let Some(serving) = self.serving.borrow_and_update().clone() {
                return Ok(serving);
            }
            if self.serving.changed().await.is_err() {
                // The sender is gone, so the store will never be reached.
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Attached {
    async fn next(&mut self, shared: &Shared, store_no: usize) -> Option<Event> {
        loop {
            tokio::select! {
                message = self.messages.next() => {
                    return match message? {
                        Ok(message) => Some(Event::Message(message)),
                        Err(error) => Some(Event::Failed(error)),
                    };
                }
                Some(on_lookup) = &mut self.lookup, if self.is_looking_up => {
                    self.is_looking_up = false;
                    if let Some(error) = self.on_lookup(shared, store_no, on_lookup) {
                        return Some(Event::Failed(error));
                    }
                }
                Ok(()) = self.changed.changed() => {
                    let news = shared.wanted.news(&mut self.given);
                    send_windows(shared, store_no, news.windows);
                    self.look_up(news.unknown, Duration::ZERO);
                }
                () = self.awaited.appeared() => self.look_up(shared.wanted.missing(&self.given), Duration::ZERO),
            }
        }
    }

    /// Looks up which of these task types the store has, after the pause `after`. If a lookup is running, only requests
    /// another one after it.
    fn look_up(&mut self, names: Vec<TaskTypeName>, after: Duration) {
        if self.is_looking_up {
            self.repeats_lookup = true;
        } else if !names.is_empty() {
            let context = self.context.clone();
            self.run(async move {
                tokio::time::sleep(after).await;
                let found = context.registry.find_all(&names).await;
                LookupResult::Found(names, found)
            });
        }
    }

    fn run(&mut self, lookup: impl Future<Output = LookupResult> + Send + 'static) {
        self.is_looking_up = true;
        // Runs the lookup to its end even if the stream stops polling it. The lookup may hold a connection to Postgres
        // or the mutex for creating task types.
        self.lookup = Some(detached(lookup).boxed()).into();
    }

    /// Sends the store the windows of the types that were found or created. Starts another lookup or creation if
    /// needed. A returned error ends the worker's stream.
    fn on_lookup(&mut self, shared: &Shared, store_no: usize, on_lookup: LookupResult) -> Option<Error> {
        match on_lookup {
            LookupResult::Found(asked, Ok(found)) => {
                let has = |name: &TaskTypeName| found.contains_key(name);
                let (mut gets, creates) = shared.wanted.found(store_no, &mut self.given, &asked, has);
                self.awaited = self.context.registry.await_types(shared.wanted.missing(&self.given));
                let created = gets.extract_if(.., |args| creates.contains(&args.task_type)).collect();
                send_windows(shared, store_no, gets);
                if !creates.is_empty() {
                    self.create(shared, creates, created, Duration::ZERO);
                    return None;
                }
            }
            LookupResult::Found(asked, Err(_)) => {
                self.look_up(asked, LOOKUP_RETRY);
                return None;
            }
            LookupResult::Created(windows, Ok(())) => send_windows(shared, store_no, windows),
            LookupResult::Created(windows, Err(error)) => match Error::from(error) {
                Error::Unavailable(_) | Error::Locked(_) => {
                    let names = windows.iter().map(|args| args.task_type.clone()).collect();
                    self.create(shared, names, windows, LOOKUP_RETRY);
                    return None;
                }
                error => return Some(error),
            },
        }
        if std::mem::take(&mut self.repeats_lookup) {
            self.look_up(shared.wanted.missing(&self.given), Duration::ZERO);
        }
        None
    }

    /// Creates the task types that no store has, after the pause `after`. Their windows are sent afterwards.
    fn create(&mut self, shared: &Shared, names: Vec<TaskTypeName>, windows: Vec<WindowArgs>, after: Duration) {
        let (context, principal) = (self.context.clone(), shared.caller.principal().clone());
        self.run(async move {
            tokio::time::sleep(after).await;
            let created = context.registry.resolve(&names, &principal).await.map(drop);
            LookupResult::Created(windows, created)
        });
    }
}

fn send_windows(shared: &Shared, store_no: usize, windows: Vec<WindowArgs>) {
    if let Some(inbox) = shared.inboxes.get(store_no) {
        windows.into_iter().for_each(|window| inbox.send_unbounded(ClientMessage::Window(window)));
    }
}

//! One engine of a stream: attached when its database can be reached, and told of the windows of the types that its store has.

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
use tokio::sync::watch;

use super::{Serving, inbox, open::Shared, wanted::Given};
use crate::{
    backoff::Backoff,
    dispatch::Turns,
    driven::driven,
    error::Error,
    job::{Lease, TaskTypeName, TypeId},
    registry::Awaited,
    session::{ClientMessage, Part, ServerMessage, SessionContext, SubscribeArgs, WindowArgs, serve_part},
    store::StoreError,
};

/// Pauses between attempts to attach.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The pause after types could not be looked up.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What comes from an engine.
pub(super) enum Event {
    /// It has attached; these leases it has, and these are lost.
    Attached { kept: Vec<Lease>, lost: Vec<Lease> },
    /// A message for the worker.
    Message(ServerMessage),
    /// It cannot attach now, and goes on trying. Its leases stay with the worker meanwhile.
    Away(Error),
    /// The whole stream ends.
    Failed(Error),
    /// It has said all that it had to say.
    Ended,
}

/// An engine of a stream.
pub(super) struct Lane {
    shared: Arc<Shared>,
    engine: usize,
    serving: watch::Receiver<Option<Serving>>,
    held: Vec<Lease>,
    attached: Option<Attached>,
    /// Before the next attempt.
    pauses: bool,
    /// The first attempt has failed though the store answers, and another one was made before anything was said.
    has_tried_again: bool,
    backoff: Backoff,
}

struct Attached {
    messages: BoxStream<'static, Result<ServerMessage, Error>>,
    context: Arc<SessionContext>,
    given: Given,
    changed: watch::Receiver<u64>,
    /// Types that its store does not have yet.
    awaited: Awaited,
    looking: OptionFuture<BoxFuture<'static, Looked>>,
    is_looking: bool,
    /// Something has changed since it looks.
    looks_again: bool,
}

/// What was found.
enum Looked {
    Found(Vec<TaskTypeName>, Result<HashMap<TaskTypeName, TypeId>, StoreError>),
    Created(Vec<WindowArgs>, Result<(), StoreError>),
}

impl Lane {
    pub(super) fn new(shared: &Arc<Shared>, engine: usize, held: Vec<Lease>) -> Self {
        let serving = match shared.engines.get(engine) {
            Some(engine) => engine.serving.clone(),
            None => watch::channel(None).1,
        };
        let backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        Self {
            shared: shared.clone(),
            engine,
            serving,
            held,
            attached: None,
            pauses: false,
            has_tried_again: false,
            backoff,
        }
    }

    /// All that comes from it.
    pub(super) fn events(self) -> BoxStream<'static, (usize, Event)> {
        let end = (self.engine, Event::Ended);
        let events = futures::stream::unfold(self, |mut lane| async move {
            let event = lane.next().await?;
            Some(((lane.engine, event), lane))
        });
        events.chain(futures::stream::iter([end])).boxed()
    }

    async fn next(&mut self) -> Option<Event> {
        if let Some(attached) = &mut self.attached {
            return attached.next(&self.shared, self.engine).await;
        }
        let (shared, engine) = (self.shared.clone(), self.engine);
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
                let name = shared.engines.get(engine).map_or("", |engine| engine.name.as_str());
                tracing::debug!(store = name, %error, "a worker is not served by this store now");
                self.pauses = true;
                Some(Event::Away(error))
            }
            Err(error) => Some(Event::Failed(error)),
        }
    }

    /// A store that answers may refuse for a moment: the broker is about to look whether a lease of the worker has ended.
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
        self.serving.borrow().as_ref().is_some_and(|serving| !serving.context.store.is_away())
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
        let found = driven(async move { registry.find_all(&names).await }).await?;
        let (mut windows, _) = shared.wanted.found(self.engine, &mut given, &asked, |name| found.contains_key(name));
        if shared.is_draining.load(Ordering::Acquire) {
            windows.clear();
        }
        let subscribe = SubscribeArgs {
            windows,
            session_id: Some(shared.session_id.clone()),
            held: self.held.clone(),
            labels: shared.labels.clone(),
            max_message_bytes: shared.max_message_bytes,
        };
        let part = Part { engine: self.engine, turns: Arc::<Turns>::clone(&shared.turns), next_turn: shared.next_turn };
        let (sender, incoming) = inbox::channel();
        let (caller, client) = (shared.caller.clone(), shared.client.clone());
        let mut messages = serve_part(context.clone(), caller, client, subscribe, part, incoming).boxed();
        let (kept, lost) = match messages.next().await {
            Some(Ok(ServerMessage::Welcome { kept, lost, .. })) => (kept, lost),
            Some(Err(error)) => return Err(error),
            Some(Ok(_)) | None => return Err(Error::Unavailable("the broker is stopping".into())),
        };
        if let Some(inbox) = shared.inboxes.get(self.engine) {
            inbox.open(sender);
            if shared.closing.is_cancelled() {
                inbox.close();
            }
            if shared.is_draining.load(Ordering::Acquire) {
                inbox.tell(ClientMessage::Drain);
            }
        }
        let awaited = context.registry.await_types(shared.wanted.missing(&given));
        let (looking, is_looking, looks_again) = (OptionFuture::default(), false, false);
        let attached = Attached { messages, context, given, changed, awaited, looking, is_looking, looks_again };
        Ok((attached, Event::Attached { kept, lost }))
    }

    /// The engine, as soon as it is there. It says once that it is not.
    async fn serving(&mut self) -> Result<Serving, Error> {
        if !self.pauses && self.serving.borrow().is_none() {
            return Err(Error::Unavailable("the store was not reached since this broker started".into()));
        }
        loop {
            if let Some(serving) = self.serving.borrow_and_update().clone() {
                return Ok(serving);
            }
            if self.serving.changed().await.is_err() {
                // It will never be there.
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Attached {
    async fn next(&mut self, shared: &Shared, engine: usize) -> Option<Event> {
        loop {
            tokio::select! {
                message = self.messages.next() => {
                    return match message? {
                        Ok(message) => Some(Event::Message(message)),
                        Err(error) => Some(Event::Failed(error)),
                    };
                }
                Some(looked) = &mut self.looking, if self.is_looking => {
                    self.is_looking = false;
                    if let Some(error) = self.looked(shared, engine, looked) {
                        return Some(Event::Failed(error));
                    }
                }
                Ok(()) = self.changed.changed() => {
                    let news = shared.wanted.news(&mut self.given);
                    tell(shared, engine, news.windows);
                    self.look(news.unknown, Duration::ZERO);
                }
                () = self.awaited.appeared() => self.look(shared.wanted.missing(&self.given), Duration::ZERO),
            }
        }
    }

    /// Looks which of these types its store has.
    fn look(&mut self, names: Vec<TaskTypeName>, after: Duration) {
        if self.is_looking {
            self.looks_again = true;
        } else if !names.is_empty() {
            let context = self.context.clone();
            self.run(async move {
                tokio::time::sleep(after).await;
                let found = context.registry.find_all(&names).await;
                Looked::Found(names, found)
            });
        }
    }

    fn run(&mut self, looking: impl Future<Output = Looked> + Send + 'static) {
        self.is_looking = true;
        // It may hold what others wait for: a connection to Postgres, the turn to create task types.
        self.looking = Some(driven(looking).boxed()).into();
    }

    /// Opens what was found. An error ends the stream.
    fn looked(&mut self, shared: &Shared, engine: usize, looked: Looked) -> Option<Error> {
        match looked {
            Looked::Found(asked, Ok(found)) => {
                let has = |name: &TaskTypeName| found.contains_key(name);
                let (mut gets, creates) = shared.wanted.found(engine, &mut self.given, &asked, has);
                self.awaited = self.context.registry.await_types(shared.wanted.missing(&self.given));
                let created = gets.extract_if(.., |args| creates.contains(&args.task_type)).collect();
                tell(shared, engine, gets);
                if !creates.is_empty() {
                    self.create(shared, creates, created, Duration::ZERO);
                    return None;
                }
            }
            Looked::Found(asked, Err(_)) => {
                self.look(asked, LOOK_AGAIN);
                return None;
            }
            Looked::Created(windows, Ok(())) => tell(shared, engine, windows),
            Looked::Created(windows, Err(error)) => match Error::from(error) {
                Error::Unavailable(_) | Error::Locked(_) => {
                    let names = windows.iter().map(|args| args.task_type.clone()).collect();
                    self.create(shared, names, windows, LOOK_AGAIN);
                    return None;
                }
                error => return Some(error),
            },
        }
        if std::mem::take(&mut self.looks_again) {
            self.look(shared.wanted.missing(&self.given), Duration::ZERO);
        }
        None
    }

    /// Creates types that no store has, and then opens their windows.
    fn create(&mut self, shared: &Shared, names: Vec<TaskTypeName>, windows: Vec<WindowArgs>, after: Duration) {
        let (context, principal) = (self.context.clone(), shared.caller.principal().clone());
        self.run(async move {
            tokio::time::sleep(after).await;
            let created = context.registry.resolve(&names, &principal).await.map(drop);
            Looked::Created(windows, created)
        });
    }
}

fn tell(shared: &Shared, engine: usize, windows: Vec<WindowArgs>) {
    if let Some(inbox) = shared.inboxes.get(engine) {
        windows.into_iter().for_each(|window| inbox.tell(ClientMessage::Window(window)));
    }
}

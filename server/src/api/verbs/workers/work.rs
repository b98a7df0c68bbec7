//! `Work`: the stream of a worker.

use std::{mem::take, sync::Arc};

use futures::{
    Stream, StreamExt as _, future,
    stream::{self, BoxStream as Boxed, select},
};
use howdah_engine::session::{self, ClientInfo, ClientMessage, ServerMessage, SessionContext};
use tonic::{Request, Response, Status, Streaming, codegen::BoxStream};

use super::messages;
use crate::{
    api::{
        authenticate::counted,
        verbs::{Gateway, prelude::*},
    },
    credentials::Refusal,
    stores::stream as worker_stream,
};

pub(in crate::api::verbs) const RULE: Rule = Rule::Types(Operation::Work);

/// Stream of checked messages from a worker.
type Incoming = Boxed<'static, Result<ClientMessage, Error>>;
/// Stream of messages to a worker.
type Outgoing = Boxed<'static, Result<ServerMessage, Error>>;

impl Gateway {
    #[allow(clippy::unused_async, reason = "the generated trait has async methods")]
    pub(in crate::api::verbs) async fn work(
        &self,
        request: Request<Streaming<v1::WorkRequest>>,
    ) -> Result<Response<BoxStream<v1::WorkResponse>>, Status> {
        let (call, messages) = Call::open(self, Rpc::Work, request)?;
        if let Some(broker) = call.named_or_only()? {
            let context = broker.workers.clone();
            let changed = call.stores.only().map(|_| self.stores.changed(&call.stores));
            let serve = |caller, client, messages| session::serve(context, caller, client, messages).boxed();
            return work_with(call.at(broker), messages, serve, changed, |_| None);
        }
        let changed = Some(self.stores.changed(&call.stores));
        let (stores, homes) = (call.stores.clone(), call.stores.clone());
        let home: worker_stream::Home = Arc::new(move |name| homes.chosen(name));
        let served = stores.for_stream();
        let serve = |caller, client, messages| worker_stream::serve(served, caller, client, home, messages).boxed();
        let context_of = move |message: &ServerMessage| match message {
            ServerMessage::Jobs(jobs) => {
                let served = stores.of_id(jobs.first()?.lease.id).ok()??;
                Some(served.broker.workers.clone())
            }
            _ => None,
        };
        work_with(call, messages, serve, changed, context_of)
    }
}

/// Serves a worker stream until it ends or `changed` completes. In the second case, the worker must resume its session with the
/// new list of stores. `context_of` returns the session context of the store from which the jobs of a message come; `None`
/// means the store of `call`.
fn work_with(
    call: Call,
    messages: Streaming<v1::WorkRequest>,
    serve: impl FnOnce(Caller, ClientInfo, Incoming) -> Outgoing,
    changed: Option<impl Future<Output = ()> + Send + 'static>,
    context_of: impl Fn(&ServerMessage) -> Option<Arc<SessionContext>> + Send + 'static,
) -> Result<Response<BoxStream<v1::WorkResponse>>, Status> {
    // The stream must not be read before the response headers are sent, because clients wait for the headers before they send.
    let (checking, rendering) = (call.broker.workers.clone(), call.broker.workers.clone());
    let open = call.caller.open_stream()?;
    let user_agent = call.metadata.get("user-agent").and_then(|value| value.to_str().ok());
    let client = ClientInfo {
        peer: call.peer.socket.map(|address| address.to_string()).unwrap_or_default(),
        user_agent: user_agent.unwrap_or_default().to_owned(),
    };
    let mut is_first = true;
    let mut batch = 0;
    let messages = messages.map(move |message| match message {
        Ok(message) => {
            let is_first = take(&mut is_first);
            let mut cluster = checking.registry.cluster();
            // The worker uses the maximum batch size that its `Welcome` has announced. If the setting is lowered, the stream
            // keeps the higher value.
            batch = cluster.batch.max(batch);
            if cluster.batch < batch {
                Arc::make_mut(&mut cluster).batch = batch;
            }
            messages::work_request(message, is_first, &cluster, &checking.config.limits)
        }
        Err(status) => Err(Error::Broken(status)),
    });
    let outgoing = serve(call.caller.clone(), client, messages.boxed());
    let outgoing = match changed {
        Some(changed) => until(outgoing, changed).boxed(),
        None => outgoing,
    };
    let answers = outgoing.map(move |answer| {
        let message = answer.inspect_err(|error| note(&call, error))?;
        let of_store = context_of(&message);
        Ok(messages::work_response(message, of_store.as_ref().unwrap_or(&rendering))?)
    });
    Ok(Response::new(counted(answers, open)))
}

/// Ends a worker stream with an error when `changed` completes.
fn until(
    outgoing: Outgoing,
    changed: impl Future<Output = ()> + Send + 'static,
) -> impl Stream<Item = Result<ServerMessage, Error>> + Send {
    let end = async {
        changed.await;
        let reason = "the stores of this broker have changed; open the stream again with the same session";
        Some(Err(Error::Unavailable(reason.into())))
    };
    let ends = outgoing.map(Some).chain(stream::once(future::ready(None)));
    // A `None` marks the end of either stream, and ends the merged stream.
    select(ends, stream::once(end)).take_while(|answer| future::ready(answer.is_some())).filter_map(future::ready)
}

/// Records an error that ends a stream. `authenticate` records only the errors of unary calls.
fn note(call: &Call, error: &Error) {
    call.all_stores.authenticator().refusals.note(&Refusal {
        code: error.code().0,
        problem: &error.to_string(),
        principal: Some(call.caller.principal()),
        peer: call.peer.socket,
        method: Rpc::Work.name(),
    });
}

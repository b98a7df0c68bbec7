//! [`Gateway`]: the entry point of all calls, from gRPC, HTTP and the page. [`Call`]: a call in progress, with its caller, its
//! connection and its store.

use std::sync::Arc;

use howdah_core::error::Error;
use howdah_engine::{access::Caller, broker::SharedBroker, store::Actor};
use howdah_proto::Rpc;
use percent_encoding::percent_decode;
use tokio_util::sync::CancellationToken;
use tonic::{Extensions, Request, Response, metadata::MetadataMap};

use crate::{
    api::{
        answer,
        check::text,
        peer::PeerInfo,
        verbs::{Answer, Verb, page_token::Pages},
    },
    stores::{SharedStores, Stores},
};

/// Serves every call of the protocol, for one store or for several.
#[derive(Clone)]
pub(crate) struct Gateway {
    pub(super) stores: SharedStores,
    /// Cancelled when the server stops. Then streams end, and unary calls complete. It is in an `Arc` because cloning a
    /// `CancellationToken` takes a lock.
    pub(super) stopping: Arc<CancellationToken>,
}

impl Gateway {
    pub(crate) fn new(stores: SharedStores, stopping: CancellationToken) -> Self {
        Self { stores, stopping: Arc::new(stopping) }
    }

    /// Executes a call. The extensions of the request contain the connection, and a [`Caller`](howdah_engine::access::Caller)
    /// that has passed [`Verb::RULE`].
    pub(crate) async fn call<V: Verb>(&self, request: Request<V::Request>) -> Answer<V> {
        let (call, message) = Call::open(self, V::RPC, request)?;
        if call.stores.only().is_some() { call.run::<V>(message).await } else { V::route(&call, message).await }
    }
}

howdah_proto::services!(Gateway);

/// Metadata key of the caller's reason. Text that is not ASCII is percent-encoded like `grpc-message`.
pub(in crate::api) const REASON: &str = "howdah-reason";
/// Maximum length of a reason, in bytes.
pub(crate) const REASON_BYTES: usize = 500;

#[derive(Clone)]
pub(crate) struct Call {
    /// Broker of the store in which the call runs. It is the primary store until a store is selected.
    pub(super) broker: SharedBroker,
    /// All stores of this process at the start of the call.
    pub(super) stores: Arc<Stores>,
    /// The stores of this process, to reload them.
    pub(super) all_stores: SharedStores,
    /// Cancelled when the server stops.
    pub(super) stopping: Arc<CancellationToken>,
    pub(super) rpc: Rpc,
    pub(super) caller: Caller,
    pub(super) peer: PeerInfo,
    pub(super) metadata: MetadataMap,
    /// Extensions of the response, such as its memory reservation.
    pub(super) response: Extensions,
}

impl Call {
    /// Splits a gRPC request into the call and its message.
    pub(super) fn open<T>(gateway: &Gateway, rpc: Rpc, request: Request<T>) -> Result<(Self, T), Error> {
        let (metadata, mut extensions, message) = request.into_parts();
        let call = Self {
            broker: gateway.stores.main().clone(),
            stores: gateway.stores.now(),
            all_stores: gateway.stores.clone(),
            stopping: gateway.stopping.clone(),
            rpc,
            caller: extensions.remove().ok_or_else(not_authenticated)?,
            peer: extensions.remove().unwrap_or_default(),
            metadata,
            response: Extensions::default(),
        };
        Ok((call, message))
    }

    /// Returns a copy of the call that runs in the store of `broker`.
    pub(super) fn at(&self, broker: &SharedBroker) -> Self {
        Self { broker: broker.clone(), ..self.clone() }
    }

    /// Runs a verb in the store of this call: checks the page token and the request, reserves memory for the response, executes
    /// the call, and signs the token of the next page.
    pub(super) async fn run<V: Verb>(mut self, mut request: V::Request) -> Answer<V> {
        let cluster = self.broker.cluster();
        let pages = Pages::open::<V>(&self.broker.page_token_key, self.caller.principal(), &mut request)?;
        let args = V::check(request, &cluster, &self.broker.config().limits)?;
        V::permit(&self.caller, &args)?;
        let bytes = V::answer_bytes(&args, &cluster);
        let room = match bytes {
            0 => None,
            bytes => Some(answer::room(&self.broker.answers, &self.peer, bytes).await?),
        };
        let mut response = V::run(&mut self, args).await?;
        if let (Some(pages), Some(next)) = (pages, V::next_page(&mut response)) {
            pages.seal(next);
        }
        if let Some(room) = room {
            answer::hold(&mut self.response, room, &response, V::entries(&response) * V::ENTRY_BYTES);
        }
        Ok(Response::from_parts(MetadataMap::new(), response, self.response))
    }

    /// Returns the principal, connection and reason of the call, for the audit log.
    pub(super) fn by(&self) -> Result<Actor, Error> {
        Ok(Actor {
            principal: Some(self.caller.principal().clone()),
            broker: Some(self.broker.config().name.clone()),
            peer: Some(self.peer.socket.map(|address| address.to_string()).unwrap_or_default()),
            method: self.rpc.name(),
            reason: reason(&self.metadata)?,
        })
    }
}

pub(in crate::api) fn not_authenticated() -> Error {
    Error::Internal("bug: the call was not authenticated".into())
}

fn reason(metadata: &MetadataMap) -> Result<String, Error> {
    let Some(value) = metadata.get(REASON) else { return Ok(String::new()) };
    let text = percent_decode(value.as_encoded_bytes()).decode_utf8();
    let text = text.map_err(|_| Error::invalid(REASON, "is not UTF-8; percent-encode it"))?;
    text::plain(REASON, &text, REASON_BYTES)?;
    Ok(text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &[u8]) -> Result<String, Error> {
        let mut headers = tonic::codegen::http::HeaderMap::new();
        headers.insert(REASON, tonic::codegen::http::HeaderValue::from_bytes(value).unwrap());
        reason(&MetadataMap::from_headers(headers))
    }

    #[test]
    fn a_reason_is_short_plain_text() {
        assert_eq!(reason(&MetadataMap::new()).unwrap(), "");
        assert_eq!(of(b"ticket 42, 100% wrong").unwrap(), "ticket 42, 100% wrong");
        assert_eq!(of("Gr%C3%BC%C3%9Fe".as_bytes()).unwrap(), "Grüße");
        for bad in [&b"%0Afaked line"[..], b"%ff", &[b'x'; 501]] {
            assert_eq!(of(bad).unwrap_err().field(), Some(REASON));
        }
    }
}

//! Entry point of all calls, from gRPC, HTTP and the page.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tonic::Request;

use super::{Answer, Call, Verb};
use crate::stores::SharedStores;

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

    /// Executes a call. The extensions of the request contain the [`Caller`](howdah_engine::access::Caller), which has passed the verb's
    /// [`Verb::RULE`], and the connection.
    pub(crate) async fn call<V: Verb>(&self, request: Request<V::Request>) -> Answer<V> {
        let (call, message) = Call::open(self, V::RPC, request)?;
        if call.stores.only().is_some() { call.run::<V>(message).await } else { V::route(&call, message).await }
    }
}

mod services {
    use super::Gateway;
    use crate::api::verbs;

    howdah_proto::services!(Gateway, verbs);
}

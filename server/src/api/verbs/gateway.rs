//! The services of this process. gRPC, HTTP and the page make their calls here.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tonic::Request;

use super::{Answer, Call, Verb};
use crate::stores::SharedStores;

/// Serves every call of the protocol, for one store or for several.
#[derive(Clone)]
pub(crate) struct Gateway {
    pub(super) stores: SharedStores,
    /// Ends streams when cancelled; calls are completed. Shared, because a clone of the token itself takes a lock.
    pub(super) stopping: Arc<CancellationToken>,
}

impl Gateway {
    pub(crate) fn new(stores: SharedStores, stopping: CancellationToken) -> Self {
        Self { stores, stopping: Arc::new(stopping) }
    }

    /// Makes a call. The extensions of the request contain the caller, whose rule for the call has been checked, and the
    /// connection.
    pub(crate) async fn call<V: Verb>(&self, request: Request<V::Request>) -> Answer<V> {
        let (call, message) = Call::open(self, V::RPC, request)?;
        if self.stores.only().is_some() { call.run::<V>(message).await } else { V::route(&call, message).await }
    }
}

mod services {
    use super::Gateway;
    use crate::api::verbs;

    howdah_proto::services!(Gateway, verbs);
}

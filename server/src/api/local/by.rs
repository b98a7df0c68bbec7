//! Who calls from inside this process, for whom, and why.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use parking_lot::Mutex;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tonic::{
    Request,
    metadata::{MetadataMap, MetadataValue},
};

use crate::{
    access::{Access, Caller, Operation, Peer},
    api::{actor::REASON, fleet::UNANSWERED, peer::PeerInfo, permit},
    error::Error,
    quota::{Address, Open},
    tls::PeerIdentity,
};

/// Where a request came from that makes calls.
#[derive(Clone)]
pub(crate) struct Client {
    /// Its other end.
    pub(crate) socket: SocketAddr,
    /// The address, if addresses are told apart.
    pub(crate) address: Option<Arc<Address>>,
    /// Who the client is, if it has shown a certificate.
    pub(crate) identity: Option<PeerIdentity>,
}

/// A caller.
pub(crate) struct By {
    pub(super) caller: Caller,
    pub(super) peer: PeerInfo,
    /// Whether it may change nothing, whatever its rights are.
    pub(super) reads_only: bool,
    reason: String,
    unanswered: Unanswered,
}

/// The stores that have not answered one of somebody's calls in time.
#[derive(Clone, Default)]
pub(crate) struct Unanswered(Arc<Mutex<BTreeSet<String>>>);

impl Unanswered {
    /// Their names, as of now.
    pub(crate) fn names(&self) -> Vec<String> {
        self.0.lock().iter().cloned().collect()
    }

    /// Notes those that an answer names.
    pub(super) fn note(&self, answer: &MetadataMap) {
        if let Some(names) = answer.get(UNANSWERED).and_then(|names| names.to_str().ok()) {
            self.0.lock().extend(names.split(',').map(str::to_owned));
        }
    }
}

impl By {
    /// The caller of this credential, the value of a header `authorization`.
    pub(crate) async fn of(
        access: &Access,
        credential: Option<&[u8]>,
        client: &Client,
        reads_only: bool,
    ) -> Result<Self, Error> {
        let from = Peer { address: client.address.as_deref(), identity: client.identity.as_ref() };
        let caller = access.caller(credential, from).await?;
        let peer = PeerInfo::of_http(client.socket, client.identity.clone(), client.address.clone());
        let peer = match caller.quota() {
            Some(principal) => peer.of(principal)?,
            None => peer,
        };
        Ok(Self { caller, peer, reads_only, reason: String::new(), unanswered: Unanswered::default() })
    }

    /// The same, with a reason for what it changes.
    pub(crate) fn because(self, reason: &str) -> Self {
        Self { reason: reason.trim().to_owned(), ..self }
    }

    /// The stores that have not answered its calls, also those to come.
    pub(crate) fn unanswered(&self) -> &Unanswered {
        &self.unanswered
    }

    /// Its name; empty: nobody in particular.
    pub(crate) fn principal(&self) -> &str {
        self.caller.principal()
    }

    /// Whether it may do this with jobs of this type. The calls decide; this is for what to show.
    pub(crate) fn may(&self, operation: Operation, task_type: &str) -> bool {
        (!self.reads_only || matches!(operation, Operation::Read | Operation::Payload | Operation::Admin))
            && permit::may(&self.caller, operation, task_type)
    }

    /// Whether it may do this with every type.
    pub(crate) fn may_everywhere(&self, operation: Operation) -> bool {
        (!self.reads_only || matches!(operation, Operation::Read | Operation::Payload | Operation::Admin))
            && self.caller.may_everywhere(operation)
    }

    /// Ready when the credential is no longer valid.
    pub(crate) async fn ended(&self) {
        self.caller.ended().await;
    }

    /// One more stream of the principal.
    pub(crate) fn open_stream(&self) -> Result<Option<Open>, Error> {
        self.caller.open_stream()
    }

    /// A request as the services get it.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.extensions_mut().insert(self.caller.clone());
        request.extensions_mut().insert(self.peer.clone());
        let reason = utf8_percent_encode(&self.reason, NON_ALPHANUMERIC).to_string();
        // It is ASCII, so this never fails.
        if let Ok(reason) = MetadataValue::try_from(reason)
            && !self.reason.is_empty()
        {
            request.metadata_mut().insert(REASON, reason);
        }
        request
    }
}

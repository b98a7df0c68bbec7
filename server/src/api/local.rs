//! Calls that the page for operators makes inside this process. A local call passes the same rules, checks, permissions and
//! audit as a gRPC call.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Duration};

use howdah_core::error::Error;
use howdah_engine::{
    access::{Caller, Operation, Rule},
    broker::SharedBroker,
    quota::{Address, OpenGuard},
};
use parking_lot::Mutex;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Status,
    metadata::{MetadataMap, MetadataValue},
};

use crate::{
    api::{
        peer::PeerInfo,
        permit,
        verbs::{Answer, Gateway, REASON, UNANSWERED, Verb},
    },
    credentials::{Authenticator, Peer, Refusal},
    stores::{SharedStores, Stores},
    tls::PeerIdentity,
};

mod counted;

pub(crate) use counted::CountedType;

/// Time limit of a local call.
pub(crate) const WITHIN: Duration = Duration::from_secs(20);

/// Makes calls inside this process, with the stores at the time of its creation.
pub(crate) struct Local {
    /// Broker of the primary store.
    broker: SharedBroker,
    authenticator: Arc<Authenticator>,
    all_stores: Arc<Stores>,
    gateway: Gateway,
}

impl Local {
    pub(crate) fn new(stores: &SharedStores) -> Self {
        let gateway = Gateway::new(stores.clone(), CancellationToken::new());
        Self {
            broker: stores.main().clone(),
            authenticator: stores.authenticator().clone(),
            all_stores: stores.now(),
            gateway,
        }
    }

    /// Makes a call if the caller is permitted. The response keeps its memory reserved until it is dropped.
    pub(crate) async fn call<V: Verb>(&self, by: &By, message: V::Request) -> Answer<V> {
        let answer = async {
            by.caller.check_rule(V::RULE)?;
            if by.reads_only && !V::READS {
                return Err(Error::Denied("the page is read-only (setting page)".into()).into());
            }
            tokio::time::timeout(WITHIN, Box::pin(self.gateway.call::<V>(by.request(message))))
                .await
                .unwrap_or_else(|_| Err(Error::Deadline(format!("the call took longer than {WITHIN:?}")).into()))
        };
        let answer = answer.await;
        match &answer {
            Ok(answer) => by.unanswered().note(answer.metadata()),
            Err(status) => self.note(V::RPC.name(), by, status),
        }
        answer
    }

    /// Checks the message of a call without making the call, for previews.
    pub(crate) fn check<V: Verb>(&self, message: V::Request) -> Result<V::Args, Error> {
        V::check(message, &self.broker.cluster(), &self.broker.config().limits)
    }

    /// Counts and logs a rejected call.
    fn note(&self, method: &str, by: &By, status: &Status) {
        self.authenticator.refusals.note(&Refusal {
            code: status.code(),
            problem: status.message(),
            principal: Some(by.caller.principal()),
            peer: by.peer.socket,
            method,
        });
    }
}

/// HTTP client that requests the page, for which the broker makes local calls.
#[derive(Clone)]
pub(crate) struct Client {
    /// Remote address.
    pub(crate) socket: SocketAddr,
    /// Quotas of the client's address; `None` if authentication is off.
    pub(crate) address: Option<Arc<Address>>,
    /// Identity from the client's certificate, if it has shown one.
    pub(crate) identity: Option<PeerIdentity>,
}

/// Caller of local calls: its rights, its connection, and the reason that it gives for changes (audit log).
pub(crate) struct By {
    pub(super) caller: Caller,
    pub(super) peer: PeerInfo,
    /// Whether the caller may only read, regardless of its rights.
    pub(super) reads_only: bool,
    reason: String,
    unanswered: Unanswered,
}

/// Stores that have not answered a caller's calls in time.
#[derive(Clone, Default)]
pub(crate) struct Unanswered(Arc<Mutex<BTreeSet<String>>>);

impl Unanswered {
    /// Names of the stores that have not answered so far.
    pub(crate) fn names(&self) -> Vec<String> {
        self.0.lock().iter().cloned().collect()
    }

    /// Records the stores that the metadata of a response names as unanswered.
    pub(super) fn note(&self, answer: &MetadataMap) {
        if let Some(names) = answer.get(UNANSWERED).and_then(|names| names.to_str().ok()) {
            self.0.lock().extend(names.split(',').map(str::to_owned));
        }
    }
}

impl By {
    /// Authenticates a caller by its credential, the value of an `authorization` header.
    pub(crate) async fn from_request(
        access: &Authenticator,
        credential: Option<&[u8]>,
        client: &Client,
        reads_only: bool,
    ) -> Result<Self, Error> {
        let from = Peer { address: client.address.as_deref(), identity: client.identity.as_ref() };
        let caller = access.caller(credential, from).await?;
        let peer = PeerInfo::of_http(client.socket, client.identity.clone(), client.address.clone());
        let peer = match caller.quota() {
            Some(principal) => peer.with_principal(principal)?,
            None => peer,
        };
        Ok(Self { caller, peer, reads_only, reason: String::new(), unanswered: Unanswered::default() })
    }

    /// Returns the caller with a reason for its changes, which the audit log records.
    pub(crate) fn because(self, reason: &str) -> Self {
        Self { reason: reason.trim().to_owned(), ..self }
    }

    /// Stores that have not answered the caller's calls in time; later calls add to them.
    pub(crate) fn unanswered(&self) -> &Unanswered {
        &self.unanswered
    }

    /// Name of the principal. Without authentication: `cert:NAME` with a client certificate, else empty.
    pub(crate) fn principal(&self) -> &str {
        self.caller.principal()
    }

    /// Whether the caller may perform the operation on jobs of this type, or of every type for an empty name. Only decides what
    /// the page shows; the calls enforce the permissions.
    pub(crate) fn may(&self, operation: Operation, task_type: &str) -> bool {
        (!self.reads_only || matches!(operation, Operation::Read | Operation::Payload | Operation::Admin))
            && permit::may(&self.caller, operation, task_type)
    }

    /// Whether the caller may perform the operation on jobs of every type. Only decides what the page shows.
    pub(crate) fn may_everywhere(&self, operation: Operation) -> bool {
        (!self.reads_only || matches!(operation, Operation::Read | Operation::Payload | Operation::Admin))
            && self.caller.may_everywhere(operation)
    }

    /// Whether the caller may perform the operation on jobs of some type. Only decides what the page shows.
    pub(crate) fn may_somewhere(&self, operation: Operation) -> bool {
        !self.reads_only && self.caller.check_rule(Rule::Types(operation)).is_ok()
    }

    /// Completes when the caller's credential is no longer valid or its rights have changed.
    pub(crate) async fn ended(&self) {
        self.caller.ended().await;
    }

    /// Counts an open stream against the principal's limit until the guard is dropped.
    pub(crate) fn open_stream(&self) -> Result<Option<OpenGuard>, Error> {
        self.caller.open_stream()
    }

    /// Returns a request with this caller, its connection and its reason, in the form that gRPC requests have after
    /// authentication.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.extensions_mut().insert(self.caller.clone());
        request.extensions_mut().insert(self.peer.clone());
        let reason = utf8_percent_encode(&self.reason, NON_ALPHANUMERIC).to_string();
        // Cannot fail, because a percent-encoded reason is ASCII.
        if let Ok(reason) = MetadataValue::try_from(reason)
            && !self.reason.is_empty()
        {
            request.metadata_mut().insert(REASON, reason);
        }
        request
    }
}

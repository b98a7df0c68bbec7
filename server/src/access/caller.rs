//! Who calls, and what he may do. One function decides, whichever port the call came to.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use super::{Operation, Rights, Rule};
use crate::{
    error::Error,
    job::{Outcome, TaskTypeName},
    quota::{Open, Principal},
    tls::PeerIdentity,
};

/// How principals are named that are known by a certificate.
pub(super) const CERTIFICATE: &str = "cert:";

/// The rights of a credential, shared by all calls that came with it.
#[derive(Debug)]
pub struct Grant {
    /// Whose credential it is; empty: nobody in particular.
    pub principal: Arc<str>,
    /// What it allows.
    pub rights: Rights,
    /// What the principal may use of this broker, once it has called.
    pub(super) quota: OnceLock<Arc<Principal>>,
    /// Cancelled when the credential ends or its rights change: streams that were opened with it end.
    pub(super) ended: CancellationToken,
}

impl Grant {
    pub(super) fn new(principal: &str, rights: Rights) -> Self {
        Self::until(CancellationToken::new(), principal, rights)
    }

    /// One that ends when this is cancelled.
    pub(super) fn until(ended: CancellationToken, principal: &str, rights: Rights) -> Self {
        Self { principal: principal.into(), rights, quota: OnceLock::new(), ended }
    }
}

/// The caller of one call.
#[derive(Clone)]
pub struct Caller {
    pub(super) grant: Arc<Grant>,
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Caller").field(&self.grant.principal).finish()
    }
}

impl Caller {
    pub(super) fn new(grant: Arc<Grant>) -> Self {
        Self { grant }
    }

    /// A caller who may do everything, for brokers without authentication.
    pub fn anyone() -> Self {
        Self::new(Arc::new(Grant::new("", Rights::all())))
    }

    /// A caller with a certificate, which decides who gets in: it may do everything, in its own name.
    pub(super) fn with_certificate(identity: &PeerIdentity) -> Self {
        Self::new(Arc::new(Grant::new(&format!("{CERTIFICATE}{}", identity.name), Rights::all())))
    }

    /// The name of the caller; empty: nobody in particular.
    pub fn principal(&self) -> &Arc<str> {
        &self.grant.principal
    }

    /// What the principal may use of this broker; `None`: callers are not told apart.
    pub(crate) fn quota(&self) -> Option<&Arc<Principal>> {
        self.grant.quota.get()
    }

    /// One more stream of the principal.
    pub(crate) fn open_stream(&self) -> Result<Option<Open>, Error> {
        self.quota().map(|principal| principal.open_stream()).transpose()
    }

    /// Whether the caller may do this with a task type.
    pub fn may(&self, operation: Operation, task_type: &TaskTypeName) -> bool {
        self.grant.rights.on(operation, task_type)
    }

    /// Whether the caller may do this with every task type, so that nobody needs to ask for each.
    pub fn may_everywhere(&self, operation: Operation) -> bool {
        self.grant.rights.everywhere(operation)
    }

    /// The same as `may`, as an error for the caller.
    pub fn check(&self, operation: Operation, task_type: &TaskTypeName) -> Result<(), Error> {
        if self.may(operation, task_type) {
            return Ok(());
        }
        Err(self.denied(operation, task_type.as_str()))
    }

    /// Whether the caller may make this call at all.
    pub(crate) fn check_rule(&self, rule: Rule) -> Result<(), Error> {
        let rights = &self.grant.rights;
        match rule {
            Rule::Types(operation) if !rights.somewhere(operation) => Err(self.denied(operation, "TYPES")),
            Rule::Everything(operation) if !rights.everywhere(operation) => Err(self.denied(operation, "*")),
            Rule::Types(_) | Rule::Everything(_) | Rule::Anyone => Ok(()),
        }
    }

    /// Whether jobs that the caller enqueues or works on may go on in another task type, as a stage or a fallback: they are
    /// enqueued there.
    pub fn check_target(&self, to: &TaskTypeName) -> Result<(), Error> {
        self.check(Operation::Enqueue, to)
    }

    /// Whether it may choose the next stage that an outcome names.
    pub fn check_stage(&self, outcome: &Outcome) -> Result<(), Error> {
        outcome.next_stage().map_or(Ok(()), |stage| self.check_target(stage))
    }

    /// Whether the caller may send jobs of others from one task type to another, by a setting or a bulk operation. It must be
    /// allowed to bring jobs to the target, and must not get to see payloads there that it may not see now.
    pub fn check_reroute(&self, from: &TaskTypeName, to: &TaskTypeName) -> Result<(), Error> {
        if !self.may(Operation::Operate, to) {
            self.check_target(to)?;
        }
        let sees = |task_type| {
            let shown = self.may(Operation::Payload, task_type) && self.may(Operation::Read, task_type);
            shown || self.may(Operation::Work, task_type)
        };
        if sees(to) && !sees(from) {
            return Err(self.denied(Operation::Payload, from.as_str()));
        }
        Ok(())
    }

    fn denied(&self, operation: Operation, task_types: &str) -> Error {
        let who = &self.grant.principal;
        Error::Denied(format!("{who:?} needs the scope {operation}:{task_types} for this call"))
    }

    /// Ready when the credential is no longer valid, or its rights have changed.
    pub fn ended(&self) -> WaitForCancellationFuture<'_> {
        self.grant.ended.cancelled()
    }

    /// The error that ends streams then.
    pub fn ended_error(&self) -> Error {
        Error::Unauthenticated(
            "the credential of this stream was revoked, has expired, or has other rights now; open a new one".into(),
        )
    }
}

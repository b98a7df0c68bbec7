//! Caller of a gRPC or HTTP call, and its permissions.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use howdah_core::{
    error::Error,
    job::{Outcome, TaskTypeName},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use super::{Operation, Rights, Rule};
use crate::quota::{OpenGuard, Principal, Principals};

/// Name prefix of principals that are identified by a client certificate.
pub const CERTIFICATE: &str = "cert:";

/// The rights of a credential, shared by all calls with that credential.
#[derive(Debug)]
pub struct Grant {
    /// Principal of the credential. Without authentication: `cert:NAME` with a client certificate, else empty.
    pub principal: Arc<str>,
    pub rights: Rights,
    /// Quotas of the principal at this broker, set by the first call of the principal.
    quota: OnceLock<Arc<Principal>>,
    /// Cancelled when the credential ends or its rights change. Streams opened with the credential then end.
    pub ended: CancellationToken,
}

impl Grant {
    pub fn new(principal: &str, rights: Rights) -> Self {
        Self::until(CancellationToken::new(), principal, rights)
    }

    /// Creates a grant that ends when the cancellation token `ended` is cancelled.
    pub fn until(ended: CancellationToken, principal: &str, rights: Rights) -> Self {
        Self { principal: principal.into(), rights, quota: OnceLock::new(), ended }
    }
}

/// The caller of one call.
#[derive(Clone)]
pub struct Caller {
    grant: Arc<Grant>,
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Caller").field(&self.grant.principal).finish()
    }
}

impl Caller {
    pub fn new(grant: Arc<Grant>) -> Self {
        Self { grant }
    }

    /// Returns a caller with all rights, for brokers without authentication.
    pub fn unauthenticated() -> Self {
        Self::new(Arc::new(Grant::new("", Rights::all())))
    }

    /// Returns a caller with all rights, named after its client certificate. Without token authentication, a trusted certificate is
    /// the only requirement.
    pub fn with_certificate(name: &str) -> Self {
        Self::new(Arc::new(Grant::new(&format!("{CERTIFICATE}{name}"), Rights::all())))
    }

    /// Returns the principal. Without authentication: `cert:NAME` with a client certificate, else empty.
    pub fn principal(&self) -> &Arc<str> {
        &self.grant.principal
    }

    /// Attaches the quotas of the caller's principal, unless an earlier call has attached them.
    pub fn attach_quota(&self, principals: &Principals) {
        if !self.principal().is_empty() {
            self.grant.quota.get_or_init(|| principals.get(self.principal()));
        }
    }

    /// Returns the quotas of the principal at this broker. `None` for a caller without a principal.
    pub fn quota(&self) -> Option<&Arc<Principal>> {
        self.grant.quota.get()
    }

    /// Counts an open stream against the principal's quota, until the returned guard is dropped.
    pub fn open_stream(&self) -> Result<Option<OpenGuard>, Error> {
        self.quota().map(|principal| principal.open_stream()).transpose()
    }

    /// Whether the caller may perform the operation on the task type.
    pub fn may(&self, operation: Operation, task_type: &TaskTypeName) -> bool {
        self.grant.rights.on(operation, task_type)
    }

    /// Whether the caller may perform the operation on every task type. If true, checks of single task types are unnecessary.
    pub fn may_everywhere(&self, operation: Operation) -> bool {
        self.grant.rights.everywhere(operation)
    }

    /// Fails with `PERMISSION_DENIED` unless the caller may perform the operation on the task type.
    pub fn check(&self, operation: Operation, task_type: &TaskTypeName) -> Result<(), Error> {
        if self.may(operation, task_type) {
            return Ok(());
        }
        Err(self.denied(operation, task_type.as_str()))
    }

    /// Fails with `PERMISSION_DENIED` if the caller does not meet the [`Rule`] of a call. The rule is checked before the
    /// request is read.
    pub fn check_rule(&self, rule: Rule) -> Result<(), Error> {
        let rights = &self.grant.rights;
        match rule {
            Rule::Types(operation) if !rights.somewhere(operation) => Err(self.denied(operation, "TYPES")),
            Rule::TypesEither(operation, other) if !rights.somewhere(operation) && !rights.somewhere(other) => {
                Err(self.denied(operation, "TYPES"))
            }
            Rule::Everything(operation) if !rights.everywhere(operation) => Err(self.denied(operation, "*")),
            Rule::Types(_) | Rule::TypesEither(..) | Rule::Everything(_) | Rule::Anyone => Ok(()),
        }
    }

    /// Checks that the caller may move its jobs to another task type, as a stage or a fallback. This requires the right to enqueue
    /// there.
    pub fn check_target(&self, to: &TaskTypeName) -> Result<(), Error> {
        self.check(Operation::Enqueue, to)
    }

    /// Checks that the caller may enqueue to the task type that an outcome names as the next stage, if any.
    pub fn check_stage(&self, outcome: &Outcome) -> Result<(), Error> {
        outcome.next_stage().map_or(Ok(()), |stage| self.check_target(stage))
    }

    /// Checks that the caller may move jobs of other principals from one task type to another, by a setting or a bulk
    /// operation. The caller needs the right to operate or enqueue at the target. If the caller cannot see jobs or payloads of
    /// the old task type, it must not see them at the new one.
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
        if self.may(Operation::Read, to) && !self.may(Operation::Read, from) {
            return Err(self.denied(Operation::Read, from.as_str()));
        }
        Ok(())
    }

    fn denied(&self, operation: Operation, task_types: &str) -> Error {
        let who = &self.grant.principal;
        Error::Denied(format!("{who:?} needs the scope {operation}:{task_types} for this call"))
    }

    /// Completes when the caller's credential is no longer valid or its rights have changed.
    pub fn ended(&self) -> WaitForCancellationFuture<'_> {
        self.grant.ended.cancelled()
    }

    /// Returns the error that ends streams after [`Self::ended`].
    pub fn ended_error(&self) -> Error {
        Error::Unauthenticated(
            "the credential of this stream was revoked, has expired, or has new rights; open a new stream".into(),
        )
    }
}

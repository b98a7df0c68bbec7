//! The tokens of callers, the audit log, and the task types of jobs for permission checks.

use howdah_core::{error::Error, job::TypeId};

use super::Operator;
use crate::store::{AuditEntry, AuditQuery, TokenView};

impl Operator {
    /// Returns the task types of jobs, each with its id and name. Omits jobs that do not exist.
    pub async fn types_of(&self, ids: &[i64]) -> Result<Vec<(i64, TypeId, String)>, Error> {
        Ok(self.context.store.types_of(ids).await?)
    }

    /// Returns a page of the tokens whose ids come after `after`.
    pub async fn list_tokens(&self, after: &str, ended: bool, size: usize) -> Result<Vec<TokenView>, Error> {
        Ok(self.context.store.list_tokens(after, ended, size as i32).await?)
    }

    /// Returns a page of the audit log.
    pub async fn list_audit(&self, query: &AuditQuery) -> Result<Vec<AuditEntry>, Error> {
        Ok(self.context.store.list_audit(query).await?)
    }
}

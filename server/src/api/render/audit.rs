//! Audit log entries.

use howdah_proto::v1;

use super::time::time;
use crate::store::AuditEntry;

/// Converts an entry of the audit log.
pub(crate) fn audit_entry(entry: AuditEntry) -> v1::AuditEntry {
    v1::AuditEntry {
        time: Some(time(entry.time())),
        principal: entry.principal,
        broker: entry.broker.unwrap_or_default(),
        peer: entry.peer,
        method: entry.method,
        task_types: entry.types,
        count: entry.count,
        ids: entry.ids,
        reason: entry.reason,
        store: String::new(),
    }
}

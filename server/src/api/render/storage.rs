//! Conversion of the health of the storage.

use howdah_engine::{
    doctor::{Examination, Finding},
    store::{SnapshotHolder, StorageHealth, TableHealth},
};
use howdah_proto::v1;

use super::time::{duration, time};
use crate::api::enums::WireEnum as _;

pub(crate) fn storage_health(health: StorageHealth, examination: Option<&Examination>) -> v1::StorageHealth {
    v1::StorageHealth {
        tables: health.tables.into_iter().map(table).collect(),
        oldest_snapshot: health.oldest_snapshot.map(holder),
        notification_queue_usage: health.notification_queue_usage,
        history_partitions: health.history_partitions as i32,
        findings: examination.map(|e| e.findings.iter().map(finding).collect()).unwrap_or_default(),
        examine_time: examination.map(|e| time(e.time)),
    }
}

fn finding(finding: &Finding) -> v1::Finding {
    v1::Finding {
        level: finding.level.number(),
        check: finding.check.into(),
        found: finding.found.clone(),
        change: finding.change.clone(),
    }
}

fn table(table: TableHealth) -> v1::TableHealth {
    let TableHealth { name, live_rows, dead_rows, autovacuum_threshold } = table;
    v1::TableHealth { name: name.into(), live_rows, dead_rows, autovacuum_threshold }
}

fn holder(holder: SnapshotHolder) -> v1::SnapshotHolder {
    let application = holder.application.unwrap_or_default();
    v1::SnapshotHolder {
        kind: holder.kind.number(),
        pid: holder.pid.unwrap_or_default(),
        name: holder.name.unwrap_or_default(),
        user: holder.user.unwrap_or_default(),
        database: holder.database.unwrap_or_default(),
        application_name: match holder.broker {
            Some(broker) => format!("{application}, of the broker {broker}"),
            None => application,
        },
        state: holder.state.unwrap_or_default(),
        age: holder.age.map(duration),
        xid_age: holder.xid_age,
    }
}

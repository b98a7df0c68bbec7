//! Bulk operations.

use std::time::Duration;

use howdah_core::job::{Bulk, BulkChange, BulkFields, BulkSpec, BulkState, JobConditions};
use howdah_proto::v1;

use super::time::{duration, micros, time};

/// Converts a bulk operation to its protocol message.
pub(crate) fn bulk(bulk: Bulk) -> v1::Bulk {
    let state = match bulk.state {
        BulkState::Running => v1::BulkState::Running,
        BulkState::Paused => v1::BulkState::Paused,
        BulkState::Completed => v1::BulkState::Completed,
        BulkState::Cancelled => v1::BulkState::Cancelled,
    };
    v1::Bulk {
        id: bulk.id,
        spec: Some(spec(bulk.spec)),
        state: state as i32,
        done_count: bulk.done,
        skipped_count: bulk.skipped,
        failed_count: bulk.failed,
        selected_count: bulk.selected,
        has_more: bulk.has_more,
        problem: bulk.problem,
        principal: bulk.principal,
        reason: bulk.reason,
        broker: bulk.broker.unwrap_or_default(),
        create_time: Some(time(bulk.created)),
        update_time: Some(time(bulk.updated)),
        end_time: bulk.ended.map(time),
        store: String::new(),
    }
}

fn spec(spec: BulkSpec) -> v1::BulkSpec {
    let operation = match &spec.change {
        BulkChange::Retry => v1::BulkOperation::Retry,
        BulkChange::Cancel => v1::BulkOperation::Cancel,
        BulkChange::Discard => v1::BulkOperation::Discard,
        BulkChange::Reprioritize(_) => v1::BulkOperation::Reprioritize,
        BulkChange::Undo(_) => v1::BulkOperation::Undo,
        BulkChange::Move(_) => v1::BulkOperation::Move,
        BulkChange::Set(_) => v1::BulkOperation::Set,
    };
    v1::BulkSpec {
        operation: operation as i32,
        priority: spec.change.priority().map(i32::from),
        task_type: spec.task_type.to_string(),
        state: spec.state.map(|state| state.to_proto() as i32).unwrap_or_default(),
        error_group: spec.error_group.unwrap_or_default(),
        max_jobs_per_second: spec.jobs_per_s.unwrap_or_default(),
        undo_bulk_id: spec.change.undoes().unwrap_or_default(),
        to_task_type: spec.change.to_type().map(ToString::to_string).unwrap_or_default(),
        fields: spec.change.fields().cloned().map(fields),
        conditions: conditions(spec.conditions),
    }
}

fn conditions(conditions: JobConditions) -> Option<v1::JobConditions> {
    (!conditions.is_empty()).then(|| v1::JobConditions {
        created_before: conditions.created_before_us.map(micros),
        created_since: conditions.created_since_us.map(micros),
        tag: conditions.tag.unwrap_or_default(),
        fair_key: conditions.fair_key.unwrap_or_default(),
        limit_key: conditions.limit_key.unwrap_or_default(),
        worker_id: conditions.worker_id.unwrap_or_default(),
        attempts_at_least: conditions.attempts_at_least.map(i32::from),
        attempts_at_most: conditions.attempts_at_most.map(i32::from),
    })
}

fn fields(fields: BulkFields) -> v1::BulkFields {
    let span = |ms: i64| duration(Duration::from_millis(u64::try_from(ms).unwrap_or_default()));
    let start = match (fields.start_us, fields.delay_ms) {
        (Some(us), _) => Some(v1::bulk_fields::Start::RunAt(micros(us))),
        (None, delay) => delay.map(span).map(v1::bulk_fields::Start::Delay),
    };
    v1::BulkFields {
        max_attempts: fields.max_attempts.map(i32::from),
        timeout: fields.timeout_ms.map(span),
        start,
        add_tags: fields.add_tags,
        remove_tags: fields.remove_tags,
    }
}

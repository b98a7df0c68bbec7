//! Cluster settings.

use howdah_core::job::ClusterSettings;
use howdah_proto::v1;

use super::time::duration;

/// Converts all cluster settings to their protocol message.
pub(crate) fn cluster_settings(settings: &ClusterSettings) -> v1::ClusterSettings {
    v1::ClusterSettings {
        payload_bytes: settings.payload_bytes as i64,
        headers: settings.headers as u32,
        header_bytes: settings.header_bytes as i64,
        key_bytes: settings.key_bytes as u32,
        batch: settings.batch as u32,
        max_delay: Some(duration(settings.max_delay)),
        max_timeout: Some(duration(settings.max_timeout)),
        task_types: settings.task_types as u32,
        dead_days: settings.dead_days as u32,
    }
}

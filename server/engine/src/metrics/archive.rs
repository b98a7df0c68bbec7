//! Metrics of the archive: whether finished jobs are archived in time.

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::{Registry, Unit},
};

/// Metrics of the archive.
#[derive(Default)]
pub struct ArchiveMetrics {
    /// Number of days whose archiving is overdue; equal for every broker.
    pub late: Gauge,
    /// Number of jobs archived by this broker.
    pub jobs: Counter,
    /// Total size in bytes of the archive files written by this broker.
    pub bytes: Counter,
    /// Number of expired days that this broker has deleted from the archive.
    pub expired_days: Counter,
    /// Number of failed archive runs of this broker.
    pub failures: Counter,
}

impl ArchiveMetrics {
    pub fn register(&self, r: &mut Registry) {
        r.register(
            "archive_late",
            "Days that have been over for two hours and have jobs that are not archived; their partitions are kept",
            self.late.clone(),
        );
        r.register("archived_jobs", "Finished jobs that this broker has archived", self.jobs.clone());
        r.register_with_unit(
            "archived",
            "Files of the archive that this broker has written",
            Unit::Bytes,
            self.bytes.clone(),
        );
        r.register(
            "archive_expired_days",
            "Days of the archive that this broker has deleted, because they were older than archive_days",
            self.expired_days.clone(),
        );
        r.register(
            "archive_failures",
            "Attempts of this broker to archive a day, or to delete an old one, that failed; howdah archive list shows why",
            self.failures.clone(),
        );
    }
}

//! Metrics of schedules, as last read from the database.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    metrics::gauge::Gauge,
    registry::{Registry, Unit},
};

/// Schedule metrics, equal for every broker.
#[derive(Default)]
pub struct ScheduleMetrics {
    /// Delay of the most overdue planned time of any schedule, in seconds.
    pub delay: Gauge<f64, AtomicU64>,
    /// Number of schedules whose last planned time failed to fire.
    pub failing: Gauge,
}

impl ScheduleMetrics {
    pub fn register(&self, r: &mut Registry) {
        r.register_with_unit(
            "schedule_delay",
            "Delay of the most overdue planned time of a schedule, without its jitter; 0 if none is overdue",
            Unit::Seconds,
            self.delay.clone(),
        );
        r.register(
            "schedules_failing",
            "Schedules whose last planned time could not fire; howdah schedule list shows the error",
            self.failing.clone(),
        );
    }
}

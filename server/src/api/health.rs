//! `grpc.health.v1.Health`: whether to send calls here.

use howdah_proto::v1::{
    job_service_server, schedule_service_server, settings_service_server, task_type_service_server,
    worker_service_server,
};
use tonic_health::{
    ServingStatus,
    pb::health_server::{self, HealthServer},
    server::{HealthReporter, HealthService},
};

/// Services that have a status; the empty name is the broker as a whole.
const SERVICES: [&str; 6] = [
    "",
    job_service_server::SERVICE_NAME,
    schedule_service_server::SERVICE_NAME,
    settings_service_server::SERVICE_NAME,
    task_type_service_server::SERVICE_NAME,
    worker_service_server::SERVICE_NAME,
];

/// A check names one service: no request is larger than this.
const MESSAGE_BYTES: usize = 4 << 10;

/// The broker's health: `NOT_SERVING` until it serves, and again from the moment it is to stop.
#[derive(Clone, Debug)]
pub struct Health {
    reporter: HealthReporter,
}

impl Health {
    /// `NOT_SERVING` so far.
    pub async fn new() -> Self {
        let health = Self { reporter: HealthReporter::new() };
        health.not_serving().await;
        health
    }

    /// Calls are welcome.
    pub async fn serving(&self) {
        self.set(ServingStatus::Serving).await;
    }

    /// No more calls, please. Say so before draining, so that balancers look elsewhere in time.
    pub async fn not_serving(&self) {
        self.set(ServingStatus::NotServing).await;
    }

    /// Ends the streams of those who watch, after they were told the last status: they would hold
    /// up the end of their connections.
    pub(super) async fn end(&self) {
        let mut reporter = self.reporter.clone();
        for service in SERVICES {
            reporter.clear_service_status(service).await;
        }
    }

    pub(super) fn service(&self) -> HealthServer<impl health_server::Health + use<>> {
        HealthServer::new(HealthService::from_health_reporter(self.reporter.clone()))
            .max_decoding_message_size(MESSAGE_BYTES)
    }

    async fn set(&self, status: ServingStatus) {
        for service in SERVICES {
            self.reporter.set_service_status(service, status).await;
        }
    }
}

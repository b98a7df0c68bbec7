//! `grpc.health.v1.Health`: tells clients and load balancers whether to send calls to this broker.

use howdah_proto::v1::{
    bulk_service_server, job_service_server, schedule_service_server, settings_service_server, store_service_server,
    task_type_service_server, worker_service_server,
};
use tonic_health::{
    ServingStatus,
    pb::health_server::{self, HealthServer},
    server::{HealthReporter, HealthService},
};

/// Services whose health is reported; the empty name stands for the whole broker.
const SERVICES: [&str; 8] = [
    "",
    bulk_service_server::SERVICE_NAME,
    job_service_server::SERVICE_NAME,
    schedule_service_server::SERVICE_NAME,
    settings_service_server::SERVICE_NAME,
    store_service_server::SERVICE_NAME,
    task_type_service_server::SERVICE_NAME,
    worker_service_server::SERVICE_NAME,
];

/// Maximum size of a health check request, in bytes. The request only names a service.
const MESSAGE_BYTES: usize = 4 << 10;

/// Health of the broker: `NOT_SERVING` until it serves, and again when it stops.
#[derive(Clone, Debug)]
pub struct Health {
    reporter: HealthReporter,
}

impl Health {
    /// Starts with `NOT_SERVING`.
    pub async fn new() -> Self {
        let health = Self { reporter: HealthReporter::new() };
        health.not_serving().await;
        health
    }

    /// Sets `SERVING`.
    pub async fn serving(&self) {
        self.set(ServingStatus::Serving).await;
    }

    /// Sets `NOT_SERVING`. Must be called before the broker drains, so that load balancers switch to other brokers in time.
    pub async fn not_serving(&self) {
        self.set(ServingStatus::NotServing).await;
    }

    /// Ends the `Watch` streams after they have sent the last status. Otherwise the streams would keep their connections open.
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

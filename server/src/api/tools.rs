//! Services for tools. `grpc.health.v1.Health` tells clients and load balancers whether to send calls to this broker. With
//! reflection, tools such as grpcurl list the services. Its descriptor tables are built at its first call: they cost memory and
//! startup time, and most brokers never need them.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::{Arc, LazyLock},
    task::{Context, Poll},
};

use futures::future::Either;
use howdah_proto::{
    FILE_DESCRIPTOR_SET,
    v1::{
        bulk_service_server, job_service_server, schedule_service_server, settings_service_server,
        store_service_server, task_type_service_server, worker_service_server,
    },
};
use tonic::{
    Status,
    body::Body,
    codegen::{
        Service,
        http::{Request, Response},
    },
    server::NamedService,
    service::Routes,
};
use tonic_health::{
    ServingStatus,
    pb::health_server::{self, HealthServer},
    server::{HealthReporter, HealthService},
};
use tonic_reflection::server::{Builder, Error};
use tower::{ServiceExt as _, util::Oneshot};

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

/// Maximum size of a reflection request, in bytes. A request only contains names.
const REQUEST_BYTES: usize = 16 << 10;

/// Adds both versions of the reflection service (`v1` and `v1alpha`).
pub(super) fn add_reflection(routes: Routes) -> Routes {
    let v1 = || Ok(builder().build_v1()?.max_decoding_message_size(REQUEST_BYTES));
    let v1alpha = || Ok(builder().build_v1alpha()?.max_decoding_message_size(REQUEST_BYTES));
    routes.add_service(WhenAsked::new(v1)).add_service(WhenAsked::new(v1alpha))
}

fn builder() -> Builder<'static> {
    Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        // No method uses the messages of this file, but error details contain them.
        .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
}

/// A service that is created by its first call.
struct WhenAsked<S>(Arc<LazyLock<Result<S, Error>>>);

impl<S> WhenAsked<S> {
    fn new(make: fn() -> Result<S, Error>) -> Self {
        Self(Arc::new(LazyLock::new(make)))
    }
}

impl<S> Clone for WhenAsked<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: NamedService> NamedService for WhenAsked<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for WhenAsked<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<Oneshot<S, Request<Body>>, Ready<Result<Response<Body>, Infallible>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match &**self.0 {
            Ok(service) => Either::Left(service.clone().oneshot(request)),
            Err(error) => {
                let status = Status::internal(format!("cannot build the descriptors for reflection: {error}"));
                Either::Right(ready(Ok(status.into_http())))
            }
        }
    }
}

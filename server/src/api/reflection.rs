//! Reflection: tools such as grpcurl list the services. The first call builds the descriptor tables, because they cost memory and
//! startup time, and most brokers never need them.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::{Arc, LazyLock},
    task::{Context, Poll},
};

use futures::future::Either;
use howdah_proto::FILE_DESCRIPTOR_SET;
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
use tonic_reflection::server::{Builder, Error};
use tower::{ServiceExt as _, util::Oneshot};

/// Maximum size of a reflection request, in bytes. A request only contains names.
const REQUEST_BYTES: usize = 16 << 10;

/// Adds both versions of the reflection service (`v1` and `v1alpha`).
pub(super) fn add(routes: Routes) -> Routes {
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

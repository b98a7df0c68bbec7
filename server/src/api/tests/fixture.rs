//! The edge on a port of its own, in front of services that need no broker.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use howdah_proto::v1::{
    self,
    task_type_service_client::TaskTypeServiceClient,
    task_type_service_server::{TaskTypeService, TaskTypeServiceServer},
};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Response, Status, async_trait,
    codec::CompressionEncoding,
    service::Routes,
    transport::{Channel, Endpoint},
};

use crate::{
    api::{
        ConnectionCounts, Health,
        server::{Edge, with_tools},
    },
    error::Error,
    job::Limits,
};

/// Lists with a length; "panic" panics; "hang" never answers.
struct Stub;

#[async_trait]
impl TaskTypeService for Stub {
    async fn list_task_types(
        &self,
        request: Request<v1::ListTaskTypesRequest>,
    ) -> Result<Response<v1::ListTaskTypesResponse>, Status> {
        let name = request.into_inner().task_type;
        match name.as_str() {
            "panic" => panic!("as asked"),
            "hang" => std::future::pending().await,
            _ => {
                let task_types = vec![v1::TaskType { name: name.len().to_string(), ..Default::default() }];
                Ok(Response::new(v1::ListTaskTypesResponse { task_types, ..Default::default() }))
            }
        }
    }

    async fn update_task_type(
        &self,
        _: Request<v1::UpdateTaskTypeRequest>,
    ) -> Result<Response<v1::UpdateTaskTypeResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }
}

/// A running edge.
pub(super) struct Running {
    pub(super) address: SocketAddr,
    pub(super) health: Health,
    pub(super) counts: Arc<ConnectionCounts>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<Result<(), Error>>,
}

/// Message limit of the stub.
pub(super) const MESSAGE_BYTES: usize = 1 << 20;

/// Serves with these limits; 500 ms for the preface, 2 s for a call, 1 s to drain.
pub(super) async fn serve(limits: Limits) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (health, counts) = (Health::new().await, Arc::default());
    let stub = TaskTypeServiceServer::new(Stub)
        .accept_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(MESSAGE_BYTES);
    let routes = with_tools(Routes::new(stub), &health).unwrap();
    let edge = Edge {
        health: health.clone(),
        stopping: CancellationToken::new(),
        counts: Arc::clone(&counts),
        preface: Duration::from_millis(500),
        call: Duration::from_secs(2),
    };
    let (stop, stopped) = oneshot::channel();
    let served = tokio::spawn(async move {
        let shutdown = async { drop(stopped.await) };
        edge.serve(listener, routes, &limits, shutdown, Duration::from_secs(1)).await
    });
    Running { address, health, counts, stop, served }
}

impl Running {
    pub(super) async fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }

    pub(super) async fn client(&self) -> TaskTypeServiceClient<Channel> {
        TaskTypeServiceClient::new(self.channel().await)
    }

    /// Asks it to stop, and waits until it has.
    pub(super) async fn stop(self) {
        self.stop.send(()).unwrap();
        self.served.await.unwrap().unwrap();
    }
}

pub(super) fn named(task_type: impl Into<String>) -> v1::ListTaskTypesRequest {
    v1::ListTaskTypesRequest { task_type: task_type.into(), ..Default::default() }
}

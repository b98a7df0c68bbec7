//! Plain gRPC and HTTP connections, for tests of the wire protocol.

use howdah_proto::v1::{
    WorkRequest, WorkResponse, job_service_client::JobServiceClient, task_type_service_client::TaskTypeServiceClient,
    worker_service_client::WorkerServiceClient,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::mpsc,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Status, Streaming,
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};

use super::with_timeout;

/// Credential of calls: a bearer token, or none.
#[derive(Clone, Default)]
pub struct Bearer(pub Option<String>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().expect("ASCII"));
        }
        Ok(request)
    }
}

/// A gRPC channel whose calls carry a credential.
pub type Connection = InterceptedService<Channel, Bearer>;

async fn channel(grpc: &str) -> Channel {
    let endpoint = Endpoint::from_shared(grpc.to_owned()).expect("address");
    with_timeout("a connection", endpoint.connect()).await.expect("connect")
}

pub async fn jobs_client(grpc: &str) -> JobServiceClient<Channel> {
    JobServiceClient::new(channel(grpc).await).max_decoding_message_size(64 << 20)
}

pub async fn task_types_client(grpc: &str) -> TaskTypeServiceClient<Channel> {
    TaskTypeServiceClient::new(channel(grpc).await)
}

pub async fn workers_client(grpc: &str) -> WorkerServiceClient<Channel> {
    WorkerServiceClient::new(channel(grpc).await).max_decoding_message_size(64 << 20)
}

/// Opens a work stream without sending a first message.
pub async fn open(grpc: &str) -> (mpsc::Sender<WorkRequest>, Streaming<WorkResponse>) {
    open_as(grpc, Bearer::default()).await.expect("a stream")
}

/// Opens a work stream with a credential. If the broker refuses, returns the status.
pub async fn open_as(
    grpc: &str,
    bearer: Bearer,
) -> Result<(mpsc::Sender<WorkRequest>, Streaming<WorkResponse>), Status> {
    let (send, receive) = mpsc::channel(64);
    let mut client = WorkerServiceClient::with_interceptor(channel(grpc).await, bearer);
    client = client.max_decoding_message_size(64 << 20);
    let stream = with_timeout("response headers", client.work(ReceiverStream::new(receive))).await?;
    Ok((send, stream.into_inner()))
}

/// Fetches `GET /metrics` of a broker.
pub async fn metrics(http: &str, bearer: &Bearer) -> String {
    let mut stream = TcpStream::connect(http.trim_start_matches("http://")).await.expect("connect");
    let credential = bearer.0.as_ref().map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{credential}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("write");
    let mut answer = String::new();
    with_timeout("the metrics", stream.read_to_string(&mut answer)).await.expect("read");
    answer
}

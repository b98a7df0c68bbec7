//! Connections without anything around them, for tests of what goes over the wire.

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
    Streaming,
    transport::{Channel, Endpoint},
};

use super::soon;

async fn channel(grpc: &str) -> Channel {
    let endpoint = Endpoint::from_shared(grpc.to_owned()).expect("address");
    soon("a connection", endpoint.connect()).await.expect("connect")
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

/// An open stream without a first message.
pub async fn open(grpc: &str) -> (mpsc::Sender<WorkRequest>, Streaming<WorkResponse>) {
    let (send, receive) = mpsc::channel(64);
    let mut client = workers_client(grpc).await;
    let stream = soon("response headers", client.work(ReceiverStream::new(receive))).await.expect("a stream");
    (send, stream.into_inner())
}

/// `GET /metrics` of a broker.
pub async fn metrics(http: &str) -> String {
    let mut stream = TcpStream::connect(http.trim_start_matches("http://")).await.expect("connect");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.expect("write");
    let mut answer = String::new();
    soon("the metrics", stream.read_to_string(&mut answer)).await.expect("read");
    answer
}

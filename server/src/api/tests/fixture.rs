//! The gRPC server on its own port, with stub services that need no broker.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use howdah_core::{error::Error, job::Limits};
use howdah_engine::metrics::ConnectionCounts;
use howdah_proto::v1::{
    self,
    task_type_service_client::TaskTypeServiceClient,
    task_type_service_server::{TaskTypeService, TaskTypeServiceServer},
};
use tokio::{
    net::TcpListener,
    sync::{Semaphore, oneshot},
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Response, Status, async_trait,
    codec::CompressionEncoding,
    service::Routes,
    transport::{Channel, Endpoint},
};

use crate::{
    api::{
        Health,
        receive::{Budget, ReceiveTimeouts},
        server::{Edge, with_tools},
    },
    tls::{PeerIdentity, TlsPort},
};

/// Stub of a service. `ListTaskTypes` answers with one type, named after the length of the requested name. Special names: "who"
/// lists the caller, "panic" panics, "hang" never answers, and "wait…" waits at the gate.
struct Stub(Arc<Gate>);

/// Blocks calls until the test releases them one by one.
pub(super) struct Gate {
    entered: Semaphore,
    open: Semaphore,
    inside: AtomicUsize,
    most_inside: AtomicUsize,
}

impl Gate {
    /// Waits until one more call has reached the gate.
    pub(super) async fn entered(&self) {
        timeout(TIMEOUT, self.entered.acquire()).await.expect("a call inside").unwrap().forget();
    }

    /// Lets this many calls through, now or when they arrive.
    pub(super) fn open(&self, calls: usize) {
        self.open.add_permits(calls);
    }

    /// Returns the highest number of calls that have waited at the gate at the same time.
    pub(super) fn most_inside(&self) -> usize {
        self.most_inside.load(Ordering::SeqCst)
    }

    async fn pass(&self) {
        let inside = Inside(self);
        let now = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_inside.fetch_max(now, Ordering::SeqCst);
        self.entered.add_permits(1);
        self.open.acquire().await.unwrap().forget();
        drop(inside);
    }
}

/// Guard of a call at the gate. A cancelled call leaves the gate too, when the guard is dropped.
struct Inside<'a>(&'a Gate);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Time limit for each step of a test.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

#[async_trait]
impl TaskTypeService for Stub {
    async fn list_task_types(
        &self,
        request: Request<v1::ListTaskTypesRequest>,
    ) -> Result<Response<v1::ListTaskTypesResponse>, Status> {
        let caller = PeerIdentity::get(request.extensions()).map(|identity| identity.name.to_string());
        let name = request.into_inner().task_type;
        if name.starts_with("wait") {
            self.0.pass().await;
        }
        match name.as_str() {
            "panic" => panic!("as asked"),
            "who" => {
                let task_types = vec![v1::TaskType { name: caller.unwrap_or_default(), ..Default::default() }];
                Ok(Response::new(v1::ListTaskTypesResponse { task_types, ..Default::default() }))
            }
            "hang" => {
                self.0.entered.add_permits(1);
                std::future::pending().await
            }
            _ => {
                let task_types = vec![v1::TaskType { name: name.len().to_string(), ..Default::default() }];
                Ok(Response::new(v1::ListTaskTypesResponse { task_types, ..Default::default() }))
            }
        }
    }

    async fn get_stats(&self, _: Request<v1::GetStatsRequest>) -> Result<Response<v1::GetStatsResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn update_task_type(
        &self,
        _: Request<v1::UpdateTaskTypeRequest>,
    ) -> Result<Response<v1::UpdateTaskTypeResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn pause_limit_key(
        &self,
        _: Request<v1::PauseLimitKeyRequest>,
    ) -> Result<Response<v1::PauseLimitKeyResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn update_limit_key(
        &self,
        _: Request<v1::UpdateLimitKeyRequest>,
    ) -> Result<Response<v1::UpdateLimitKeyResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn resume_limit_key(
        &self,
        _: Request<v1::ResumeLimitKeyRequest>,
    ) -> Result<Response<v1::ResumeLimitKeyResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn list_limit_keys(
        &self,
        _: Request<v1::ListLimitKeysRequest>,
    ) -> Result<Response<v1::ListLimitKeysResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }
}

/// A running server.
pub(super) struct Running {
    pub(super) address: SocketAddr,
    pub(super) health: Health,
    pub(super) counts: ConnectionCounts,
    pub(super) gate: Arc<Gate>,
    budget: Arc<Budget>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<Result<(), Error>>,
}

/// Maximum message size of the stub, in bytes.
pub(super) const MESSAGE_BYTES: usize = 1 << 20;

/// Time limits of the server. The defaults exceed the duration of any test, so that only the tested limit applies.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) preface: Duration,
    pub(super) call: Duration,
    pub(super) drain: Duration,
    pub(super) message: ReceiveTimeouts,
}

impl Default for Times {
    fn default() -> Self {
        let long = 2 * TIMEOUT;
        let message = ReceiveTimeouts { room: long, message: long, mib: long, held: long, end: long, answer: long };
        Self { preface: long, call: long, drain: long, message }
    }
}

/// Starts a server with these limits.
pub(super) async fn serve(limits: Limits) -> Running {
    serve_with(limits, Times::default()).await
}

/// Starts a server with these limits and time limits.
pub(super) async fn serve_with(limits: Limits, times: Times) -> Running {
    serve_tls(limits, times, None).await
}

/// Starts a server with these limits and time limits, with or without TLS.
pub(super) async fn serve_tls(limits: Limits, times: Times, tls: Option<Arc<TlsPort>>) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (health, counts) = (Health::new().await, ConnectionCounts::default());
    let gate = Arc::new(Gate {
        entered: Semaphore::new(0),
        open: Semaphore::new(0),
        inside: AtomicUsize::new(0),
        most_inside: AtomicUsize::new(0),
    });
    let stub = TaskTypeServiceServer::new(Stub(gate.clone()))
        .accept_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(MESSAGE_BYTES);
    let routes = with_tools(Routes::new(stub), &health);
    let budget = Arc::new(Budget::new(&limits, times.message));
    let edge = Edge {
        tls,
        access: None,
        health: health.clone(),
        stopping: CancellationToken::new(),
        counts: counts.clone(),
        database: None,
        preface: times.preface,
        call: times.call,
        budget: budget.clone(),
    };
    let (stop, stopped) = oneshot::channel();
    let served = tokio::spawn(async move {
        let shutdown = async { drop(stopped.await) };
        edge.serve(listener, routes, &limits, shutdown, times.drain).await
    });
    Running { address, health, counts, gate, budget, stop, served }
}

impl Running {
    /// Waits until the server has accepted this many connections.
    pub(super) async fn accepted(&self, connections: u64) {
        self.until(|running| running.counts.accepted.get() >= connections).await;
    }

    /// Waits until large messages use this much memory.
    pub(super) async fn taken(&self, bytes: usize) {
        self.until(|running| running.budget.large.used() >= bytes).await;
    }

    /// Waits until small messages use no memory.
    pub(super) async fn freed(&self) {
        self.until(|running| running.budget.small.used() + running.budget.large.used() == 0).await;
    }

    /// Waits for a condition by polling it, because the counters send no notification.
    async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        let asking = async {
            while !is_so(self) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(TIMEOUT, asking).await.expect("the condition holds in time");
    }

    pub(super) async fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }

    pub(super) async fn client(&self) -> TaskTypeServiceClient<Channel> {
        TaskTypeServiceClient::new(self.channel().await)
    }

    pub(super) async fn stop(self) {
        self.stop.send(()).unwrap();
        timeout(TIMEOUT, self.served).await.expect("the end").unwrap().unwrap();
    }
}

pub(super) fn named(task_type: impl Into<String>) -> v1::ListTaskTypesRequest {
    v1::ListTaskTypesRequest { task_type: task_type.into(), ..Default::default() }
}

//! Handlers and limits of a worker.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    future::Future,
    panic::resume_unwind,
    sync::Arc,
    time::Duration,
};

use futures::FutureExt as _;
use serde::de::DeserializeOwned;
use tokio::task::spawn_blocking;

use crate::{Client, Result, setters::setters};

use super::{
    handle::{WorkerHandle, WorkerReport},
    handler::{self, Handler, TaskTypes},
    job::Job,
    outcome::{IntoOutcome, Outcome},
    session,
};

/// Builds a worker from handlers and limits; see [`Client::worker`].
#[must_use = "a builder does nothing until it is built"]
pub struct WorkerBuilder {
    client: Client,
    /// Handlers by task type, each with its concurrency. A handler replaces an earlier one of the same type.
    handlers: BTreeMap<String, (Handler, usize)>,
    window: Option<usize>,
    config: Config,
}

/// The settings of a worker that do not change while it runs.
#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) types: Vec<TypeConfig>,
    /// Index in `types` by name of the task type.
    pub(crate) index: HashMap<String, usize>,
    /// Number of concurrent handlers over all task types.
    pub(crate) concurrency: usize,
    pub(crate) window_bytes: i64,
    pub(crate) max_message_bytes: usize,
    pub(crate) labels: HashMap<String, String>,
    pub(crate) max_jobs: Option<u64>,
    pub(crate) stop_timeout: Duration,
    pub(crate) abort_cancelled: bool,
    pub(crate) liveness: Option<Duration>,
}

#[derive(Clone)]
pub(crate) struct TypeConfig {
    pub(crate) name: String,
    pub(crate) handler: Handler,
    pub(crate) concurrency: usize,
    pub(crate) window: usize,
}

impl WorkerBuilder {
    pub(crate) fn new(client: Client) -> Self {
        let client_label = concat!("howdah-client/", env!("CARGO_PKG_VERSION"));
        Self {
            config: Config {
                types: Vec::new(),
                index: HashMap::new(),
                concurrency: 16,
                window_bytes: 0,
                max_message_bytes: client.settings().max_message_bytes,
                labels: HashMap::from([("client".to_owned(), client_label.to_owned())]),
                max_jobs: None,
                stop_timeout: Duration::from_secs(30),
                abort_cancelled: false,
                liveness: None,
            },
            client,
            handlers: BTreeMap::new(),
            window: None,
        }
    }

    /// Handles a task type, or several with one handler.
    ///
    /// The handler returns any type that implements [`IntoOutcome`]. A panic is caught and counts as a failure, after which the job
    /// is retried.
    pub fn handle<F, Fut>(self, types: impl TaskTypes, handler: F) -> Self
    where
        F: Fn(Job) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        self.handle_with(types, usize::MAX, handler)
    }

    /// Like [`handle`](Self::handle), with a concurrency for each of these types, at most the worker's
    /// [`concurrency`](Self::concurrency).
    pub fn handle_with<F, Fut>(mut self, types: impl TaskTypes, concurrency: usize, handler: F) -> Self
    where
        F: Fn(Job) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        let handler: Handler = Arc::new(move |job| handler(job).map(IntoOutcome::into_outcome).boxed());
        for name in types.names() {
            self.handlers.insert(name, (handler.clone(), concurrency));
        }
        self
    }

    /// Like [`handle`](Self::handle), with the payload parsed as JSON; an empty one is `null`. If it does not parse, the job is
    /// dead at once, because a retry could not succeed.
    pub fn handle_json<T, F, Fut>(self, types: impl TaskTypes, handler: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(T, Job) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        self.handle(types, handler::typed(handler, Job::json))
    }

    /// Like [`handle`](Self::handle), with the payload parsed as a protobuf message. If it does not parse, the job is dead at once.
    pub fn handle_message<T, F, Fut>(self, types: impl TaskTypes, handler: F) -> Self
    where
        T: prost::Message + Default + 'static,
        F: Fn(T, Job) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        self.handle(types, handler::typed(handler, |job| T::decode(job.payload.clone())))
    }

    /// Like [`handle`](Self::handle), for a blocking function. The function runs on tokio's pool of blocking threads, which
    /// has 512 threads by default.
    pub fn handle_blocking<F, R>(self, types: impl TaskTypes, handler: F) -> Self
    where
        F: Fn(Job) -> R + Send + Sync + 'static,
        R: IntoOutcome + Send + 'static,
    {
        let handler = Arc::new(handler);
        self.handle(types, move |job| {
            let handler = handler.clone();
            async move {
                match spawn_blocking(move || handler(job).into_outcome()).await {
                    Ok(outcome) => outcome,
                    Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
                    // The runtime is shutting down and has not run the handler.
                    Err(_) => Outcome::release(),
                }
            }
        })
    }

    setters! {
        /// Sets the number of concurrent handlers, over all task types, at least 1. Default: 16.
        ///
        /// It is also the window of each type, so a worker of several types may receive more jobs than it has slots. A job that
        /// has waited for a slot for a second is released for another worker, and the windows shrink to the free slots for a
        /// while.
        concurrency(handlers: usize) => config.concurrency = handlers.max(1);

        /// Sets the number of jobs of each task type that the worker holds at once (prefetch). Default: its concurrency. A larger
        /// window hides the round trip to the broker when jobs are short. At most 100,000.
        window(jobs: usize) => window = Some(jobs);

        /// Sets the maximum bytes of payloads and headers of each task type that the worker holds at once. Default: 64 MiB. A larger
        /// job is never sent.
        window_bytes(bytes: u64) => config.window_bytes = i64::try_from(bytes).unwrap_or(i64::MAX);

        /// Sets the largest message that the worker accepts, in bytes; larger jobs go to other workers. Default: the client's
        /// limit.
        max_message_bytes(bytes: usize) => config.max_message_bytes = bytes;

        /// Stops the worker after it has run this many jobs, like [`WorkerHandle::stop`], but waits for handlers without a time
        /// limit.
        max_jobs(jobs: impl Into<Option<u64>>) => config.max_jobs = jobs.into();

        /// Sets the time that a stop waits for handlers. Then [`Job::cancelled`] resolves; a second later the remaining handlers
        /// are dropped, and their jobs are released. Default: 30 s.
        ///
        /// When no handler runs any more, the worker waits for the broker to confirm outcomes, at most 30 s for the next
        /// confirmation. While no stream is open, it waits at most until the end of the session's grace time, after which the
        /// leases are lost. Jobs without a confirmation are counted as [`unconfirmed`](super::WorkerReport::unconfirmed).
        stop_timeout(timeout: Duration) => config.stop_timeout = timeout;

        /// Drops a handler at its next await point when its job is cancelled. By default the handler is not dropped; it can check
        /// [`Job::cancelled`] and return.
        abort_cancelled(abort: bool) => config.abort_cancelled = abort;

        /// Sets the liveness, the silence after which the broker counts this worker as lost: 10 s to 1 h. Default: the broker's
        /// setting, 60 s. A separate thread answers the broker's heartbeat, also while handlers block the runtime.
        liveness(liveness: Duration) => config.liveness = Some(liveness);
    }

    /// Adds a label for operators, such as host or version. At most 15, of 200 bytes.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.config.labels.insert(name.into(), value.into());
        self
    }

    /// Builds the worker without starting it.
    pub fn build(self) -> Worker {
        let mut config = self.config;
        for (index, (name, (handler, concurrency))) in self.handlers.into_iter().enumerate() {
            config.index.insert(name.clone(), index);
            let concurrency = concurrency.clamp(1, config.concurrency);
            let handler = self.client.settings().middleware.around(handler);
            config.types.push(TypeConfig { name, handler, concurrency, window: self.window.unwrap_or(concurrency) });
        }
        Worker { client: self.client, config: Arc::new(config) }
    }
}

/// A worker with its handlers, ready to start. Each start opens a separate stream.
#[derive(Clone)]
pub struct Worker {
    pub(crate) client: Client,
    pub(crate) config: Arc<Config>,
}

impl Worker {
    /// Starts the worker in the background. It keeps trying to connect while no broker responds. Dropping the handle does not
    /// stop the worker.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    pub fn start(&self) -> WorkerHandle {
        session::start(self)
    }

    /// Runs until `shutdown` resolves, then stops like [`WorkerHandle::stop`]. Returns earlier if the worker ends. Dropping this
    /// future aborts the worker.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<WorkerReport> {
        let handle = self.start();
        let _abort = AbortOnDrop(&handle);
        tokio::select! {
            ended = handle.joined() => return ended,
            () = shutdown => {}
        }
        handle.stop().await
    }

    /// Runs forever, or until [`max_jobs`](WorkerBuilder::max_jobs) are done.
    pub async fn run(self) -> Result<WorkerReport> {
        self.run_until(std::future::pending()).await
    }
}

/// Aborts a worker when it is dropped. It has no effect on a worker that has ended.
struct AbortOnDrop<'a>(&'a WorkerHandle);

impl Drop for AbortOnDrop<'_> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types: Vec<&str> = self.config.types.iter().map(|t| t.name.as_str()).collect();
        f.debug_struct("Worker").field("types", &types).finish_non_exhaustive()
    }
}

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types: Vec<&String> = self.handlers.keys().collect();
        f.debug_struct("WorkerBuilder").field("types", &types).finish_non_exhaustive()
    }
}

//! Builder for a worker's `Subscribe` message, with every option.

use std::future::{Future, IntoFuture};
use std::pin::Pin;

use howdah_proto::v1::{LeasedJob, Subscribe, Window};
use tonic::Status;

use super::{Service, Worker, clients::Bearer, lease};

/// Default window of test workers: maximum number of jobs that a worker holds.
const WINDOW: i32 = 10;

/// A worker that has not subscribed yet. Awaiting the value subscribes, and returns the worker after its `Welcome`.
pub struct Subscribing {
    grpc: String,
    bearer: Bearer,
    message: Subscribe,
}

impl Service {
    /// Builds a worker of one task type, with a window of ten jobs.
    pub fn worker(&self, task_type: &str) -> Subscribing {
        let window = Window { task_type: task_type.into(), jobs: WINDOW, bytes: 0 };
        let message = Subscribe { windows: vec![window], ..Subscribe::default() };
        Subscribing { grpc: self.grpc.clone(), bearer: self.bearer(), message }
    }
}

impl Subscribing {
    /// Sets the window of the last task type, in jobs.
    pub fn window(mut self, jobs: i32) -> Self {
        self.last().jobs = jobs;
        self
    }

    /// Sets the window of the last task type, in bytes.
    pub fn bytes(mut self, bytes: i64) -> Self {
        self.last().bytes = bytes;
        self
    }

    /// Adds a task type, to which later options apply.
    pub fn and(mut self, task_type: &str) -> Self {
        self.message.windows.push(Window { task_type: task_type.into(), jobs: WINDOW, bytes: 0 });
        self
    }

    pub fn max_message_bytes(mut self, bytes: i32) -> Self {
        self.message.max_message_bytes = bytes;
        self
    }

    /// Sets the liveness: how long the worker may be silent.
    pub fn liveness(mut self, liveness: std::time::Duration) -> Self {
        self.message.liveness = Some(super::wire(liveness));
        self
    }

    /// Adds a label of the worker, which operators see.
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.message.labels.insert(name.into(), value.into());
        self
    }

    /// Makes the worker resume a session after its stream broke, and report these jobs as held.
    pub fn resumes(mut self, session_id: &str, held: &[&LeasedJob]) -> Self {
        self.message.session_id = session_id.into();
        self.holds(held)
    }

    /// Makes the worker report these jobs as held.
    pub fn holds(mut self, held: &[&LeasedJob]) -> Self {
        self.message.held = held.iter().map(|job| lease(job)).collect();
        self
    }

    /// Subscribes and returns the worker or the error.
    pub async fn answer(self) -> Result<Worker, Status> {
        let (grpc, bearer) = (self.grpc.clone(), self.bearer.clone());
        Worker::try_subscribe_as(&grpc, bearer, self.shortest()).await
    }

    /// Subscribes, which must be refused, and returns the error. With several stores, a `Welcome` may come before the error,
    /// because an unknown type is created only after all stores have responded.
    pub async fn refused(self) -> Status {
        let mut worker = match self.answer().await {
            Ok(worker) => worker,
            Err(status) => return status,
        };
        loop {
            match worker.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended without an error"),
                Err(status) => return status,
            }
        }
    }

    /// Uses the short form of `Subscribe` (one type, one window) if it suffices.
    fn shortest(mut self) -> Subscribe {
        if let [Window { task_type, jobs, bytes: 0 }] = &self.message.windows[..] {
            // In the short form of `Subscribe`, a window of 0 means 1.
            if *jobs > 0 {
                (self.message.task_type, self.message.window) = (task_type.clone(), *jobs);
                self.message.windows.clear();
            }
        }
        self.message
    }

    fn last(&mut self) -> &mut Window {
        self.message.windows.last_mut().expect("it begins with one")
    }
}

impl IntoFuture for Subscribing {
    type Output = Worker;
    type IntoFuture = Pin<Box<dyn Future<Output = Worker> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.answer().await.expect("a welcome") })
    }
}

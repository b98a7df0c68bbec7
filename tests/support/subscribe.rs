//! Every option of a subscription, once.

use std::future::{Future, IntoFuture};
use std::pin::Pin;

use howdah_proto::v1::{LeasedJob, Subscribe, Window};
use tonic::Status;

use super::{Service, Worker, clients::Bearer, lease};

/// Jobs that a worker holds at most, where a test does not say.
const WINDOW: i32 = 10;

/// A worker to be. Awaited, it has been welcomed.
pub struct Subscribing {
    grpc: String,
    bearer: Bearer,
    message: Subscribe,
}

impl Service {
    /// A worker of a type, with a window of ten jobs.
    pub fn worker(&self, task_type: &str) -> Subscribing {
        let window = Window { task_type: task_type.into(), jobs: WINDOW, bytes: 0 };
        let message = Subscribe { windows: vec![window], ..Subscribe::default() };
        Subscribing { grpc: self.grpc.clone(), bearer: self.bearer(), message }
    }
}

impl Subscribing {
    /// Jobs of its type at once.
    pub fn window(mut self, jobs: i32) -> Self {
        self.last().jobs = jobs;
        self
    }

    /// Bytes of its type's jobs at once.
    pub fn bytes(mut self, bytes: i64) -> Self {
        self.last().bytes = bytes;
        self
    }

    /// One more type; what follows is said of this one.
    pub fn and(mut self, task_type: &str) -> Self {
        self.message.windows.push(Window { task_type: task_type.into(), jobs: WINDOW, bytes: 0 });
        self
    }

    pub fn max_message_bytes(mut self, bytes: i32) -> Self {
        self.message.max_message_bytes = bytes;
        self
    }

    /// A label for people.
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.message.labels.insert(name.into(), value.into());
        self
    }

    /// It comes back after its stream broke, and still holds these.
    pub fn resumes(mut self, session_id: &str, held: &[&LeasedJob]) -> Self {
        self.message.session_id = session_id.into();
        self.holds(held)
    }

    /// It says that it holds these.
    pub fn holds(mut self, held: &[&LeasedJob]) -> Self {
        self.message.held = held.iter().map(|job| lease(job)).collect();
        self
    }

    /// A worker, or the error.
    pub async fn answer(self) -> Result<Worker, Status> {
        let (grpc, bearer) = (self.grpc.clone(), self.bearer.clone());
        Worker::try_subscribe_as(&grpc, bearer, self.shortest()).await
    }

    /// Why it gets no stream. With several stores a Welcome may come first: a type that no store has is created when all of
    /// them have said so, and the error ends the stream.
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

    /// Where one type and a number of jobs say it all, in the short form.
    fn shortest(mut self) -> Subscribe {
        if let [Window { task_type, jobs, bytes: 0 }] = &self.message.windows[..] {
            // A window of 0 means 1 there.
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

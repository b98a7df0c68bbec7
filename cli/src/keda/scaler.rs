//! The gRPC service for KEDA. It answers from the job counts and statistics that brokers keep for other uses too.

use std::{sync::Arc, time::Duration};

use futures::future::try_join_all;
use howdah_client::{
    Client, Error,
    proto::{GetStatsRequest, ListTaskTypesRequest, Stats, StatsPeriod, TaskType},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::sleep,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, async_trait};

use super::{
    demand::{Backlog, Pace},
    metadata::Trigger,
    proto::{
        GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec, MetricValue,
        ScaledObjectRef, external_scaler_server::ExternalScaler,
    },
};

/// Name of the metric. KEDA prefixes it with the index of the trigger.
const METRIC: &str = "howdah-jobs";
/// Maximum number of concurrent streams.
const STREAMS: usize = 1_000;
/// Period for rates and mean run times. If no attempt ended in it, mean run times come from the longer period `LONG`.
const RECENT: Duration = Duration::from_secs(600);
const LONG: Duration = Duration::from_hours(24);

/// External scaler for KEDA, which answers how many replicas of a worker are needed.
#[derive(Clone, Debug)]
pub struct Scaler {
    client: Client,
    /// Interval at which a stream checks for changes.
    every: Duration,
    streams: Arc<Semaphore>,
    stop: CancellationToken,
}

impl Scaler {
    /// Creates a scaler for these brokers. `stop` ends its streams.
    pub fn new(client: Client, every: Duration, stop: CancellationToken) -> Self {
        Self { client, every, streams: Arc::new(Semaphore::new(STREAMS)), stop }
    }

    async fn is_active(&self, trigger: &Trigger) -> Result<bool, Error> {
        let backlogs = try_join_all(trigger.task_types.iter().map(|name| self.backlog(name))).await?;
        let sum = backlogs.into_iter().reduce(Backlog::plus).unwrap_or_default();
        Ok(sum.is_active(trigger.activation))
    }

    async fn places(&self, trigger: &Trigger) -> Result<f64, Error> {
        let each = trigger.task_types.iter().map(|name| async move {
            let (backlog, pace) = tokio::try_join!(self.backlog(name), self.pace(name))?;
            Ok::<_, Error>(backlog.places(pace, trigger.drain))
        });
        Ok(try_join_all(each).await?.iter().sum())
    }

    /// Job counts of a task type in all stores, from the broker's last count.
    async fn backlog(&self, task_type: &str) -> Result<Backlog, Error> {
        let request = ListTaskTypesRequest { task_type: task_type.into(), last_count: true, ..Default::default() };
        let found = self.client.find_task_types(request).await?;
        // A missing type counts as empty: KEDA may ask before the first enqueue creates the type.
        Ok(found.iter().map(backlog).reduce(Backlog::plus).unwrap_or_default())
    }

    /// Recent activity of a type; `None` if no attempt ended lately.
    async fn pace(&self, task_type: &str) -> Result<Option<Pace>, Error> {
        let (recent, seconds) = self.stats(task_type, StatsPeriod::Minute, RECENT).await?;
        let enqueued: i64 = recent.iter().map(|stats| stats.enqueued_count).sum();
        let run_seconds = match mean_run(&recent) {
            Some(mean) => Some(mean),
            None => mean_run(&self.stats(task_type, StatsPeriod::Hour, LONG).await?.0),
        };
        let enqueued_per_second = if seconds > 0.0 { enqueued as f64 / seconds } else { 0.0 };
        Ok(run_seconds.map(|run_seconds| Pace { run_seconds, enqueued_per_second }))
    }

    /// Statistics of the last `time`, and the number of seconds for which they are complete.
    async fn stats(&self, task_type: &str, period: StatsPeriod, time: Duration) -> Result<(Vec<Stats>, f64), Error> {
        let since = std::time::SystemTime::now() - time;
        let request = GetStatsRequest {
            task_type: task_type.into(),
            period: period.into(),
            since: Some(since.into()),
            ..GetStatsRequest::default()
        };
        let answer = self.client.get_stats(request).await?;
        let complete = answer.complete_time.and_then(|time| std::time::SystemTime::try_from(time).ok());
        let seconds = complete.and_then(|complete| complete.duration_since(since).ok()).unwrap_or_default();
        Ok((answer.stats, seconds.as_secs_f64()))
    }
}

fn backlog(found: &TaskType) -> Backlog {
    let counts = found.counts.unwrap_or_default();
    let count = |number: i64| u64::try_from(number).unwrap_or_default();
    let is_due = found.next_due_in.is_some_and(|time| (time.seconds, time.nanos) <= (0, 0));
    let settings = found.settings.as_ref();
    let is_paused = settings.is_some_and(|settings| settings.paused);
    Backlog {
        // A paused type counts as having no ready jobs: workers get none of its jobs, so more replicas would not help.
        ready: if is_paused { 0 } else { count(counts.ready) + u64::from(is_due) },
        running: count(counts.leased),
        max_running: settings.map(|settings| settings.max_running).filter(|most| *most > 0),
    }
}

/// Mean run time of attempts, in seconds.
fn mean_run(stats: &[Stats]) -> Option<f64> {
    let runs = stats.iter().filter_map(|stats| stats.run.as_ref());
    let (count, sum) = runs.fold((0, 0.0), |(count, sum), run| (count + run.count, sum + run.sum_seconds));
    (count > 0).then(|| sum / count as f64)
}

fn trigger(object: &ScaledObjectRef) -> Result<Trigger, Status> {
    Trigger::parse(&object.scaler_metadata).map_err(Status::invalid_argument)
}

/// Converts an error of a broker call to a status.
#[allow(clippy::needless_pass_by_value)] // for map_err
fn refused(error: Error) -> Status {
    Status::new(error.code(), format!("no answer from a broker: {error}"))
}

#[async_trait]
impl ExternalScaler for Scaler {
    async fn is_active(&self, request: Request<ScaledObjectRef>) -> Result<Response<IsActiveResponse>, Status> {
        let trigger = trigger(request.get_ref())?;
        let result = Self::is_active(self, &trigger).await.map_err(refused)?;
        Ok(Response::new(IsActiveResponse { result }))
    }

    type StreamIsActiveStream = ReceiverStream<Result<IsActiveResponse, Status>>;

    async fn stream_is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<Self::StreamIsActiveStream>, Status> {
        let trigger = trigger(request.get_ref())?;
        let room = self.streams.clone().try_acquire_owned();
        let room = room
            .map_err(|_| Status::resource_exhausted(format!("{STREAMS} streams are open already; try again later")))?;
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(self.clone().send_changes(trigger, sender, room));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn get_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<GetMetricSpecResponse>, Status> {
        let jobs = trigger(request.get_ref())?.jobs_per_replica;
        let spec = MetricSpec { metric_name: METRIC.into(), target_size: jobs.into(), target_size_float: jobs.into() };
        Ok(Response::new(GetMetricSpecResponse { metric_specs: vec![spec] }))
    }

    async fn get_metrics(&self, request: Request<GetMetricsRequest>) -> Result<Response<GetMetricsResponse>, Status> {
        let request = request.into_inner();
        if request.metric_name != METRIC {
            return Err(Status::invalid_argument(format!("metricName: is unknown; use {METRIC}")));
        }
        let trigger = trigger(&request.scaled_object_ref.unwrap_or_default())?;
        let places = self.places(&trigger).await.map_err(refused)?;
        let value =
            MetricValue { metric_name: METRIC.into(), metric_value: places.ceil() as i64, metric_value_float: places };
        Ok(Response::new(GetMetricsResponse { metric_values: vec![value] }))
    }
}

impl Scaler {
    /// Sends whether at least one replica is needed, first immediately and then on each change. An error of a broker ends the
    /// stream, and KEDA opens another one later.
    async fn send_changes(
        self,
        trigger: Trigger,
        sender: mpsc::Sender<Result<IsActiveResponse, Status>>,
        _room: OwnedSemaphorePermit,
    ) {
        let mut last = None;
        loop {
            let found = tokio::select! {
                found = Self::is_active(&self, &trigger) => found,
                () = sender.closed() => return,
                () = self.stop.cancelled() => return,
            };
            let answer = match found {
                Ok(result) if last == Some(result) => None,
                Ok(result) => {
                    last = Some(result);
                    Some(Ok(IsActiveResponse { result }))
                }
                Err(error) => Some(Err(refused(error))),
            };
            let is_last = matches!(answer, Some(Err(_)));
            if let Some(answer) = answer {
                // Waits until the client reads, so that at most one message is queued.
                tokio::select! {
                    sent = sender.send(answer) => if sent.is_err() || is_last { return },
                    () = self.stop.cancelled() => return,
                }
            }
            tokio::select! {
                () = sleep(self.every) => {}
                () = sender.closed() => return,
                () = self.stop.cancelled() => return,
            }
        }
    }
}

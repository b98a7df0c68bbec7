//! Producers. They repeat a request with its request key at different brokers until it succeeds, and record the job
//! ids.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use howdah_proto::v1::{EnqueueJobsRequest, NewJob, job_service_client::JobServiceClient};
use tokio::time::{Instant, sleep, timeout};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};
use tonic_types::StatusExt as _;

use super::{
    mix,
    record::{self, Line, Record, now},
};

/// State that all producers of a test share.
#[derive(Clone)]
pub(super) struct Production {
    /// Number of jobs that brokers have accepted so far.
    pub(super) jobs: Arc<AtomicUsize>,
    /// Number of enqueue calls that failed.
    pub(super) refused: Arc<AtomicUsize>,
    /// When set, producers begin no new requests, but still repeat a pending request until it succeeds.
    pub(super) stop: Arc<AtomicBool>,
    pub(super) mix: mix::Mix,
    /// Pause between the requests of a producer.
    pub(super) pause: Duration,
    /// Timeout of an enqueue call, after which the producer repeats it.
    pub(super) patience: Duration,
}

/// Jobs per request.
pub(super) const BATCH: usize = 20;

/// Returns one client for each broker.
pub(super) fn clients(brokers: &[String]) -> Vec<JobServiceClient<Channel>> {
    let client = |broker: &String| {
        let endpoint = Endpoint::from_shared(format!("http://{broker}")).expect("address");
        JobServiceClient::new(endpoint.connect_timeout(Duration::from_secs(2)).connect_lazy())
    };
    brokers.iter().map(client).collect()
}

/// Makes enqueue requests until `production.stop` is set.
pub(super) async fn produce(number: usize, brokers: Vec<String>, record: Record, production: Production) {
    let mut clients = clients(&brokers);
    for turn in 0.. {
        if production.stop.load(Ordering::Relaxed) {
            return;
        }
        let request = format!("p{number}-{turn}");
        let jobs = production.mix.jobs(turn, &request, BATCH);
        let stored =
            enqueue(&mut clients, number + turn, &request, jobs, &record, production.patience, &production.refused)
                .await;
        production.jobs.fetch_add(stored.len(), Ordering::Relaxed);
        sleep(production.pause).await;
    }
}

/// Environment variable that turns this test program into a producer process.
pub(super) const VARIABLE: &str = "HOWDAH_ENDURANCE_PRODUCER";
/// Name of the test that becomes a producer process if the variable is set.
pub(super) const TEST: &str = "endurance::entry_point_of_producer_processes";

/// Parameters of a producer process.
pub(super) struct Orders {
    pub(super) number: usize,
    pub(super) brokers: Vec<String>,
    pub(super) records: PathBuf,
}

impl Orders {
    pub(super) fn text(&self) -> String {
        serde_json::json!([self.number, self.brokers, self.records]).to_string()
    }
}

/// Runs a producer process: repeats the unanswered request of its killed predecessor, then continues until standard
/// input ends.
#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(orders: &str) {
    let (number, brokers, records): (usize, Vec<String>, PathBuf) = serde_json::from_str(orders).expect("orders");
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::spawn({
        let stop = stop.clone();
        move || {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            stop.store(true, Ordering::Relaxed);
            std::thread::sleep(Duration::from_secs(60));
            std::process::exit(1);
        }
    });
    let pause = Duration::from_millis(20);
    let all = (0..4).map(|part| {
        let (brokers, records, stop) = (brokers.clone(), records.clone(), stop.clone());
        tokio::spawn(async move {
            let name = format!("q{number}.{part}");
            let record = Record::open(&records, &name);
            let mut clients = clients(&brokers);
            // A producer sends one request at a time, so at most the last request of the record has no answer.
            let before = record::read_one(&records, &name);
            let requested = before.iter().filter(|line| matches!(line, Line::Requested { .. })).count();
            let answered = before.iter().filter(|line| matches!(line, Line::Accepted { .. })).count();
            for turn in answered.. {
                if stop.load(Ordering::Relaxed) && turn >= requested {
                    return;
                }
                let request = format!("{name}-{turn}");
                let jobs = mix::Mix::Plain.jobs(0, &request, BATCH);
                enqueue(&mut clients, turn, &request, jobs, &record, Duration::from_secs(8), &AtomicUsize::new(0))
                    .await;
                sleep(pause).await;
            }
        })
    });
    for part in all.collect::<Vec<_>>() {
        part.await.expect("no panic");
    }
}

/// Repeats one enqueue request until it succeeds. Returns the ids of its jobs.
pub(super) async fn enqueue(
    clients: &mut [JobServiceClient<Channel>],
    first: usize,
    request: &str,
    jobs: Vec<NewJob>,
    record: &Record,
    patience: Duration,
    refused: &AtomicUsize,
) -> Vec<i64> {
    record.write(&Line::Requested { at: now(), request: request.into() });
    let message = EnqueueJobsRequest { jobs, request_key: request.into() };
    for attempt in first.. {
        let (began, count) = (Instant::now(), clients.len());
        let client = &mut clients[attempt % count];
        let code = match timeout(patience, client.enqueue_jobs(message.clone())).await {
            Ok(Ok(answer)) => {
                let ids: Vec<i64> = answer.into_inner().jobs.iter().map(|job| job.id).collect();
                let after = began.elapsed().as_millis() as u64;
                record.write(&Line::Accepted { at: now(), request: request.into(), after, ids: ids.clone() });
                return ids;
            }
            Ok(Err(status)) => whose(&status),
            Err(_) => "hung".into(),
        };
        refused.fetch_add(1, Ordering::Relaxed);
        record.write(&Line::Refused { at: now(), code, after: began.elapsed().as_millis() as u64 });
        sleep(Duration::from_millis(rand::random_range(10..60))).await;
    }
    unreachable!("bug: the loop above ends only when the request has succeeded")
}

/// Distinguishes errors of a broker from errors of the connection to it: returns `broker:CODE` or `way:CODE`.
fn whose(status: &Status) -> String {
    let by_broker = status.get_details_error_info().is_some() && status.code() != Code::Unknown;
    format!("{}:{:?}", if by_broker { "broker" } else { "way" }, status.code())
}

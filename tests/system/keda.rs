//! Tests `howdah keda`, called in the same way as by KEDA.

use std::collections::HashMap;

use howdah_cli::keda::proto::{
    GetMetricsRequest, IsActiveResponse, ScaledObjectRef, external_scaler_client::ExternalScalerClient,
};
use howdah_proto::v1::{JobState, TaskTypeSettings};
use tonic::{
    Code, Status, Streaming,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};

use crate::{
    support::*,
    tls_server::authority::{Authority, Files},
};

/// The scaler process `howdah keda`, and a client that calls it as KEDA does.
struct Scaler {
    program: Program,
    keda: ExternalScalerClient<Channel>,
}

/// Returns a reference to a scaled object whose trigger has these metadata fields.
fn object(fields: &[(&str, &str)]) -> ScaledObjectRef {
    let all = [("scalerAddress", "scaler:7434"), ("jobsPerReplica", "10")].iter().chain(fields);
    let scaler_metadata: HashMap<_, _> = all.map(|(name, value)| (name.to_string(), value.to_string())).collect();
    ScaledObjectRef { name: "mail".into(), namespace: "default".into(), scaler_metadata }
}

impl Scaler {
    async fn start(server: &str) -> Self {
        let mut program =
            Program::start(&["keda", "--server", server, "--listen", "127.0.0.1:0", "--interval", "100ms"]);
        let ready = program.line().await;
        let address = ready.strip_prefix("ready keda=").expect(&ready);
        let keda = ExternalScalerClient::connect(format!("http://{address}")).await.expect("a scaler");
        Self { program, keda }
    }

    async fn is_active(&mut self, object: ScaledObjectRef) -> Result<bool, Status> {
        with_timeout("an answer", self.keda.is_active(object)).await.map(|answer| answer.into_inner().result)
    }

    async fn stream(&mut self, object: ScaledObjectRef) -> Streaming<IsActiveResponse> {
        with_timeout("a stream", self.keda.stream_is_active(object)).await.expect("a stream").into_inner()
    }

    async fn metrics(&mut self, object: ScaledObjectRef) -> Result<f64, Status> {
        let request = GetMetricsRequest { scaled_object_ref: Some(object), metric_name: "howdah-jobs".into() };
        let answer = with_timeout("an answer", self.keda.get_metrics(request)).await?.into_inner();
        let value = &answer.metric_values[0];
        assert_eq!((answer.metric_values.len(), value.metric_name.as_str()), (1, "howdah-jobs"));
        assert_eq!(value.metric_value, value.metric_value_float.ceil() as i64);
        Ok(value.metric_value_float)
    }

    /// Polls until the scaler returns `expected`, because brokers count periodically.
    async fn until_active(&mut self, object: ScaledObjectRef, expected: bool) {
        eventually("the expected activity", async || {
            self.is_active(object.clone()).await.expect("an answer") == expected
        })
        .await;
    }
}

#[tokio::test]
async fn the_first_job_that_can_run_starts_a_replica_and_the_last_that_runs_keeps_it() {
    let broker = TestBroker::start().await;
    let mut scaler = Scaler::start(&broker.grpc).await;
    let mail = || object(&[("taskType", "mail")]);
    assert!(!scaler.is_active(mail()).await.expect("inactive"), "a type that does not exist is active");
    let mut stream = scaler.stream(mail()).await;
    assert!(!with_timeout("the first activity", stream.message()).await.unwrap().unwrap().result);
    broker.enqueue("mail").delay(HOUR).await;
    let id = broker.enqueue("mail").await;
    assert!(with_timeout("a change of the activity", stream.message()).await.unwrap().unwrap().result);
    scaler.until_active(mail(), true).await;
    let some = || object(&[("taskType", "mail"), ("activationJobs", "5")]);
    assert!(!scaler.is_active(some()).await.expect("inactive"), "active with one job and activationJobs 5");

    let mut worker = broker.worker("mail").await;
    let job = worker.next().await;
    scaler.until_active(some(), true).await;
    worker.ack(&job).await;
    assert_eq!(broker.state(id).await, JobState::Succeeded);
    assert!(!with_timeout("a change of the activity", stream.message()).await.unwrap().unwrap().result);
    scaler.until_active(mail(), false).await;
}

#[tokio::test]
async fn jobs_of_a_paused_type_start_no_replica() {
    let broker = TestBroker::start().await;
    let mut scaler = Scaler::start(&broker.grpc).await;
    broker.enqueue_all(["a", "b"]).await;
    scaler.until_active(object(&[("taskType", "a, b")]), true).await;
    broker.set("a", TaskTypeSettings { paused: true, ..Default::default() }).await;
    scaler.until_active(object(&[("taskType", "a")]), false).await;
    scaler.until_active(object(&[("taskType", "b")]), true).await;
}

#[tokio::test]
async fn without_statistics_the_metric_is_the_number_of_jobs_up_to_max_running() {
    let broker = TestBroker::start().await;
    let mut scaler = Scaler::start(&broker.grpc).await;
    let spec =
        with_timeout("a spec", scaler.keda.get_metric_spec(object(&[("taskType", "a")]))).await.unwrap().into_inner();
    let spec = &spec.metric_specs[0];
    assert_eq!((spec.metric_name.as_str(), spec.target_size, spec.target_size_float), ("howdah-jobs", 10, 10.0));
    broker.enqueue_all((0..30).map(|_| "a")).await;
    broker.enqueue_all((0..5).map(|_| "b")).await;
    let both = || object(&[("taskType", "a,b")]);
    eventually("the value of 35 jobs", async || scaler.metrics(both()).await.expect("a value") == 35.0).await;
    broker.set("a", TaskTypeSettings { max_running: 4, ..Default::default() }).await;
    eventually("the value of the limited type", async || scaler.metrics(both()).await.expect("a value") == 9.0).await;
}

#[tokio::test]
async fn the_metric_is_the_number_of_slots_that_start_the_backlog_within_drain_seconds() {
    let broker = TestBroker::start().await;
    let mut scaler = Scaler::start(&broker.grpc).await;
    broker.enqueue_all((0..600).map(|_| "a")).await;
    // Inserts statistics of three hours ago, in which attempts of this type took 2 s on average.
    let earlier = "INSERT INTO howdah.statistics (type_id, minutes, starts, enqueued, succeeded, failed, dead, cancelled, expired,
                       wait_us, run_us, wait_buckets, wait_counts, run_buckets, run_counts)
                   SELECT id, 60, date_trunc('hour', now(), 'UTC') - interval '3 hours', 50, 50, 0, 0, 0, 0,
                          0, 100000000, '{}', '{}', '{84}', '{50}'
                   FROM howdah.task_type WHERE name = 'a'";
    broker.sql(earlier).await;
    // Before the 600 enqueues are in the statistics, the scaler's metric counts only the backlog. Afterwards the enqueue rate
    // (600 jobs in about 10 minutes) adds two slots, or a few more on a slow machine.
    let drain = |seconds: &str| object(&[("taskType", "a"), ("drainSeconds", seconds)]);
    let within = |value: f64, least: f64| (least..least + 10.0).contains(&value);
    eventually("20 slots for 600 jobs of 2 s in 60 s", async || {
        within(scaler.metrics(drain("60")).await.expect("a value"), 20.0)
    })
    .await;
    assert!(within(scaler.metrics(drain("600")).await.expect("a value"), 2.0));
    assert!(within(scaler.metrics(drain("12")).await.expect("a value"), 100.0));
}

#[tokio::test]
async fn invalid_trigger_metadata_is_refused_with_the_name_of_the_field() {
    let broker = TestBroker::start().await;
    let mut scaler = Scaler::start(&broker.grpc).await;
    let long = "9".repeat(100_000);
    let cases = [
        (object(&[]), "metadata.taskType: is missing; name the task type"),
        (object(&[("taskType", "a b")]), "metadata.taskType: \"a b\" has the character ' '"),
        (
            object(&[("taskType", "a"), ("jobsPerReplica", "0")]),
            "metadata.jobsPerReplica: \"0\" is not a number from 1 to 100000",
        ),
        (object(&[("taskType", "a"), ("drainSeconds", &long)]), "metadata.drainSeconds: \"999"),
        (
            object(&[("taskType", "a"), ("tasktype\n\x1b[2J", "a")]),
            "metadata.tasktype\\n\\u{1b}[2J: is unknown; use taskType",
        ),
        (ScaledObjectRef::default(), "metadata.taskType: is missing"),
    ];
    for (object, words) in cases {
        for status in [
            scaler.is_active(object.clone()).await.expect_err(words),
            scaler.metrics(object.clone()).await.expect_err(words),
            with_timeout("an answer", scaler.keda.get_metric_spec(object.clone())).await.expect_err(words),
            with_timeout("an answer", scaler.keda.stream_is_active(object.clone())).await.expect_err(words),
        ] {
            assert_eq!(status.code(), Code::InvalidArgument);
            assert!(status.message().starts_with(words) && status.message().len() < 300, "{}", status.message());
        }
    }
    let other = GetMetricsRequest { scaled_object_ref: Some(object(&[("taskType", "a")])), metric_name: "x".into() };
    let status = with_timeout("an answer", scaler.keda.get_metrics(other)).await.expect_err("an unknown metric");
    assert!(status.message().starts_with("metricName: is unknown"), "{}", status.message());
    let huge = object(&[("taskType", &"a,".repeat(1 << 20))]);
    assert!(scaler.is_active(huge).await.is_err());
    assert!(!scaler.is_active(object(&[("taskType", "a")])).await.expect("it goes on"));
}

#[tokio::test]
async fn calls_are_unavailable_and_streams_end_when_no_broker_is_reachable() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let other = TestBroker::on(&database).await;
    let mut scaler = Scaler::start(&format!("{},{}", broker.grpc, other.grpc)).await;
    let mail = || object(&[("taskType", "mail")]);
    broker.enqueue("mail").await;
    scaler.until_active(mail(), true).await;
    broker.stop().await;
    scaler.until_active(mail(), true).await; // answered by the other broker
    let mut stream = scaler.stream(mail()).await;
    assert!(with_timeout("the first activity", stream.message()).await.unwrap().unwrap().result);
    other.stop().await;
    let status = with_timeout("the end of the stream", stream.message()).await.expect_err("no broker");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(status.message().starts_with("no answer from a broker"), "{status:?}");
    assert_eq!(scaler.is_active(mail()).await.expect_err("no broker").code(), Code::Unavailable);
    assert_eq!(scaler.metrics(mail()).await.expect_err("no broker").code(), Code::Unavailable);
}

#[tokio::test]
async fn a_scaler_that_is_stopped_ends_its_streams_and_itself() {
    let broker = TestBroker::start().await;
    let mut scaler = Scaler::start(&broker.grpc).await;
    let mut stream = scaler.stream(object(&[("taskType", "mail")])).await;
    assert!(!with_timeout("the first", stream.message()).await.unwrap().unwrap().result);
    scaler.program.signal(rustix::process::Signal::TERM);
    assert_eq!(scaler.program.ended().await.code(), Some(0));
    let (status, _, error) = run(&["keda", "--listen", "0.0.0.0:0"], b"").await;
    assert_eq!(status.code(), Some(2));
    assert!(error.contains("--insecure-listen") && error.contains("--serve-tls-client-ca"), "{error}");
}

#[tokio::test]
async fn with_a_client_ca_only_clients_with_a_valid_certificate_are_answered() {
    let broker = TestBroker::start().await;
    let (own, foreign) = (Authority::new("own"), Authority::new("foreign"));
    let (files, ca) = (own.broker("scaler"), own.ca());
    let tls = [
        ["--serve-tls-cert", files.cert()],
        ["--serve-tls-key", files.key()],
        ["--serve-tls-client-ca", ca.to_str().unwrap()],
    ];
    // Starts the scaler on a non-loopback address.
    let args = [&["keda", "--server", &broker.grpc, "--listen", "0.0.0.0:0"], tls.as_flattened()].concat();
    let mut program = Program::start(&args);
    let ready = program.line().await;
    let port = ready.rsplit(':').next().expect("a port").to_owned();
    let ask = async |shown: Option<Files>| {
        let read = |path: &std::path::Path| std::fs::read(path).expect("a file");
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&ca)));
        if let Some(files) = shown {
            tls = tls.identity(Identity::from_pem(read(&files.cert), read(&files.key)));
        }
        let endpoint = Endpoint::from_shared(format!("https://localhost:{port}")).unwrap().tls_config(tls).unwrap();
        let mut keda = ExternalScalerClient::new(endpoint.connect_lazy());
        with_timeout("an answer", keda.is_active(object(&[("taskType", "mail")]))).await
    };
    assert!(!ask(Some(own.client("urn:keda"))).await.expect("an answer").into_inner().result);
    for wrong in [None, Some(foreign.client("urn:keda")), Some(own.expired_client())] {
        ask(wrong).await.expect_err("no good certificate");
    }
}

//! Tests nginx with default limits between clients and brokers, and addresses that never respond. Without nginx, a test prints
//! that it was skipped. `tests/system/proxies/matrix.py` tests every client with more proxies.

use std::process::Stdio;

use howdah_proto::v1::JobState;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::TcpListener,
    process::{Child, Command},
};

use crate::support::*;

/// A running nginx with default limits; killed when dropped.
struct Nginx {
    _process: Child,
    _dir: tempfile::TempDir,
    address: String,
}

/// Starts nginx in front of a broker. `None` if nginx is not installed.
async fn nginx(broker: &TestBroker) -> Option<Nginx> {
    let (dir, address) = (open_directory(), unused_address());
    let at = dir.path().display();
    let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary: String = kinds.iter().map(|kind| format!("{kind}_temp_path {at}/{kind};\n")).collect();
    let upstream = broker.grpc.trim_start_matches("http://");
    let text = format!(
        "daemon off; pid {at}/pid; error_log stderr notice;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}\
         server {{ listen {address} http2; location / {{ grpc_pass grpc://{upstream}; }} }}\n}}\n"
    );
    let file = dir.path().join("nginx.conf");
    std::fs::write(&file, text).expect("its configuration");
    let mut command = Command::new("nginx");
    command.args(["-p", &at.to_string(), "-e", "stderr", "-c"]).arg(&file);
    let mut process = match command.kill_on_drop(true).stderr(Stdio::piped()).spawn() {
        Ok(process) => process,
        Err(error) => {
            eprintln!("!!! nginx cannot be run ({error}): clients behind a proxy are NOT tested");
            return None;
        }
    };
    let mut log = BufReader::new(process.stderr.take().expect("stderr")).lines();
    with_timeout("nginx", async {
        while !log.next_line().await.expect("its log").expect("it ended").contains("start worker process ") {}
    })
    .await;
    // Keeps reading nginx's log, because nginx would block on a full pipe.
    tokio::spawn(async move { while log.next_line().await.is_ok_and(|line| line.is_some()) {} });
    Some(Nginx { _process: process, _dir: dir, address: format!("http://{address}") })
}

/// Runs `howdah work --exec` through the proxy until no job is left.
async fn work(through: &Nginx, task_type: &str, command: &str) {
    let args = ["work", task_type, "--server", &through.address, "--jobs", "30", "--drain", "--exec", command];
    let (status, _, errors) = run(&args, b"").await;
    assert!(status.success(), "{status}: {errors}");
}

#[tokio::test]
async fn results_that_exceed_a_proxys_limit_together_are_all_stored() {
    let broker = TestBroker::start().await;
    let Some(proxy) = nginx(&broker).await else { return };
    broker.enqueue_all((0..30).map(|_| new_job("t", ""))).await;
    // All 30 handlers run concurrently and end at the same time, so their results together exceed the proxy's size
    // limit.
    work(&proxy, "t", "sleep 1; head -c 102400 /dev/zero").await;
    let stored = "SELECT count(*) FROM howdah.job WHERE state = 'succeeded' AND octet_length(result) = 102400";
    assert_eq!(broker.count(stored).await, 30);
}

#[tokio::test]
async fn a_result_or_payload_that_a_proxy_refuses_fails_for_good_with_http_413() {
    let broker = TestBroker::start().await;
    let Some(proxy) = nginx(&broker).await else { return };
    let id = broker.enqueue_all([new_job("t", "")]).await[0];
    work(&proxy, "t", "head -c 1048576 /dev/zero").await;
    let job = broker.job(id).await;
    assert_eq!((job.state(), job.attempt), (JobState::Dead, 1));
    let error = &job.failures[0].error;
    assert!(error.contains("HTTP 413") && error.contains("client_max_body_size"), "{error}");
    let args = ["enqueue", "t", "-", "--server", &proxy.address];
    let (status, _, errors) = run(&args, &vec![b'x'; 1 << 20]).await;
    assert!(!status.success() && errors.contains("HTTP 413") && errors.contains(&proxy.address), "{errors}");
}

/// Opens a listener that accepts connections and never responds, and returns it with its address.
async fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("an address");
    let address = format!("http://{}", listener.local_addr().expect("its address"));
    (listener, address)
}

#[tokio::test]
async fn commands_go_on_to_the_second_address_when_the_first_is_silent() {
    let broker = TestBroker::start().await;
    let (_listener, first) = silent().await;
    let servers = format!("{first},{}", broker.grpc);
    let (status, id, errors) = run(&["enqueue", "t", "x", "--server", &servers], b"").await;
    assert!(status.success(), "{errors}");
    let waiting = ["wait", id.trim(), "--timeout", "20s", "--server", &servers];
    let working = ["work", "t", "--max-jobs", "1", "--exec", "true", "--server", &servers];
    let (waited, worked) = tokio::join!(run(&waiting, b""), run(&working, b""));
    assert!(worked.0.success(), "{}", worked.2);
    assert!(waited.0.success() && waited.1.contains("succeeded"), "{waited:?}");
}

#[tokio::test]
async fn howdah_wait_ends_after_its_timeout_when_no_server_answers() {
    let ((_one, first), (_other, second)) = (silent().await, silent().await);
    let servers = format!("{first},{second}");
    let (status, _, errors) = run(&["wait", "1", "--timeout", "3s", "--server", &servers], b"").await;
    assert!(!status.success() && errors.contains("no answer within 3s"), "{errors}");
}

//! Tests reloading certificates while the broker runs.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use howdah_client::NewJob;
use rustix::process::Signal;
use rustls::HandshakeKind;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};
use tokio_rustls::client::TlsStream;

use super::{authority::replace, *};

/// The connection preface of HTTP/2, with an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

async fn serve(files: &Files, more: &[&str]) -> ServingProgram {
    let args = [&["--tls-cert", files.cert(), "--tls-key", files.key()], more].concat();
    Program::serve(&database().await, &args).await
}

async fn metric(broker: &Service, authority: &Authority, shows: Option<&Files>, name: &str) -> f64 {
    let http = broker.http.trim_start_matches("http://");
    let text = raw::get(http, "/metrics", raw::config(authority, Some("http/1.1"), shows)).await;
    let text = stores::own_metrics(&text);
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {text}"));
    line.trim().parse().expect("a number")
}

/// Changes files, sends SIGHUP, and waits until the broker's metric `counter` has increased.
async fn reload(
    broker: &ServingProgram,
    authority: &Authority,
    shows: Option<&Files>,
    counter: &str,
    change: impl FnOnce(),
) {
    let before = metric(broker, authority, shows, counter).await;
    change();
    broker.program.signal(Signal::HUP);
    eventually(counter, async || metric(broker, authority, shows, counter).await > before).await;
}

const RELOADS: &str = "howdah_tls_reloads_total";
const FAILURES: &str = "howdah_tls_reload_failures_total";

/// Returns the certificate that the broker presents to clients.
async fn shown(broker: &Service, authority: &Authority) -> Vec<u8> {
    let stream = raw::connect(broker.address(), raw::config(authority, Some("h2"), None)).await.expect("a handshake");
    stream.get_ref().1.peer_certificates().expect("a certificate")[0].to_vec()
}

#[tokio::test]
async fn a_certificate_changes_under_load_and_no_call_fails() {
    let authority = Authority::new("own");
    let files = authority.broker("server");
    let broker = serve(&files, &[]).await;
    let (address, tls) = (https(&broker), trust(&authority));
    let stop = Arc::new(AtomicBool::new(false));
    let mut load = JoinSet::new();
    for number in 0..4 {
        let (address, tls, stop) = (address.clone(), tls.clone(), stop.clone());
        load.spawn(async move {
            let builder = || Client::builder().endpoint(&address).tls(tls.clone()).connect_timeout(PATIENCE);
            let connect = async || builder().connect().await.expect("connect");
            let (kept, mut calls) = (connect().await, 0);
            // Half of the tasks keep one connection, and half open a connection for each call. No call may fail,
            // because the tasks do not repeat calls.
            while !stop.load(Relaxed) {
                let client = if number % 2 == 0 { kept.clone() } else { connect().await };
                client
                    .jobs()
                    .get_job(howdah_proto::v1::GetJobRequest { id: 1 })
                    .await
                    .map_or_else(|status| assert_eq!(status.code(), tonic::Code::NotFound, "{status:?}"), drop);
                calls += 1;
            }
            calls
        });
    }
    let mut before = shown(&broker, &authority).await;
    for _ in 0..5 {
        reload(&broker, &authority, None, RELOADS, || drop(authority.broker("server"))).await;
        let now = shown(&broker, &authority).await;
        assert_ne!(now, before, "new connections see the new certificate");
        before = now;
    }
    stop.store(true, Relaxed);
    for calls in with_timeout("the end of the load", load.join_all()).await {
        assert!(calls > 0);
    }
}

#[tokio::test]
async fn a_certificate_that_changes_is_found_without_a_signal() {
    let authority = Authority::new("own");
    let broker = serve(&authority.broker("server"), &[]).await;
    let before = shown(&broker, &authority).await;
    authority.broker("server");
    eventually("the new certificate", async || shown(&broker, &authority).await != before).await;
    assert!(metric(&broker, &authority, None, RELOADS).await >= 1.0);
}

#[tokio::test]
async fn bad_files_are_counted_once_and_the_old_ones_serve() {
    let authority = Authority::new("own");
    let files = authority.broker("server");
    let broker = serve(&files, &[]).await;
    let before = shown(&broker, &authority).await;
    let expires = metric(&broker, &authority, None, "howdah_tls_certificate_expires_seconds").await;
    assert!(expires > 4e9, "certificates of rcgen are valid beyond 2096: {expires}");
    for bad in ["", "junk", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        reload(&broker, &authority, None, FAILURES, || replace(&files.cert, bad)).await;
        assert_eq!(shown(&broker, &authority).await, before);
    }
    // Copies a certificate that does not belong to the broker's key.
    let other = authority.broker("other");
    let copy = |from: &Path, to: &Path| replace(to, &fs::read_to_string(from).expect("a file"));
    reload(&broker, &authority, None, FAILURES, || copy(&other.cert, &files.cert)).await;
    reload(&broker, &authority, None, FAILURES, || fs::remove_file(&files.key).expect("remove")).await;
    let failures = metric(&broker, &authority, None, FAILURES).await;
    let client = connect(&broker, trust(&authority)).await.expect("connect");
    client.enqueue(NewJob::new("t")).await.expect("enqueue");
    reload(&broker, &authority, None, RELOADS, || copy(&other.key, &files.key)).await;
    assert_eq!(metric(&broker, &authority, None, FAILURES).await, failures, "an unchanged file is reported once");
    assert_ne!(shown(&broker, &authority).await, before);
}

/// Whether the broker answers an HTTP/2 ping; false if the connection ends.
async fn answers(stream: &mut TlsStream<TcpStream>) -> bool {
    if stream.write_all(b"\0\0\x08\x06\0\0\0\0\0howdah!!").await.is_err() {
        return false;
    }
    let mut answer = Vec::new();
    while !answer.ends_with(b"howdah!!") {
        let Ok(byte) = with_timeout("the answer to a ping, or the end", stream.read_u8()).await else { return false };
        answer.push(byte);
    }
    true
}

/// Opens an HTTP/2 connection. `None` if the broker closes it.
async fn gets_in(broker: &Service, config: Arc<rustls::ClientConfig>) -> Option<HandshakeKind> {
    let mut stream = raw::connect(broker.address(), config).await.ok()?;
    stream.write_all(PREFACE).await.ok()?;
    let kind = stream.get_ref().1.handshake_kind();
    answers(&mut stream).await.then_some(kind)?
}

#[tokio::test]
async fn a_client_that_is_revoked_is_cut_off_and_the_others_go_on() {
    let authority = Authority::new("own");
    let (client, operator) = (authority.revoked_client(666), authority.client("urn:operator"));
    let (ca, crl) = (authority.ca().display().to_string(), authority.revocations(&[]).display().to_string());
    let files = authority.broker("server");
    let broker = serve(&files, &["--tls-client-ca", &ca, "--tls-client-crl", &crl]).await;
    let open = async |files: &Files| {
        let config = raw::config(&authority, Some("h2"), Some(files));
        let mut stream = raw::connect(broker.address(), config).await.expect("a handshake");
        stream.write_all(PREFACE).await.expect("write");
        stream
    };
    let (mut revoked, mut good) = (open(&client).await, open(&operator).await);
    assert!(answers(&mut revoked).await && answers(&mut good).await);
    let revoke = || drop(authority.revocations(&[666]));
    reload(&broker, &authority, Some(&operator), RELOADS, revoke).await;
    raw::until_closed(&mut revoked).await;
    assert!(answers(&mut good).await);
}

#[tokio::test]
async fn a_revoked_client_does_not_get_in_again_with_the_ticket_of_an_earlier_connection() {
    let authority = Authority::new("own");
    let (client, operator) = (authority.revoked_client(666), authority.client("urn:operator"));
    let (ca, crl) = (authority.ca().display().to_string(), authority.revocations(&[]).display().to_string());
    let files = authority.broker("server");
    let broker = serve(&files, &["--tls-client-ca", &ca, "--tls-client-crl", &crl]).await;
    let config = raw::config(&authority, Some("h2"), Some(&client));
    assert_eq!(gets_in(&broker, config.clone()).await, Some(HandshakeKind::Full));
    assert_eq!(
        gets_in(&broker, config.clone()).await,
        Some(HandshakeKind::Resumed),
        "the second handshake resumes the session"
    );
    let revoke = || drop(authority.revocations(&[666]));
    reload(&broker, &authority, Some(&operator), RELOADS, revoke).await;
    assert_eq!(gets_in(&broker, config).await, None);
}

//! Tests that clients that stall or use another protocol are disconnected in time and do not affect other clients.

use howdah_client::NewJob;
use rustls::ClientConnection;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::*;

/// A complete ClientHello.
fn hello(authority: &Authority) -> Vec<u8> {
    let name = "localhost".try_into().expect("a name");
    let mut client = ClientConnection::new(raw::config(authority, Some("h2"), None), name).expect("a client");
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).expect("write");
    bytes
}

async fn connect_and_send(broker: &Service, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(broker.address()).await.expect("connect");
    stream.write_all(bytes).await.expect("write");
    stream
}

async fn works(broker: &Service, authority: &Authority) {
    let client = connect(broker, trust(authority)).await.expect("connect");
    client.enqueue(NewJob::new("t")).await.expect("enqueue");
}

#[tokio::test]
async fn clients_that_stall_in_the_handshake_hold_up_no_others_and_are_closed() {
    let authority = Authority::new("own");
    let broker = broker_with(&authority.broker("server"), |_| {}).await;
    let hello = hello(&authority);
    let mut stalled = Vec::new();
    // In each state of the handshake, opens more connections than the number of handshakes that may run at once.
    for begun in [&[][..], &hello[..1], &hello[..hello.len() / 2], &hello] {
        for _ in 0..300 {
            stalled.push(connect_and_send(&broker, begun).await);
        }
    }
    works(&broker, &authority).await;
    for mut stream in stalled {
        raw::until_closed(&mut stream).await;
    }
    works(&broker, &authority).await;
}

#[tokio::test]
async fn a_silent_http_client_is_closed_while_probes_are_answered() {
    let authority = Authority::new("own");
    let broker = broker_with(&authority.broker("server"), |_| {}).await;
    let http = broker.http.trim_start_matches("http://");
    let mut silent = TcpStream::connect(http).await.expect("connect");
    let config = raw::config(&authority, None, None);
    assert!(raw::get(http, "/readyz", config).await.starts_with("HTTP/1.1 200"), "ALPN is not needed here");
    raw::until_closed(&mut silent).await;
}

#[tokio::test]
async fn a_client_that_does_not_offer_http_2_is_closed() {
    let authority = Authority::new("own");
    let broker = broker_with(&authority.broker("server"), |_| {}).await;
    let mut without = raw::connect(broker.address(), raw::config(&authority, None, None)).await.expect("a handshake");
    assert!(raw::until_closed(&mut without).await.is_empty());
    let other = raw::connect(broker.address(), raw::config(&authority, Some("http/1.1"), None)).await;
    let error = other.expect_err("no protocol in common").to_string();
    assert!(error.contains("NoApplicationProtocol"), "{error}");
    works(&broker, &authority).await;
}

#[tokio::test]
async fn tls_1_1_is_refused() {
    let authority = Authority::new("own");
    let broker = broker_with(&authority.broker("server"), |_| {}).await;
    let body = [&[3, 2][..], &[7; 32], &[0, 0, 2, 0xc0, 0x13, 1, 0]].concat();
    let message = [&[1, 0, 0, body.len() as u8][..], &body].concat();
    let record = [&[22, 3, 1, 0, message.len() as u8][..], &message].concat();
    let answer = raw::until_closed(&mut connect_and_send(&broker, &record).await).await;
    let (alert, fatal) = (21, 2);
    assert_eq!((answer[0], answer[5]), (alert, fatal), "{answer:?}");
}

#[tokio::test]
async fn a_client_without_tls_is_told_to_use_it_on_both_ports() {
    let authority = Authority::new("own");
    let broker = broker_with(&authority.broker("server"), |_| {}).await;
    let http = broker.http.trim_start_matches("http://");
    for address in [broker.address(), http] {
        let mut stream = TcpStream::connect(address).await.expect("connect");
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("write");
        let mut answer = String::new();
        with_timeout("an answer", stream.read_to_string(&mut answer)).await.expect("read");
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("needs TLS: use https://"), "{answer}");
    }
    let mut other = connect_and_send(&broker, b"\x05\x01\x00").await;
    assert!(raw::until_closed(&mut other).await.is_empty());
    let counted = "howdah_tls_handshake_failures_total{reason=\"plaintext\"} 3";
    let config = raw::config(&authority, None, None);
    eventually(counted, async || {
        stores::own_metrics(&raw::get(http, "/metrics", config.clone()).await).contains(counted)
    })
    .await;
}

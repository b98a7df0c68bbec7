//! Tests live figures in the operator page.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{access::fixture::Guarded, support::*};

/// A stream of live figures, and the data received so far.
struct Live {
    stream: TcpStream,
    text: String,
}

impl Live {
    async fn open(broker: &Service, headers: &str) -> Self {
        let mut stream = TcpStream::connect(broker.http.trim_start_matches("http://")).await.expect("connect");
        let request = format!("GET /ui/live HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.expect("write");
        Self { stream, text: String::new() }
    }

    /// Reads until this text arrives. Returns false at the end of the stream.
    async fn until(&mut self, text: &str) -> bool {
        while !self.text.contains(text) {
            let mut bytes = [0; 4_096];
            let read = with_timeout(text, self.stream.read(&mut bytes)).await.unwrap_or(0);
            if read == 0 {
                return false;
            }
            self.text.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
        true
    }
}

#[tokio::test]
async fn figures_come_as_they_change() {
    let broker = TestBroker::start().await;
    let mut live = Live::open(&broker, "").await;
    assert!(live.until("\"ready\":\"0\"").await && live.text.contains("text/event-stream"), "{}", live.text);
    broker.enqueue_all(["a", "b", "b"]).await;
    assert!(live.until("\"ready\":\"3\"").await, "{}", live.text);
}

#[tokio::test]
async fn the_number_of_open_live_streams_is_limited() {
    let broker = TestBroker::start().await;
    let mut open = Vec::new();
    for _ in 0..64 {
        let mut live = Live::open(&broker, "").await;
        assert!(live.until("data: ").await, "{}", live.text);
        open.push(live);
    }
    let mut more = Live::open(&broker, "").await;
    assert!(more.until("HTTP/1.1 503").await, "{}", more.text);
    open.pop();
    eventually("a stream in the place of the closed one", async || {
        let mut live = Live::open(&broker, "").await;
        live.until("\r\n\r\n").await && live.text.starts_with("HTTP/1.1 200")
    })
    .await;
}

#[tokio::test]
async fn the_streams_of_a_principal_are_counted_and_end_with_its_token() {
    let guarded = Guarded::start_with(|config| config.limits.principal_streams = Some(1)).await;
    let token = guarded.token("ann", &["read:*"]).await;
    let header = format!("Authorization: Bearer {token}\r\n");
    let mut live = Live::open(&guarded.broker, &header).await;
    assert!(live.until("data: ").await, "{}", live.text);
    let mut second = Live::open(&guarded.broker, &header).await;
    assert!(second.until("HTTP/1.1 429").await, "{}", second.text);
    let id = token.split('_').nth(1).unwrap().to_owned();
    let revoke = howdah_proto::v1::RevokeTokensRequest {
        selection: Some(howdah_proto::v1::revoke_tokens_request::Selection::Id(id)),
    };
    with_timeout("an answer", guarded.admin.access().revoke_tokens(revoke)).await.expect("revoke");
    assert!(live.until("\r\n0\r\n\r\n").await, "the stream ends: {}", live.text);
}

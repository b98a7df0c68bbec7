//! A broker in this process.

use howdah_server::{
    config::Config,
    serve::{self, Listeners, StartError},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::oneshot,
    task::JoinHandle,
};

use super::{TestDatabase, soon};

/// A broker that drains when it is stopped; a test that ends without that drops it hard.
pub struct TestBroker {
    /// Where it serves gRPC, with the scheme.
    pub grpc: String,
    /// Where it serves HTTP, with the scheme.
    pub http: String,
    stop: Option<oneshot::Sender<()>>,
    run: JoinHandle<Result<(), StartError>>,
}

impl TestBroker {
    /// With the defaults.
    pub async fn start(database: &TestDatabase) -> Self {
        Self::start_with(database, |_| {}).await
    }

    /// With a configuration of its own.
    pub async fn start_with(database: &TestDatabase, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::new(&database.url);
        config.listen = ([127, 0, 0, 1], 0).into();
        config.http = ([127, 0, 0, 1], 0).into();
        change(&mut config);
        let listeners = Listeners::bind(&config).await.expect("bind");
        let (stop, stopped) = oneshot::channel::<()>();
        let (is_ready, ready) = oneshot::channel();
        let run = tokio::spawn(serve::run(
            config,
            listeners,
            move |ready| {
                let _ = is_ready.send(*ready);
            },
            async move { drop(stopped.await) },
        ));
        let ready = soon("a ready broker", ready).await;
        let Ok(ready) = ready else { panic!("the broker did not start: {:?}", run.await) };
        Self { grpc: format!("http://{}", ready.grpc), http: format!("http://{}", ready.http), stop: Some(stop), run }
    }

    /// Drains and ends.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        soon("the end of the broker", &mut self.run).await.expect("no panic").expect("a good end");
    }
}

impl Drop for TestBroker {
    fn drop(&mut self) {
        self.run.abort();
    }
}

/// `GET /metrics` of a broker.
pub async fn metrics(http: &str) -> String {
    let mut stream = TcpStream::connect(http.trim_start_matches("http://")).await.expect("connect");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.expect("write");
    let mut answer = String::new();
    soon("the metrics", stream.read_to_string(&mut answer)).await.expect("read");
    answer
}

//! A network path between a client and a server that can silently drop every packet. Data in transit arrives once the path
//! works again, as with TCP retransmission.

use std::path::PathBuf;

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixStream},
    sync::watch,
    task::JoinHandle,
};

/// Address to which the proxy connects.
#[derive(Clone)]
pub(super) enum Target {
    Tcp(String),
    Unix(PathBuf),
}

pub(super) struct Proxy {
    /// Listening address.
    pub(super) address: String,
    open: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    pub(super) async fn start(target: Target) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("an address").to_string();
        let (open, way) = watch::channel(true);
        let accepting = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                tokio::spawn(connect(stream, target.clone(), way.clone()));
            }
        });
        Self { address, open, accepting }
    }

    /// Drops every packet from now on, including new connections.
    pub(super) fn cut(&self) {
        self.open.send_replace(false);
    }

    pub(super) fn mend(&self) {
        self.open.send_replace(true);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn connect(stream: TcpStream, target: Target, mut way: watch::Receiver<bool>) {
    if way.wait_for(|open| *open).await.is_err() {
        return;
    }
    let _ = stream.set_nodelay(true);
    let (from, to) = stream.into_split();
    match target {
        Target::Tcp(address) => {
            let Ok(server) = TcpStream::connect(address).await else { return };
            let _ = server.set_nodelay(true);
            let (back, forth) = server.into_split();
            tokio::join!(carry(from, forth, way.clone()), carry(back, to, way));
        }
        Target::Unix(path) => {
            let Ok(server) = UnixStream::connect(path).await else { return };
            let (back, forth) = server.into_split();
            tokio::join!(carry(from, forth, way.clone()), carry(back, to, way));
        }
    }
}

/// Copies data in one direction until the sender closes. While the path is cut, data and the close wait.
async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, mut way: watch::Receiver<bool>) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        if way.wait_for(|open| *open).await.is_err() {
            return;
        }
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            let _ = to.shutdown().await;
            return;
        }
    }
}

//! A TCP proxy that injects faults, between a client and one broker.

use std::{future::Future, io, net::SocketAddr, pin::Pin, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpListener,
    sync::watch,
    task::JoinHandle,
};

/// The connection from the proxy to the broker, for one client connection.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Opens a connection from the proxy to the broker.
pub(crate) type Dial = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Stream>>> + Send>> + Send + Sync>;

/// The active faults.
#[derive(Clone, Debug, Default)]
struct State {
    stalls_to_broker: bool,
    stalls_to_client: bool,
    /// Whether the proxy closes new connections at once.
    refuses: bool,
    /// Number of `cut` faults so far. Each change closes the existing connections.
    cut: u64,
    /// Number of `half_open` faults so far. Each change closes the broker's side of the existing connections, while the
    /// client's side stays open and silent.
    half_open: u64,
}

/// Names by which scenarios inject faults.
pub(crate) const FAULTS: &[&str] =
    &["cut", "refuse", "stall", "stall_to_broker", "stall_to_client", "half_open", "heal"];

/// A proxy at one address to which clients connect.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    state: watch::Sender<State>,
    accepts: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn start(dial: Dial) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = watch::Sender::new(State::default());
        let seen = state.subscribe();
        let accepts = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if seen.borrow().refuses {
                    continue;
                }
                let _ = client.set_nodelay(true);
                tokio::spawn(connection(client, dial.clone(), seen.clone()));
            }
        });
        Ok(Self { address, state, accepts })
    }

    /// Injects a fault, or ends all faults with the name `heal`. Returns false if the name does not exist.
    pub(crate) fn fault(&self, name: &str) -> bool {
        self.state.send_modify(|state| match name {
            "cut" => state.cut += 1,
            "refuse" => {
                state.refuses = true;
                state.cut += 1;
            }
            "stall" => (state.stalls_to_broker, state.stalls_to_client) = (true, true),
            "stall_to_broker" => state.stalls_to_broker = true,
            "stall_to_client" => state.stalls_to_client = true,
            "half_open" => state.half_open += 1,
            _ => {
                (state.stalls_to_broker, state.stalls_to_client, state.refuses) = (false, false, false);
            }
        });
        FAULTS.contains(&name)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepts.abort();
        self.state.send_modify(|state| state.cut += 1);
    }
}

async fn connection(client: impl Stream, dial: Dial, state: watch::Receiver<State>) {
    let (cut, half_open) = (state.borrow().cut, state.borrow().half_open);
    let (mut from_client, to_client) = tokio::io::split(client);
    let was_cut = until(state.clone(), move |state| state.cut != cut);
    let work = async {
        let Ok(broker) = dial().await else { return };
        let (from_broker, to_broker) = tokio::io::split(broker);
        let both = async {
            tokio::join!(
                pump(&mut from_client, to_broker, state.clone(), |state| state.stalls_to_broker),
                pump(from_broker, to_client, state.clone(), |state| state.stalls_to_client),
            )
        };
        tokio::select! {
            _ = both => return,
            () = until(state.clone(), move |state| state.half_open != half_open) => {}
        }
        let mut ignored = vec![0; 4096];
        while from_client.read(&mut ignored).await.is_ok_and(|read| read > 0) {}
    };
    tokio::select! {
        // Poll `was_cut` first. Otherwise, after `heal`, a cut connection could still forward bytes that a stall held back.
        biased;
        () = was_cut => {}
        () = work => {}
    }
}

async fn until(mut state: watch::Receiver<State>, is: impl FnMut(&State) -> bool) {
    // An error means that the proxy was dropped, which closes its connections too.
    let _ = state.wait_for(is).await;
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    state: watch::Receiver<State>,
    stalls: impl Fn(&State) -> bool + Copy,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut buffer).await?;
        until(state.clone(), |state| !stalls(state)).await;
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..read]).await?;
    }
}

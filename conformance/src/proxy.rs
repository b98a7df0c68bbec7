//! A TCP proxy with faults, between a client and one broker.

use std::{future::Future, io, net::SocketAddr, pin::Pin, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpListener,
    sync::watch,
    task::JoinHandle,
};

/// The other end of a connection.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Opens the broker's side of a connection.
pub(crate) type Dial = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Stream>>> + Send>> + Send + Sync>;

/// What the network does to connections.
#[derive(Clone, Debug, Default)]
struct State {
    stalls_to_broker: bool,
    stalls_to_client: bool,
    /// New connections are closed at once.
    refuses: bool,
    /// Connections from before the last change of this are closed.
    cut: u64,
    /// The broker's side of older connections is closed; the client's stays open and silent.
    half_open: u64,
}

/// Faults by their names in scenarios.
pub(crate) const FAULTS: &[&str] =
    &["cut", "refuse", "stall", "stall_to_broker", "stall_to_client", "half_open", "heal"];

/// One address that clients connect to.
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

    /// Lets something happen; false: there is no such fault.
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
    let gone = until(state.clone(), move |state| state.cut != cut);
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
        // First: what a fault has stopped must not pass when the next one heals it.
        biased;
        () = gone => {}
        () = work => {}
    }
}

async fn until(mut state: watch::Receiver<State>, is: impl FnMut(&State) -> bool) {
    // If the proxy is gone, so is the connection.
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

//! LISTEN: it reconnects with backoff, and a full sweep follows every new connection. Never ends.

use std::{sync::Arc, time::Duration};

use tokio::sync::mpsc;

use super::Notice;
use crate::{backoff::Backoff, metrics::Metrics, store::Store};

/// An event of the listener.
#[derive(Debug)]
pub(crate) enum Heard {
    /// LISTEN works (again): notifications before may have been missed.
    Connected,
    /// A notification.
    Notice(Notice),
}

/// The longest pause between attempts to connect.
const MOST_BACKOFF: Duration = Duration::from_secs(5);

/// Listens on the channel for the broker, whose id may change, and passes on what arrives.
pub(crate) async fn run_listen(
    store: Store,
    channel: String,
    broker_id: impl Fn() -> i32,
    metrics: Arc<Metrics>,
    heard: mpsc::Sender<Heard>,
) {
    let mut backoff = Backoff::new(Duration::from_millis(50), MOST_BACKOFF);
    while !heard.is_closed() {
        match store.listen(&channel, Some(broker_id())).await {
            Ok(mut listener) => {
                backoff.reset();
                metrics.listening.set(1);
                let _ = heard.send(Heard::Connected).await;
                while let Some(payload) = listener.next().await {
                    if let Some(notice) = Notice::parse(&payload) {
                        let _ = heard.send(Heard::Notice(notice)).await;
                    }
                }
                metrics.listening.set(0);
                tracing::info!("the LISTEN connection ended; polling until it is back");
            }
            Err(error) => store.log_failure("LISTEN", &error),
        }
        backoff.pause().await;
    }
}

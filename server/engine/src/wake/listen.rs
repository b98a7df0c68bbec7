//! Receives the notifications of other brokers (LISTEN). Reconnects with backoff. Each new connection causes a sweep,
//! which finds the work of missed notifications.

use std::{sync::Arc, time::Duration};

use tokio::sync::mpsc;

use super::Notice;
use crate::{backoff::Backoff, metrics::Metrics, store::Store};

/// An event that the LISTEN connection reports.
#[derive(Debug)]
pub(crate) enum Heard {
    /// LISTEN works, for the first time or again. Earlier notifications may have been missed.
    Connected,
    /// A notification.
    Notice(Notice),
}

/// The longest pause between attempts to connect.
const MOST_BACKOFF: Duration = Duration::from_secs(5);

/// Listens on the channel and passes notifications on to `heard`. Each connection is labelled with the broker's current
/// id, which may change.
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

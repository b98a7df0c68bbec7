//! Live job counts of the overview, as server-sent events. Browsers reconnect automatically.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use howdah_core::error::Error;
use howdah_engine::quota::OpenGuard;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};

use super::parts::counts;
use crate::page::{
    PageError, PageRequest,
    words::{number, span},
};

/// Maximum number of event streams of this broker. Each stream also counts towards the principal's limit on streams.
pub(crate) const MOST: usize = 64;
/// Interval at which an event stream sends new figures.
pub(crate) const EVERY: Duration = Duration::from_secs(2);
/// Maximum duration of an event stream. The browser then reconnects and authenticates again.
pub(crate) const LASTS: Duration = Duration::from_secs(300);

/// Event stream of one browser.
struct Live {
    req: PageRequest,
    ends: Instant,
    first: bool,
    _slot: OwnedSemaphorePermit,
    _open: Option<OpenGuard>,
}

/// Starts the event stream.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    req.calls().counted_types(&req.by).await?;
    let slot = Arc::clone(req.live_slots())
        .try_acquire_owned()
        .map_err(|_| Error::Unavailable(format!("this broker already serves live figures to {MOST} browsers")))?;
    let open = req.by.open_stream()?;
    let live = Live { req, ends: Instant::now() + LASTS, first: true, _slot: slot, _open: open };
    let events = futures::stream::unfold(live, async |live| live.next().await);
    let kind = (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // This header disables response buffering in nginx.
    let at_once = (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(([kind, at_once], Body::from_stream(events)).into_response())
}

impl Live {
    /// Returns the next event; `None` ends the stream.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        if self.first {
            self.first = false;
        } else {
            tokio::select! {
                () = sleep(EVERY) => {}
                () = self.req.by.ended() => return None,
            }
        }
        if Instant::now() >= self.ends || self.req.is_draining() {
            return None;
        }
        let counted = self.req.calls().counted_types(&self.req.by).await.ok()?;
        let mut totals = counts(howdah_proto::v1::TaskTypeCounts::default());
        for view in &counted.types {
            for (total, (_, count)) in totals.iter_mut().zip(counts(view.counts.unwrap_or_default())) {
                total.1 += count;
            }
        }
        let mut figures: serde_json::Map<String, serde_json::Value> =
            totals.into_iter().map(|(word, count)| (word.to_owned(), json!(number(count)))).collect();
        figures.insert("age".into(), json!(counted.age.map(span).unwrap_or_default()));
        let event = format!("retry: 5000\ndata: {}\n\n", serde_json::Value::Object(figures));
        Some((Ok(event.into()), self))
    }
}

//! Figures of the overview, as they change: server-sent events. Browsers connect again by themselves.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};

use super::parts::counts;
use crate::{
    error::Error,
    page::{
        Trouble, Visit,
        words::{number, span},
    },
    quota::Open,
};

/// The most of them at once. A principal has no more of them than streams.
pub(crate) const MOST: usize = 64;
/// How often the figures are looked at.
pub(crate) const EVERY: Duration = Duration::from_secs(2);
/// How long one lasts: then it is asked again who looks.
pub(crate) const LASTS: Duration = Duration::from_secs(300);

/// One browser that looks.
struct Live {
    visit: Visit,
    ends: Instant,
    first: bool,
    _place: OwnedSemaphorePermit,
    _open: Option<Open>,
}

/// The stream.
pub(in crate::page) async fn view(visit: Visit) -> Result<Response, Trouble> {
    visit.calls().counted_types(&visit.by).await?;
    let place = Arc::clone(visit.live_places())
        .try_acquire_owned()
        .map_err(|_| Error::Unavailable(format!("{MOST} browsers look at live figures of this broker already")))?;
    let open = visit.by.open_stream()?;
    let live = Live { visit, ends: Instant::now() + LASTS, first: true, _place: place, _open: open };
    let events = futures::stream::unfold(live, async |live| live.next().await);
    let kind = (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // For nginx, which would gather it.
    let at_once = (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(([kind, at_once], Body::from_stream(events)).into_response())
}

impl Live {
    /// The next figures; `None`: the end.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        if self.first {
            self.first = false;
        } else {
            tokio::select! {
                () = sleep(EVERY) => {}
                () = self.visit.by.ended() => return None,
            }
        }
        if Instant::now() >= self.ends || self.visit.is_draining() {
            return None;
        }
        let counted = self.visit.calls().counted_types(&self.visit.by).await.ok()?;
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

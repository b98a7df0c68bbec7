//! Unary calls: a deadline for each, and retries if they are safe.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, sleep, timeout};
use tonic::{Request, Response, Status};

use crate::{Client, Error, Result, backoff::Backoff};

/// One attempt waits no longer than this before the next endpoint is tried. A broker that cannot reach Postgres answers
/// within 15 s.
const LONGEST_TRY: Duration = Duration::from_secs(16);

/// How often a call may be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tries {
    /// Once: for calls that take effect again each time.
    Once,
    /// Every endpoint once, and once more in case a connection was dead: for reads, whose callers should soon learn
    /// that no broker answers.
    EachEndpoint,
    /// Until the deadline: for enqueues, which a request key makes safe.
    UntilDeadline,
}

impl Client {
    /// Makes a call, and repeats it after temporary errors, within one deadline.
    ///
    /// Unless it is sent once, `send` must be safe to repeat: a read, or something with a request key.
    pub(crate) async fn call<M, R, F, Fut>(&self, what: &'static str, tries: Tries, message: M, send: F) -> Result<R>
    where
        M: Clone,
        F: Fn(Client, Request<M>) -> Fut,
        Fut: Future<Output = std::result::Result<Response<R>, Status>>,
    {
        let limit = self.settings().request_timeout;
        let deadline = Instant::now() + limit;
        let late = Error::Deadline { what, after: limit };
        let mut backoff = Backoff::default();
        let mut left = self.broker_count();
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Err(late);
            }
            let patience = remaining.min(LONGEST_TRY);
            let mut request = Request::new(message.clone());
            // One second more, so that our own timer ends the attempt.
            request.set_timeout(patience + Duration::from_secs(1));
            let broker = self.current();
            let sent = async {
                self.check_current().await?;
                send(self.clone(), request).await.map_err(Error::from)
            };
            let error = match timeout(patience, sent).await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(error)) => error.at(&self.endpoint_name(broker)),
                Err(_) => late.clone(),
            };
            if !error.is_passing() {
                return Err(error);
            }
            self.move_on_from(broker);
            let wait = backoff.next();
            let out_of_tries = match tries {
                Tries::Once => true,
                Tries::EachEndpoint => left == 0,
                Tries::UntilDeadline => false,
            };
            if out_of_tries || Instant::now() + wait >= deadline {
                return Err(error);
            }
            left = left.saturating_sub(1);
            tracing::debug!(%error, ?wait, "{what} failed; trying again");
            sleep(wait).await;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// How often a call is sent whose answers are all lost.
    async fn sent(tries: Tries) -> usize {
        let client = Client::builder().endpoint("http://127.0.0.1:9").connect_lazy().unwrap();
        let sent = AtomicUsize::new(0);
        let send = |_, _: Request<()>| {
            sent.fetch_add(1, Ordering::Relaxed);
            async { Err::<Response<()>, _>(Status::unavailable("the connection broke")) }
        };
        client.call("try", tries, (), send).await.unwrap_err();
        sent.into_inner()
    }

    #[tokio::test]
    async fn what_takes_effect_each_time_is_sent_once_and_a_read_again() {
        assert_eq!(sent(Tries::Once).await, 1);
        assert_eq!(sent(Tries::EachEndpoint).await, 2);
    }
}

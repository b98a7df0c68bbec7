//! Unary calls: a deadline for each call, and retries with backoff where they are safe.

use std::{error::Error as StdError, future::Future, iter::successors, time::Duration};

use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, ConnectError, Request, Response, Status};

use crate::{Client, Error, Result};

/// Upper bound of the first pause of a [`Backoff`]. The random part only shortens a pause.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Upper bound of every pause of a [`Backoff`].
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Longest time of an attempt before the next endpoint is tried. A broker that cannot reach Postgres responds within 15 s.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(16);

/// Exponential backoff with jitter, for reconnects and repeated calls: pauses that double from 50 ms to 5 s. Half of each pause is
/// random, so that clients that lost their connection at the same time do not reconnect at the same time.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Returns the pause before the next try, and counts a failure.
    pub(crate) fn next(&mut self) -> Duration {
        let bound = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(self.failures)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        bound.mul_f64(rand::random_range(0.5..1.0))
    }

    /// Resets the pause to the first one, after a success.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Position in the rotation over a client's brokers during one call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rotation {
    attempts: u32,
    brokers: u32,
}

impl Rotation {
    pub(crate) fn new(brokers: usize) -> Self {
        Self { attempts: 0, brokers: u32::try_from(brokers).unwrap_or(u32::MAX).max(1) }
    }

    /// Number of brokers not yet tried in this round, at least one. They share the remaining time, so that a silent broker cannot
    /// use it up.
    pub(crate) fn untried(self) -> u32 {
        self.brokers - self.attempts % self.brokers
    }

    pub(crate) fn is_first_round(self) -> bool {
        self.attempts < self.brokers
    }

    /// Advances to the next broker.
    pub(crate) fn next(&mut self) {
        self.attempts = self.attempts.saturating_add(1);
    }
}

/// Maximum number of attempts of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tries {
    /// One attempt, for calls that are not idempotent.
    Once,
    /// One attempt per endpoint, and one more, because the connection of the first attempt may have been dead. For reads:
    /// their callers should soon learn that no broker responds.
    Read,
    /// As `Read`, for changes that are idempotent.
    Change,
    /// Attempts until the deadline. For enqueues, which a request key makes idempotent.
    Keyed,
}

impl Client {
    /// Makes a call, and retries it after temporary errors, within one deadline.
    ///
    /// Unless `tries` is `Once`, `send` must be idempotent: a read, or a call with a request key. Unless `tries` is `Read`, the
    /// error says if an attempt got no answer, because that attempt may have taken effect.
    pub(crate) async fn call<M, R, F, Fut>(
        &self,
        operation: &'static str,
        tries: Tries,
        message: M,
        send: F,
    ) -> Result<R>
    where
        M: Clone,
        F: Fn(Client, Request<M>) -> Fut,
        Fut: Future<Output = std::result::Result<Response<R>, Status>>,
    {
        let limit = self.settings().request_timeout;
        let deadline = Instant::now() + limit;
        let timed_out = Error::Deadline { operation, after: limit };
        let mut backoff = Backoff::default();
        let mut rotation = Rotation::new(self.broker_count());
        let mut too_large = 0;
        let mut is_effect_unknown = false;
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Err(timed_out.with_effect_unknown(is_effect_unknown));
            }
            let attempt_timeout = match tries {
                Tries::Once => remaining,
                _ => remaining / rotation.untried(),
            };
            let attempt_timeout = attempt_timeout.min(ATTEMPT_TIMEOUT);
            let mut request = Request::new(message.clone());
            // The deadline that the broker gets is 1 s later than the local timer, so that the timer ends the attempt first.
            request.set_timeout(attempt_timeout + Duration::from_secs(1));
            let broker = self.current();
            let mut is_sent = false;
            let sending = async {
                self.check_current().await?;
                is_sent = true;
                let answer = send(self.clone(), request).await;
                is_sent = !answer.as_ref().is_err_and(is_without_connection);
                answer.map_err(Error::from)
            };
            let error = match timeout(attempt_timeout, sending).await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(error)) => error.at(&self.endpoint_name(broker)),
                Err(_) => timed_out.clone(),
            };
            is_effect_unknown |= tries != Tries::Read && is_sent && error.is_unanswered();
            // A proxy refused the request because of its size. The path to another broker may have a higher limit. If every
            // path refuses the request, no broker has received it.
            too_large = if error.is_too_large() { too_large + 1 } else { 0 };
            let is_tried_elsewhere = (1..self.broker_count()).contains(&too_large);
            if !error.is_retried() && !is_tried_elsewhere {
                return Err(error);
            }
            self.move_on_from(broker);
            let wait = backoff.next();
            let out_of_tries = match tries {
                Tries::Once => is_sent || !rotation.is_first_round(),
                Tries::Read | Tries::Change => !rotation.is_first_round(),
                Tries::Keyed => false,
            };
            if out_of_tries || Instant::now() + wait >= deadline {
                return Err(error.with_effect_unknown(is_effect_unknown));
            }
            rotation.next();
            tracing::debug!(%error, ?wait, "{operation} failed; trying again");
            sleep(wait).await;
        }
    }
}

/// Whether the call was not sent, because no connection could be opened.
fn is_without_connection(status: &Status) -> bool {
    successors(status.source(), |&error| error.source()).any(<dyn StdError>::is::<ConnectError>)
}

/// Calls a method of a generated client, with these `Tries`: `call!(Read self.jobs().get_job(request))`.
macro_rules! call {
    ($tries:ident $client:ident.$service:ident().$method:ident($request:expr)) => {
        $client
            .call(stringify!($method), $crate::call::Tries::$tries, $request, |client, request| async move {
                client.$service().$method(request).await
            })
            .await
    };
}
pub(crate) use call;

/// Defines methods that make one call each: `fn name(arguments) -> Type = Tries service.method(request);`. Each returns the
/// response, or one field of it: `service.method(request).field`.
macro_rules! calls {
    ($($(#[$meta:meta])* fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty =
        $tries:ident $service:ident.$method:ident($request:expr)$(.$field:ident)?;)+) => {
        $(
            $(#[$meta])*
            pub async fn $name(&self, $($argument: $type),*) -> $crate::Result<$answer> {
                let answer = $crate::call::call!($tries self.$service().$method($request))?;
                Ok(answer$(.$field.unwrap_or_default())?)
            }
        )+
    };
}
pub(crate) use calls;

/// Lists the items of as many pages as have `at_most` items: `pages!(self.jobs().list(request).items, at_most)`.
macro_rules! pages {
    ($client:ident.$service:ident().$method:ident($request:expr).$items:ident, $at_most:expr) => {{
        let (mut request, mut items) = ($request, Vec::new());
        request.page_token = String::new();
        loop {
            // A broker reduces the page size to its maximum.
            request.page_size = i32::try_from($at_most - items.len()).unwrap_or(i32::MAX);
            let page = $crate::call::call!(Read $client.$service().$method(request.clone()))?;
            items.extend(page.$items);
            // Stops if a broker repeats a page token, to avoid an endless loop.
            let is_last = page.next_page_token.is_empty() || page.next_page_token == request.page_token;
            if is_last || items.len() >= $at_most {
                break Ok(items);
            }
            request.page_token = page.next_page_token;
        }
    }};
}
pub(crate) use pages;

/// Returns `None` if the broker answered that the object does not exist.
pub(crate) fn found<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Err(error) if error.code() == Code::NotFound => Ok(None),
        answer => answer.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Counts how often a call is sent if all responses are lost.
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
    async fn a_call_that_is_not_idempotent_is_sent_once_and_a_read_twice() {
        assert_eq!(sent(Tries::Once).await, 1);
        assert_eq!(sent(Tries::Read).await, 2);
    }

    /// The error of a call whose first attempt gets no answer. The second attempt is answered with `second`.
    async fn error_after_a_break(tries: Tries, second: fn() -> Status) -> Error {
        let client = Client::builder().endpoint("http://127.0.0.1:9").connect_lazy().unwrap();
        let attempts = AtomicUsize::new(0);
        let send = |_, _: Request<()>| {
            let is_first = attempts.fetch_add(1, Ordering::Relaxed) == 0;
            let status = if is_first { broken(std::io::Error::other("reset by peer")) } else { second() };
            async move { Err::<Response<()>, _>(status) }
        };
        client.call("try", tries, (), send).await.unwrap_err()
    }

    fn broken(cause: impl StdError + Send + Sync + 'static) -> Status {
        Status::from_error(Box::new(cause))
    }

    fn refused() -> Status {
        broken(ConnectError("connection refused".into()))
    }

    #[tokio::test]
    async fn the_effect_of_a_change_is_unknown_if_one_of_its_attempts_got_no_answer() {
        let error = error_after_a_break(Tries::Change, refused).await;
        assert!(error.is_effect_unknown(), "{error}");
        assert!(error.to_string().ends_with("connection refused; it is unknown whether this took effect"), "{error}");
        let error = error_after_a_break(Tries::Change, || Status::not_found("no bulk operation 7")).await;
        assert!(!error.is_effect_unknown(), "{error}");
        let error = error_after_a_break(Tries::Read, refused).await;
        assert!(!error.is_effect_unknown(), "{error}");
    }

    #[tokio::test]
    async fn a_change_without_a_connection_took_no_effect() {
        // No process listens on the port, because it is no longer bound.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let client = Client::builder().endpoint(format!("http://127.0.0.1:{port}")).connect_lazy().unwrap();
        let error = client.cancel_bulk(7).await.unwrap_err();
        assert!(error.is_retryable() && !error.is_effect_unknown(), "{error}");
    }

    #[test]
    fn waits_double_from_50_ms_to_5_s_and_start_again_after_a_reset() {
        let mut backoff = Backoff::default();
        for bound in [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            let (wait, bound) = (backoff.next(), Duration::from_millis(bound));
            assert!((bound / 2..bound).contains(&wait), "{wait:?} of {bound:?}");
        }
        backoff.failures = u32::MAX;
        assert!(backoff.next() < LONGEST_PAUSE);
        backoff.reset();
        assert!(backoff.next() < FIRST_PAUSE);
    }
}

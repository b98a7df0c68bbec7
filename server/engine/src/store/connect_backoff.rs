//! Exponential backoff with jitter between connection attempts to a server. All pools share it.

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

use tokio::sync::watch;

use super::{StoreError, sqlstate};

/// First pause between two connection attempts. Pauses double, and jitter keeps brokers from reconnecting at the same
/// time.
const FIRST: Duration = Duration::from_millis(200);
/// Longest pause between connection attempts while the server does not answer. The broker finds a recovered server
/// within this time.
const LONGEST: Duration = Duration::from_secs(1);
/// Longest pause, without jitter, after the server refused a connection attempt or its certificate was invalid. It is
/// long, because each attempt costs the server a process and a log line.
const LONGEST_REFUSED: Duration = Duration::from_secs(5);

/// Number of reload requests so far. A reload reads the files that connection strings name, such as password files,
/// again.
static RELOADS: LazyLock<watch::Sender<u64>> = LazyLock::new(watch::Sender::default);

/// Ends all pauses before connection attempts, and makes the attempts read the files that connection strings name
/// again.
pub fn reload_files() {
    RELOADS.send_modify(|times| *times += 1);
}

/// Returns the number of requests so far to reload the files that connection strings name.
pub(super) fn reload_requests() -> u64 {
    *RELOADS.borrow()
}

/// Backoff state of the connection attempts to one server.
#[derive(Debug, Default)]
pub struct ConnectBackoff {
    failures: u32,
    /// Earliest time of the next connection attempt.
    next: Option<Instant>,
}

impl ConnectBackoff {
    /// Resets the backoff after a successful attempt.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    pub(super) fn failed(&mut self, error: &StoreError) {
        // A starting or stopping server (SQLSTATE class 57P) will be back soon, so its refusal counts as no answer.
        let refused = error.is_permanent() || error.code().is_some_and(|code| !sqlstate::ends_session(code));
        if refused {
            self.refused();
        } else {
            self.wait_for(short_pause(self.failures));
        }
    }

    /// Records that a connection attempt was refused. Pauses grow to 5 s plus jitter, because an early next attempt
    /// would be refused too.
    pub fn refused(&mut self) {
        self.wait_for(doubled(self.failures, LONGEST_REFUSED).mul_f64(rand::random_range(1.0..1.2)));
    }

    fn wait_for(&mut self, pause: Duration) {
        self.failures = self.failures.saturating_add(1);
        self.next = Some(Instant::now() + pause);
    }

    /// Whether the next connection attempt is allowed now.
    pub(super) fn is_due(&self) -> bool {
        self.next.is_none_or(|next| next <= Instant::now())
    }

    /// Waits until the next connection attempt is allowed, or a reload of the files that connection strings name is
    /// requested.
    pub async fn pause(&self) {
        let Some(next) = self.next else { return };
        let mut reloads = RELOADS.subscribe();
        tokio::select! {
            () = tokio::time::sleep_until(next.into()) => {}
            _ = reloads.changed() => {}
        }
    }
}

/// Returns the pause, with jitter, before the next connection attempt after `failures` + 1 attempts without an answer.
pub(super) fn short_pause(failures: u32) -> Duration {
    doubled(failures, LONGEST).mul_f64(rand::random_range(0.5..1.0))
}

fn doubled(failures: u32, longest: Duration) -> Duration {
    FIRST.saturating_mul(1 << failures.min(8)).min(longest)
}

#[cfg(test)]
mod tests {
    use super::{super::error::Cause, *};

    fn pauses(error: &StoreError) -> Vec<Duration> {
        let mut backoff = ConnectBackoff::default();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let before = Instant::now();
            backoff.failed(error);
            pauses.push(backoff.next.expect("a pause").duration_since(before));
        }
        pauses
    }

    #[test]
    fn a_server_that_does_not_answer_is_tried_every_second_and_one_that_refuses_every_five() {
        let silent = pauses(&StoreError::NotSent(Cause::private("connection refused".into())));
        assert!(silent[0] <= FIRST && silent.iter().all(|pause| *pause <= LONGEST + FIRST), "{silent:?}");
        let refused = pauses(&StoreError::NotSent(Cause::permanent("wrong password".into())));
        assert!(refused[0] < LONGEST && refused[7] >= LONGEST_REFUSED, "{refused:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_to_read_the_files_again_ends_the_pause() {
        let mut backoff = ConnectBackoff::default();
        backoff.pause().await;
        backoff.failed(&StoreError::NotSent(Cause::permanent("wrong password".into())));
        assert!(!backoff.is_due());
        let waiting = async {
            backoff.pause().await;
            true
        };
        let asked = async {
            tokio::task::yield_now().await;
            reload_files();
            std::future::pending::<bool>().await
        };
        assert!(tokio::select! { biased; asked = asked => asked, waited = waiting => waited });
        backoff.succeeded();
        assert!(backoff.is_due());
    }
}

//! Detached tasks: futures that keep running while the client does not read. The transport polls a response stream only while the
//! client reads it. A future polled only then would keep its resources (a connection to Postgres, a lock, a queue slot), and
//! other callers would wait for them.

use std::{
    future::{Future, poll_fn},
    panic::resume_unwind,
    task::Poll,
};

use tokio_util::task::AbortOnDropHandle;

/// Polls the future once, and runs it as a separate task if it is not ready. Dropping the returned future stops the
/// task.
pub async fn detached<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let mut work = Box::pin(work);
    if let Some(done) = poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
    {
        return done;
    }
    match AbortOnDropHandle::new(tokio::spawn(work)).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime cancelled the task because it is shutting down, so no caller waits for the result.
            Err(_) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use futures::poll;
    use tokio::sync::oneshot;

    use super::detached;

    #[tokio::test]
    async fn a_detached_future_makes_progress_without_being_polled() {
        let (go, going) = oneshot::channel();
        let (done, is_done) = oneshot::channel();
        let mut work = Box::pin(detached(async move {
            going.await.unwrap();
            done.send(()).unwrap();
            7
        }));
        assert!(poll!(&mut work).is_pending());
        go.send(()).unwrap();
        is_done.await.unwrap();
        assert_eq!(work.await, 7);
    }

    #[tokio::test]
    async fn a_detached_future_stops_when_its_caller_drops_it() {
        let (kept, dropped) = oneshot::channel::<()>();
        let mut work = Box::pin(detached(async move {
            let _kept = kept;
            std::future::pending::<()>().await;
        }));
        assert!(poll!(&mut work).is_pending());
        drop(work);
        assert!(dropped.await.is_err());
    }

    #[tokio::test]
    #[should_panic(expected = "as it was")]
    async fn a_panic_of_a_detached_future_reaches_its_caller() {
        detached(async {
            tokio::task::yield_now().await;
            panic!("as it was");
        })
        .await;
    }
}

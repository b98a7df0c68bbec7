//! Work that an answer waits for, and that goes on though nobody asks for the answer. The transport asks for the next message of a stream
//! only while its client reads. What the work holds meanwhile (a connection to Postgres, a lock, a place in a queue) others
//! would wait for as long as that client does not read.

use std::{
    future::{Future, poll_fn},
    panic::resume_unwind,
    task::Poll,
};

use tokio_util::task::AbortOnDropHandle;

/// Runs a future to its end, on a task of its own if it is not ready at once. Dropped, it stops.
pub(crate) async fn driven<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
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
            // The runtime ends, and nobody is left.
            Err(_) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use futures::poll;
    use tokio::sync::oneshot;

    use super::driven;

    #[tokio::test]
    async fn work_goes_on_though_nobody_asks_for_it() {
        let (go, going) = oneshot::channel();
        let (done, is_done) = oneshot::channel();
        let mut work = Box::pin(driven(async move {
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
    async fn work_stops_when_nobody_waits_for_it_any_more() {
        let (kept, dropped) = oneshot::channel::<()>();
        let mut work = Box::pin(driven(async move {
            let _kept = kept;
            std::future::pending::<()>().await;
        }));
        assert!(poll!(&mut work).is_pending());
        drop(work);
        assert!(dropped.await.is_err());
    }

    #[tokio::test]
    #[should_panic(expected = "as it was")]
    async fn a_panic_is_that_of_whoever_waits() {
        driven(async {
            tokio::task::yield_now().await;
            panic!("as it was");
        })
        .await;
    }
}

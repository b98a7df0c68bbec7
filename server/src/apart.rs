//! Work that computes for long between its waits, such as packing files. On the runtime's threads, of which a small machine has one,
//! all jobs would wait for it.

use std::future::Future;

use tokio::{runtime::Handle, task::spawn_blocking};
use tokio_util::sync::CancellationToken;

/// Runs a future on a thread of its own. It ends with the one that waits for it, at its next wait. `None`: it panicked, or the runtime ends.
pub(crate) async fn apart<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Option<T> {
    let stop = CancellationToken::new();
    let _stops_with_us = stop.clone().drop_guard();
    let runtime = Handle::current();
    let done = spawn_blocking(move || runtime.block_on(stop.run_until_cancelled_owned(work))).await;
    done.ok().flatten()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::{mpsc, oneshot};

    use super::apart;

    /// One thread, as on a small machine.
    fn on_one_thread(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(test);
    }

    #[test]
    fn tasks_go_on_while_work_apart_computes() {
        on_one_thread(async {
            let (other_ran, ran) = std::sync::mpsc::channel();
            let work = tokio::spawn(apart(async move { ran.recv_timeout(Duration::from_secs(20)) }));
            // Of the one thread; while it computed, this would never run.
            tokio::spawn(async move { other_ran.send("a job") });
            assert_eq!(work.await.unwrap(), Some(Ok("a job")));
        });
    }

    #[test]
    fn work_apart_ends_with_the_task_that_waits_for_it() {
        on_one_thread(async {
            let (has_begun, mut begun) = mpsc::channel(1);
            let (ends_when_dropped, ended) = oneshot::channel::<()>();
            let task = tokio::spawn(apart(async move {
                let _kept = ends_when_dropped;
                has_begun.send(()).await.unwrap();
                std::future::pending::<()>().await;
            }));
            begun.recv().await.unwrap();
            task.abort();
            assert!(ended.await.is_err());
        });
    }
}

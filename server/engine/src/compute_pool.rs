//! The compute pool: runs CPU-bound work, such as packing files, on separate threads. A small machine has one runtime thread, so
//! CPU-bound work there would delay all jobs.

use std::future::Future;

use tokio::{runtime::Handle, task::spawn_blocking};
use tokio_util::sync::CancellationToken;

/// Runs a future on a separate blocking thread. If the caller is dropped, the future stops at its next `await`. Returns `None` if
/// the future panicked or the runtime shuts down.
pub(crate) async fn run<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Option<T> {
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

    use super::run;

    /// Runs the test on one runtime thread, as on a small machine.
    fn on_one_thread(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(test);
    }

    #[test]
    fn tasks_go_on_while_pooled_work_computes() {
        on_one_thread(async {
            let (other_ran, ran) = std::sync::mpsc::channel();
            let work = tokio::spawn(run(async move { ran.recv_timeout(Duration::from_secs(20)) }));
            // This task runs only if the pooled work does not block the single runtime thread.
            tokio::spawn(async move { other_ran.send("a job") });
            assert_eq!(work.await.unwrap(), Some(Ok("a job")));
        });
    }

    #[test]
    fn pooled_work_ends_with_the_task_that_waits_for_it() {
        on_one_thread(async {
            let (has_begun, mut begun) = mpsc::channel(1);
            let (ends_when_dropped, ended) = oneshot::channel::<()>();
            let task = tokio::spawn(run(async move {
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

//! Tests of the number of jobs that a worker holds and runs, and of the number of its messages.

use howdah_client::{
    Job, Outcome,
    proto::{self, DrainReason, outcome::Outcome as Wire, work_request::Message as FromWorker},
};

use crate::{
    Held, ids,
    support::{FakeBroker, job, within},
};
use tokio::sync::{mpsc, oneshot};

#[tokio::test]
async fn after_four_unanswered_messages_outcomes_are_batched_up_to_a_quarter_of_the_slots() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let mut stream = broker.welcomed().await;
    stream.push((1..=10).map(job).collect()).await;
    let mut ends = Vec::new();
    for _ in 0..10 {
        ends.push(worker.begun().await.1);
    }
    let mut end = || ends.pop().unwrap().send(Outcome::ack("")).unwrap();
    let mut unanswered = Vec::new();
    for _ in 0..4 {
        end();
        unanswered.push(stream.settle().await);
    }
    let mut begun = Vec::new();
    for id in 11..=12 {
        end();
        // The next job can start only when a slot is free. So when it starts, the worker has processed the end of the
        // previous job.
        stream.push(vec![job(id)]).await;
        begun.push(worker.begun().await);
    }
    end();
    assert_eq!(stream.settle().await.len(), 3, "three outcomes are more than a quarter of ten slots");
    end();
    stream.push(vec![job(13)]).await;
    begun.push(worker.begun().await);
    stream.confirm(&unanswered[0]).await;
    stream.confirm(&unanswered[1]).await;
    assert_eq!(stream.settle().await.len(), 1, "with three unanswered messages, a single outcome is sent at once");
    worker.handle.abort();
}

#[tokio::test]
async fn a_worker_with_max_jobs_ends_after_that_many_jobs() {
    let mut broker = FakeBroker::start().await;
    let worker = broker.client().await.worker().handle("t", |_: Job| async {}).concurrency(5).max_jobs(3).build();
    let ending = tokio::spawn(worker.run());
    let mut stream = broker.welcomed().await;
    assert_eq!(stream.subscribe.windows[0].jobs, 3, "the window is not larger than max_jobs");
    stream.push((1..=4).map(job).collect()).await;
    let mut outcomes = Vec::new();
    while outcomes.len() < 4 {
        match stream.next().await {
            FromWorker::Settle(settle) => outcomes.extend(settle.outcomes),
            FromWorker::Drain(_) => stream.drain(DrainReason::Requested, None).await,
            other => panic!("{other:?}"),
        }
    }
    outcomes.sort_by_key(|outcome| outcome.id);
    assert_eq!(outcomes[3].outcome, Some(Wire::Release(proto::Release {})));
    stream.confirm(&outcomes).await;
    stream.closed().await;
    drop(stream);
    let report = within(ending).await.unwrap().unwrap();
    assert_eq!((report.acked, report.released), (3, 1));
}

#[tokio::test]
async fn a_worker_resizes_its_window_while_it_runs() {
    let mut broker = FakeBroker::start().await;
    let worker = Held::start(&broker.client().await);
    let mut stream = broker.welcomed().await;
    for jobs in [3, 0] {
        worker.handle.set_concurrency("t", jobs);
        let FromWorker::Window(window) = stream.next().await else {
            panic!("not a Window");
        };
        assert_eq!((window.task_type.as_str(), window.jobs), ("t", jobs as i32));
    }
    stream.break_off().await;
    let stream = broker.welcomed().await;
    assert_eq!(stream.subscribe.windows[0].jobs, 0, "the next stream keeps the changed window");
    worker.handle.abort();
}

#[tokio::test]
async fn jobs_that_wait_for_or_arrive_at_a_paused_type_are_released() {
    let mut broker = FakeBroker::start().await;
    let mut worker = Held::start(&broker.client().await);
    let mut stream = broker.welcomed().await;
    stream.push((1..=11).map(job).collect()).await;
    let mut running = Vec::new();
    for _ in 0..10 {
        running.push(worker.begun().await);
    }
    worker.handle.set_concurrency("t", 0);
    let (released, mut ids_released) = (Some(Wire::Release(proto::Release {})), Vec::new());
    while ids_released.len() < 2 {
        match stream.next().await {
            FromWorker::Settle(settle) => {
                assert!(settle.outcomes.iter().all(|outcome| outcome.outcome == released));
                ids_released.extend(ids(&settle.outcomes));
            }
            // The broker sends this job before it reads the window.
            FromWorker::Window(window) if window.jobs == 0 => stream.push(vec![job(12)]).await,
            other => panic!("{other:?}"),
        }
    }
    ids_released.sort_unstable();
    assert_eq!(ids_released, [11, 12]);
    worker.handle.abort();
}

#[tokio::test]
async fn a_job_that_waits_for_the_concurrency_of_the_worker_is_released_and_the_windows_shrink() {
    let mut broker = FakeBroker::start().await;
    let (sender, mut begun) = mpsc::unbounded_channel();
    let handler = move |job: Job| {
        let sender = sender.clone();
        async move {
            let (end, ended) = oneshot::channel::<()>();
            sender.send((job.id, end)).unwrap();
            ended.await.unwrap();
        }
    };
    let client = broker.client().await;
    let worker = client.worker().handle(["a", "b"], handler).concurrency(2).build().start();
    let mut stream = broker.welcomed().await;
    let sizes: Vec<_> = stream.subscribe.windows.iter().map(|window| window.jobs).collect();
    assert_eq!(sizes, [2, 2]);
    let job_of = |id: i64, task_type: &str| proto::LeasedJob { task_type: task_type.into(), ..job(id) };
    let window = |message| match message {
        FromWorker::Window(window) => (window.task_type, window.jobs),
        other => panic!("not a Window but {other:?}"),
    };
    stream.push(vec![job_of(1, "a"), job_of(2, "b"), job_of(3, "a")]).await;
    let mut running = vec![within(begun.recv()).await.unwrap(), within(begun.recv()).await.unwrap()];
    running.sort_by_key(|(id, _)| *id);
    assert_eq!(window(stream.next().await), ("a".into(), 1));
    assert_eq!(window(stream.next().await), ("b".into(), 1));
    let released = stream.settle().await;
    assert_eq!((ids(&released), &released[0].outcome), (vec![3], &Some(Wire::Release(proto::Release {}))));
    assert!(begun.try_recv().is_err(), "the job never started");
    running.remove(0).1.send(()).unwrap();
    assert_eq!(window(stream.next().await), ("b".into(), 2));
    assert_eq!(ids(&stream.settle().await), [1]);
    worker.abort();
}

#[tokio::test]
async fn the_job_that_has_waited_longest_gets_the_next_slot() {
    let mut broker = FakeBroker::start().await;
    let (sender, mut begun) = mpsc::unbounded_channel();
    let handler = move |job: Job| {
        let sender = sender.clone();
        async move {
            let (end, ended) = oneshot::channel::<()>();
            sender.send((job.id, end)).unwrap();
            ended.await.unwrap();
        }
    };
    let client = broker.client().await;
    let worker = client.worker().handle(["a", "b"], handler).concurrency(1).build().start();
    let stream = broker.welcomed().await;
    let types = ["b", "b", "a"];
    let jobs = (1..).zip(types).map(|(id, task_type)| proto::LeasedJob { task_type: task_type.into(), ..job(id) });
    stream.push(jobs.collect()).await;
    for expected in 1..=2 {
        let (id, end) = within(begun.recv()).await.unwrap();
        assert_eq!(id, expected);
        end.send(()).unwrap();
    }
    worker.abort();
}

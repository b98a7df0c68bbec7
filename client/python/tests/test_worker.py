"""Workers, against a broker. These tests cover the Python client only; the conformance suite tests the protocol."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List

import pytest
from google.protobuf.duration_pb2 import Duration

import howdah
from howdah import v1
from howdah.stream import open_stream
from howdah.testing import Broker


@dataclass
class Mail:
    to: str
    subject: str = "hello"


def end(client: howdah.Client, *jobs: howdah.Enqueued) -> List[v1.Job]:
    found = {job.id: job for job in client.wait([job.id for job in jobs], 30)}
    return [found[job.id] for job in jobs]


def test_handlers_in_threads_get_typed_payloads_and_return_results(client: howdah.Client, task_type: str) -> None:
    worker = howdah.Worker(client, concurrency=4)

    @worker.task(f"{task_type}.json")
    def of_json(payload: Dict[str, Any], job: howdah.Job) -> Any:
        return {"got": payload, "thread": threading.current_thread().name, "attempt": job.attempt}

    @worker.task(f"{task_type}.bytes")
    def of_bytes(payload: bytes) -> bytes:
        return payload[::-1]

    @worker.task(f"{task_type}.mail")
    def of_mail(mail: Mail) -> Mail:
        return Mail(mail.to.upper(), mail.subject)

    @worker.task(f"{task_type}.proto")
    async def of_proto(duration: Duration) -> Duration:
        return Duration(seconds=duration.seconds + 1)

    with worker:
        jobs = [client.enqueue(f"{task_type}.json", {"a": "ä"}), client.enqueue(f"{task_type}.bytes", b"\x00\xff")]
        jobs += [
            client.enqueue(f"{task_type}.mail", Mail("ann")),
            client.enqueue(f"{task_type}.proto", Duration(seconds=1)),
        ]
        results = [job.result for job in end(client, *jobs)]
    first = howdah.decode(results[0])
    assert first["got"] == {"a": "ä"} and first["thread"].startswith("howdah-") and first["attempt"] == 1
    assert results[1] == b"\xff\x00"
    assert howdah.decode(results[2], Mail) == Mail("ANN")
    assert howdah.decode(results[3], Duration) == Duration(seconds=2)


def test_whatever_a_handler_raises_fails_its_attempt_and_the_worker_goes_on(
    client: howdah.Client, task_type: str
) -> None:
    worker = howdah.Worker(client)
    kinds = {each.__name__: each for each in (SystemExit, KeyboardInterrupt, BaseException, asyncio.CancelledError)}

    @worker.task(task_type)
    def in_a_thread(kind: str) -> None:
        raise kinds[kind](kind)

    @worker.task(f"{task_type}.async")
    async def on_the_loop(kind: str) -> None:
        raise kinds[kind](kind)

    types = (task_type, f"{task_type}.async")
    with worker:
        jobs = [client.enqueue(name, kind, max_attempts=1) for name in types for kind in kinds]
        failures = [job.failures[-1].error for job in end(client, *jobs)]
    assert failures == [f"{kind}: {kind}" for _ in types for kind in kinds]


def test_outcomes_are_returned_or_raised(client: howdah.Client, task_type: str) -> None:
    worker = howdah.Worker(client)

    @worker.task(task_type)
    def handle(payload: str, job: howdah.Job) -> Any:
        if job.attempt == 1 and payload == "retry":
            raise howdah.Retry("later", after=0)
        if job.attempt == 1 and payload == "bug":
            raise KeyError("x")
        if payload == "fatal":
            return howdah.Fatal("never")
        if payload == "next":
            return howdah.Done("made", next_stage=f"{task_type}.second")
        return "done"

    @worker.task(f"{task_type}.second")
    async def second(payload: Any, job: howdah.AsyncJob) -> str:
        return "second"

    with worker:
        policy: howdah.RetryPolicy = {"kind": "fixed", "initial_delay": 0, "jitter": 0}
        names = ("retry", "bug", "fatal", "next")
        jobs = [client.enqueue(task_type, name, retry_policy=policy) for name in names]
        retry, bug, fatal, following = end(client, *jobs)
        text = client.enqueue(f"{task_type}.mail", "x")
    assert (retry.attempt, retry.failures[0].error, howdah.decode(retry.result)) == (2, "later", "done")
    assert (bug.attempt, bug.failures[0].error) == (2, "KeyError: 'x'")
    assert "Traceback (most recent call last)" in bug.failures[0].details
    assert 'raise KeyError("x")' in bug.failures[0].details
    assert bug.failures[0].place.startswith(f"{__name__}.") and bug.failures[0].place.endswith("handle")
    assert fatal.failures[0].details == "", "a failure that is returned has no traceback"
    assert fatal.state == v1.JOB_STATE_DEAD and fatal.failures[0].error == "never"
    assert howdah.decode(following.result) == "second"
    assert text.is_new


def test_each_failed_attempt_is_logged_once(
    client: howdah.Client, task_type: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = howdah.Worker(client)
    raised: Dict[str, BaseException] = {
        "bug": KeyError("x"),
        "retry": howdah.Retry("busy", after=0),
        "fatal": howdah.Fatal("never"),
        "snooze": howdah.Snooze(0),
    }

    @worker.task(task_type)
    def handle(payload: str, job: howdah.Job) -> None:
        if job.attempt == 1 and payload in raised and job.checkpoint == b"":
            job.progress(checkpoint="failed")
            raise raised[payload]

    policy: howdah.RetryPolicy = {"kind": "fixed", "initial_delay": 0, "jitter": 0}
    with worker:
        jobs = [client.enqueue(task_type, name, retry_policy=policy) for name in raised]
        jobs.append(client.enqueue(f"{task_type}", b"no json"))
        end(client, *jobs)
    ids = dict(zip((job.id for job in jobs), (*raised, "unreadable")))
    logged = [record for record in caplog.records if "attempt" in record.getMessage()]
    assert sorted((ids[record.args[0]], record.levelname) for record in logged) == [  # type: ignore[index]
        ("bug", "WARNING"),
        ("fatal", "ERROR"),
        ("retry", "WARNING"),
        ("unreadable", "ERROR"),
    ]
    assert {record.args[1:4] for record in logged} == {(task_type, 1, 10)}  # type: ignore[index]
    assert all(record.exc_info for record in logged)


def test_a_payload_that_does_not_parse_is_not_tried_again(client: howdah.Client, task_type: str) -> None:
    worker = howdah.Worker(client)

    @worker.task(task_type)
    def handle(mail: Mail) -> None:
        raise AssertionError

    with worker:
        [job] = end(client, client.enqueue(task_type, b"no json"))
    assert job.state == v1.JOB_STATE_DEAD and job.failures[0].error.startswith("the payload is not Mail: ")


def test_progress_checkpoints_and_extensions_are_stored(client: howdah.Client, task_type: str) -> None:
    worker = howdah.Worker(client)

    @worker.task(task_type)
    def handle(payload: Any, job: howdah.Job) -> Any:
        if job.attempt == 1:
            assert not job.checkpoint and job.deadline is not None
            job.progress(0.5, "half", checkpoint={"page": 3})
            job.extend(60)
            raise howdah.Retry("again", after=0)
        return howdah.decode(job.checkpoint)

    with worker:
        done = client.enqueue(task_type, timeout=30)
        [job] = end(client, done)
    assert howdah.decode(job.result) == {"page": 3} and job.progress.text == "half" and job.progress.fraction == 0.5


def test_a_cancelled_job_reaches_its_thread_and_its_coroutine(client: howdah.Client, task_type: str) -> None:
    worker = howdah.Worker(client)
    started, reasons = threading.Barrier(3), []

    @worker.task(f"{task_type}.thread")
    def in_thread(payload: Any, job: howdah.Job) -> None:
        started.wait(20)
        assert job.cancelled.wait(20)
        reasons.append(job.cancel_reason)
        with pytest.raises(howdah.LeaseLost):
            job.extend(5)

    @worker.task(f"{task_type}.coroutine")
    async def in_loop(payload: Any, job: howdah.AsyncJob) -> None:
        try:
            await asyncio.to_thread(started.wait, 20)
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            reasons.append(job.cancel_reason)
            raise

    with worker:
        ids = [client.enqueue(f"{task_type}.{kind}").id for kind in ("thread", "coroutine")]
        started.wait(20)
        client.jobs.CancelJobs(v1.CancelJobsRequest(ids=ids))
    assert reasons == ["cancelled", "cancelled"]
    assert worker.join().cancelled == 2


def test_a_stop_waits_for_handlers_and_then_gives_their_jobs_up(client: howdah.Client, task_type: str) -> None:
    worker = howdah.Worker(client, stop_timeout=0.2)
    started, release = threading.Semaphore(0), threading.Event()

    @worker.task(task_type)
    def handle(payload: bool, job: howdah.Job) -> str:
        started.release()
        # One of the two running handlers checks `job.cancelled`, the other one ignores it.
        (job.cancelled if payload else release).wait(20)
        return job.cancel_reason

    worker.start()
    jobs = [client.enqueue(task_type, listens) for listens in (True, False)]
    for _ in jobs:
        assert started.acquire(timeout=20)
    worker.stop()
    report = worker.join(10)
    release.set()
    assert (report.acked, report.released, report.unconfirmed) == (1, 1, 0)
    listening, deaf = (client.jobs.GetJob(v1.GetJobRequest(id=job.id)).job for job in jobs)
    assert howdah.decode(listening.result) == "stop"
    assert (deaf.state, deaf.attempt) == (v1.JOB_STATE_READY, 0)


def test_a_handler_gives_its_job_back_when_the_worker_stops(client: howdah.Client, task_type: str) -> None:
    worker = howdah.Worker(client, stop_timeout=0)
    started = threading.Event()

    @worker.task(task_type)
    def handle(payload: Any, job: howdah.Job) -> None:
        job.raise_if_cancelled()
        started.set()
        assert job.cancelled.wait(20)
        job.raise_if_cancelled()

    with worker:
        done = client.enqueue(task_type)
        assert started.wait(20)
    report = worker.join()
    assert (report.released, report.acked, report.failed) == (1, 0, 0)
    job = client.get(done.id)
    assert (job.state, job.attempt) == (v1.JOB_STATE_READY, 0)


def test_a_handler_that_abandons_a_cancelled_job_has_not_failed(
    client: howdah.Client, task_type: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = howdah.Worker(client)
    started, errors = threading.Event(), []

    @worker.task(task_type)
    def handle(payload: Any, job: howdah.Job) -> None:
        started.set()
        assert job.cancelled.wait(20)
        try:
            job.raise_if_cancelled()
        except howdah.LeaseLost as error:
            errors.append(str(error))
            raise

    with worker:
        done = client.enqueue(task_type)
        assert started.wait(20)
        assert client.cancel(done.id) == [done.id]
    assert errors == [f"the lease of job {done.id} is lost: the job was cancelled"]
    assert worker.join().cancelled == 1
    assert not [record for record in caplog.records if "attempt" in record.getMessage()]


def test_a_worker_that_has_started_takes_no_handlers(client: howdah.Client, task_type: str) -> None:
    worker = howdah.Worker(client)
    worker.task(task_type)(lambda payload: None)
    with worker:
        list(client.wait([client.enqueue(task_type).id], 30))
        with pytest.raises(RuntimeError, match="has started"):
            worker.task(f"{task_type}.late")(lambda payload: None)


def test_no_more_handlers_run_than_their_concurrency(client: howdah.Client, task_type: str) -> None:
    worker = howdah.Worker(client, concurrency=3, window=20)
    lock, running, most = threading.Lock(), 0, 0

    @worker.task(task_type)
    def handle(payload: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.005)
        with lock:
            running -= 1

    with worker:
        end(client, *client.enqueue_many([howdah.new_job(task_type, n) for n in range(60)]))
    assert most == 3


def test_the_types_of_a_worker_share_its_concurrency(client: howdah.Client, task_type: str) -> None:
    worker = howdah.Worker(client, concurrency=3)
    lock, running, most = threading.Lock(), {"a": 0, "b": 0}, {"a": 0, "b": 0, "both": 0}

    def count(name: str, change: int) -> None:
        with lock:
            running[name] += change
            most[name] = max(most[name], running[name])
            most["both"] = max(most["both"], sum(running.values()))

    def handle(name: str) -> None:
        count(name, 1)
        threading.Event().wait(0.005)
        count(name, -1)

    worker.task(f"{task_type}.a")(handle)
    worker.task(f"{task_type}.b", concurrency=1)(handle)
    with worker:
        end(client, *client.enqueue_many([howdah.new_job(f"{task_type}.{name}", name) for name in "ab" * 30]))
    assert most["b"] == 1 and most["a"] <= 3 and most["both"] == 3


def test_a_job_that_waits_in_a_busy_worker_goes_to_another_one(client: howdah.Client, task_type: str) -> None:
    busy, idle = howdah.Worker(client, concurrency=1), howdah.Worker(client)
    started, finish = threading.Event(), threading.Event()

    @busy.task(f"{task_type}.long")
    def last_long(payload: Any) -> None:
        started.set()
        finish.wait(60)

    busy.task(f"{task_type}.short")(lambda payload: "busy")
    idle.task(f"{task_type}.short")(lambda payload: "idle")
    with busy:
        long = client.enqueue(f"{task_type}.long")
        assert started.wait(20)
        # The busy worker is the only one, so it gets this job.
        short = client.enqueue(f"{task_type}.short")
        with idle:
            assert [howdah.decode(job.result) for job in end(client, short)] == ["idle"]
        [listed] = client.workers.ListWorkers(v1.ListWorkersRequest(task_type=f"{task_type}.long")).workers
        windows = {window.task_type: window.window_jobs for window in listed.windows}
        assert windows == {f"{task_type}.long": 1, f"{task_type}.short": 0}
        finish.set()
        end(client, long)
        # The busy worker takes jobs of both types again.
        assert [howdah.decode(job.result) for job in end(client, client.enqueue(f"{task_type}.short"))] == ["busy"]
    report = busy.join()
    assert (report.released, report.acked) == (1, 2)


def test_middleware_is_around_each_handler(client: howdah.Client, task_type: str) -> None:
    seen: List[str] = []

    @contextmanager
    def around(job: howdah.Job) -> Iterator[None]:
        seen.append(f"before {job.attempt}")
        try:
            yield
        except howdah.Retry as outcome:
            seen.append(str(outcome))
            raise
        finally:
            seen.append("after")

    worker = howdah.Worker(client, middleware=[around])

    @worker.task(task_type)
    def handle(payload: Any, job: howdah.Job) -> None:
        if job.attempt == 1:
            raise howdah.Retry("no", after=0)

    with worker:
        end(client, client.enqueue(task_type))
    assert seen == ["before 1", "no", "after", "before 2", "after"]


def test_a_blocking_call_in_an_async_handler_fails(client: howdah.Client, task_type: str) -> None:
    worker = howdah.Worker(client)

    @worker.task(task_type)
    async def handle(payload: Any) -> None:
        client.enqueue(f"{task_type}.other")

    with worker:
        [job] = end(client, client.enqueue(task_type, max_attempts=1))
    assert "use AsyncClient" in job.failures[0].error


def test_a_worker_that_the_broker_refuses_ends_with_the_reason(broker: Broker) -> None:
    worker = howdah.Worker(howdah.Client(broker.address))
    worker.task("no spaces")(lambda payload: None)
    worker.start()
    with pytest.raises(howdah.HowdahError, match="no spaces") as caught:
        worker.join(20)
    assert caught.value.reason == "INVALID_FIELD"


def test_the_concurrency_of_a_type_changes_while_it_runs(client: howdah.Client, task_type: str) -> None:
    worker = howdah.Worker(client)
    both = threading.Barrier(2)

    @worker.task(task_type, concurrency=1)
    def handle(payload: Any) -> None:
        both.wait(20)

    with worker:
        jobs = [client.enqueue(task_type) for _ in range(2)]
        worker.set_concurrency(task_type, 2)
        assert all(job.state == v1.JOB_STATE_SUCCEEDED for job in end(client, *jobs))


def test_the_waiting_jobs_of_a_type_that_is_paused_go_to_another_worker(client: howdah.Client, task_type: str) -> None:
    paused, other = howdah.Worker(client, concurrency=1, window=2), howdah.Worker(client)
    started, finish = threading.Event(), threading.Event()

    @paused.task(task_type)
    def handle(payload: Any) -> str:
        started.set()
        finish.wait(60)
        return "paused"

    other.task(task_type)(lambda payload: "other")
    with paused:
        first = client.enqueue(task_type)
        assert started.wait(20)
        second = client.enqueue(task_type)
        paused.set_concurrency(task_type, 0)
        with other:
            assert [howdah.decode(job.result) for job in end(client, second)] == ["other"]
        finish.set()
        assert [howdah.decode(job.result) for job in end(client, first)] == ["paused"]


def test_the_concurrency_of_a_type_changes_while_its_stream_is_opened(
    client: howdah.Client, task_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = howdah.Worker(client)
    both = threading.Barrier(2)

    @worker.task(task_type, concurrency=1)
    def handle(payload: Any) -> None:
        both.wait(20)

    async def opened_and_then_changed(session: Any, index: int) -> Any:
        # The Subscribe of this stream has a window of 1. The window is resized to 2 after the Subscribe.
        stream = await open_stream(session, index)
        session.resize(task_type, 2)
        return stream

    monkeypatch.setattr("howdah.session.open_stream", opened_and_then_changed)
    with worker:
        jobs = [client.enqueue(task_type) for _ in range(2)]
        assert all(job.state == v1.JOB_STATE_SUCCEEDED for job in end(client, *jobs))


def test_the_concurrency_of_a_type_changes_before_it_runs(client: howdah.Client, task_type: str) -> None:
    worker = howdah.Worker(client)
    both = threading.Barrier(2)

    @worker.task(task_type, concurrency=1)
    def handle(payload: Any) -> None:
        both.wait(20)

    worker.set_concurrency(task_type, 2)
    with worker:
        jobs = [client.enqueue(task_type) for _ in range(2)]
        assert all(job.state == v1.JOB_STATE_SUCCEEDED for job in end(client, *jobs))


def test_a_result_that_cannot_be_sent_is_a_fatal_failure(client: howdah.Client, task_type: str) -> None:
    worker = howdah.Worker(client)

    @worker.task(task_type)
    def handle(payload: str) -> Any:
        return {1, 2} if payload == "returned" else howdah.Done({1, 2})

    with worker:
        jobs = end(client, *[client.enqueue(task_type, name) for name in ("returned", "outcome")])
    assert {job.state for job in jobs} == {v1.JOB_STATE_DEAD}
    assert all("not JSON serializable" in job.failures[0].error for job in jobs)

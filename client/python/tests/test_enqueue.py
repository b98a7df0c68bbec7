"""Enqueues, waits and operators' calls, against a broker."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Iterator

import grpc
import pytest

import howdah
from howdah import v1
from howdah.testing import Broker


def test_a_job_is_stored_with_every_option(client: howdah.Client, task_type: str) -> None:
    tomorrow = datetime.now(timezone.utc) + timedelta(days=1)
    done = client.enqueue(
        task_type,
        {"to": "ann"},
        headers={"a": "b"},
        tags=["batch-17", "ü", "ü"],
        priority=-5,
        run_at=tomorrow,
        max_attempts=3,
        retry_policy={"kind": "list", "delays": [1, timedelta(minutes=1)]},
        timeout=timedelta(seconds=30),
        key="welcome-ann",
        key_policy="replace",
        expire_after=timedelta(days=2),
        limit_key="tenant",
        fair_key="fair",
        next_stages=["second", "third"],
        stage_payload="unchanged",
        parent_id=7,
    )
    assert done.is_new and done.outcome == "new"
    job = client.jobs.GetJob(v1.GetJobRequest(id=done.id)).job
    assert howdah.decode(job.payload) == {"to": "ann"}
    assert (job.priority, job.max_attempts, job.key, job.limit_key, job.fair_key) == (
        -5,
        3,
        "welcome-ann",
        "tenant",
        "fair",
    )
    assert dict(job.headers) == {"a": "b"} and list(job.next_stages) == ["second", "third"] and job.parent_id == 7
    assert list(job.tags) == ["batch-17", "ü"]
    assert abs(job.run_time.ToDatetime(timezone.utc) - tomorrow) < timedelta(milliseconds=1)
    assert job.state == v1.JOB_STATE_SCHEDULED


def test_a_key_finds_the_job_that_has_it(client: howdah.Client, task_type: str) -> None:
    first = client.enqueue(task_type, key="k")
    assert client.enqueue(task_type, key="k") == howdah.Enqueued(first.id, False, "kept")
    assert client.enqueue(task_type, key="k", key_policy="replace").outcome == "replaced"


def test_a_request_key_returns_the_same_ids(client: howdah.Client, task_type: str) -> None:
    jobs = [howdah.new_job(task_type, 1), howdah.new_job(task_type, 2)]
    key = howdah.new_request_key()
    first = client.enqueue_many(jobs, request_key=key)
    again = client.enqueue_many(jobs, request_key=key)
    assert [job.id for job in again] == [job.id for job in first] and again[0].outcome == "repeated"
    with pytest.raises(howdah.HowdahError) as caught:
        client.enqueue_many(jobs[:1], request_key=key)
    assert caught.value.reason == "REQUEST_KEY_REUSED"


async def test_a_request_key_of_one_job_returns_the_same_id(
    broker: Broker, client: howdah.Client, task_type: str
) -> None:
    key = howdah.new_request_key()
    first = client.enqueue(task_type, 1, request_key=key, tags=["t"])
    async with howdah.AsyncClient(broker.address) as other:
        again = await other.enqueue(task_type, 1, request_key=key, tags=["t"])
    assert (again.id, again.outcome) == (first.id, "repeated")


def test_a_refusal_names_code_reason_and_field(client: howdah.Client, task_type: str) -> None:
    with pytest.raises(howdah.HowdahError, match="no spaces") as caught:
        client.enqueue_many([howdah.new_job(task_type), howdah.new_job("no spaces")])
    error = caught.value
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert error.field == "jobs[1].task_type" and not error.retryable


def test_an_unknown_option_or_word_is_refused_at_once(client: howdah.Client) -> None:
    with pytest.raises(TypeError, match="no option 'dealy'"):
        client.enqueue("a", dealy=1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="key_policy: 'overwrite' is not one of keep, replace"):
        client.enqueue("a", key="k", key_policy="overwrite")


def test_a_pipeline_answers_each_job_and_fails_only_the_one_at_fault(client: howdah.Client, task_type: str) -> None:
    with client.producer(max_batch_jobs=100) as producer:
        futures = [producer.submit("no spaces" if n == 500 else task_type, n) for n in range(1_000)]
    errors = [n for n, future in enumerate(futures) if future.exception() is not None]
    assert errors == [500]
    error = futures[500].exception()
    assert isinstance(error, howdah.HowdahError) and error.field == "jobs[0].task_type"
    ids = {future.result().id for n, future in enumerate(futures) if n != 500}
    assert len(ids) == 999
    with pytest.raises(howdah.Stopped):
        producer.submit(task_type).result()


def test_submitting_waits_while_the_queue_is_full(client: howdah.Client, task_type: str) -> None:
    with client.producer(max_queued_bytes=2_000, max_in_flight=1) as producer:
        futures = [producer.submit(task_type, b"x" * 500) for _ in range(50)]
        assert sum(not future.done() for future in futures) < 4
        producer.flush()
        assert all(future.done() for future in futures)


async def test_asyncio_enqueues_and_waits_for_what_workers_make(broker: Broker, task_type: str) -> None:
    async with howdah.AsyncClient(broker.address) as client:
        worker = howdah.Worker(client)

        @worker.task(task_type)
        async def double(payload: int) -> int:
            return 2 * payload

        serving = asyncio.ensure_future(worker.serve())
        async with client.producer() as producer:
            futures = [await producer.submit(task_type, n) for n in range(100)]
            ids = {(await future).id: n for n, future in enumerate(futures)}
        found = {job.id: howdah.decode(job.result) async for job in client.wait(ids, 30)}
        assert found == {job_id: 2 * n for job_id, n in ids.items()}
        worker.stop()
        assert (await serving).acked == 100


def test_waiting_ends_at_its_timeout(client: howdah.Client, task_type: str) -> None:
    job = client.enqueue(task_type)
    with pytest.raises(howdah.HowdahError) as caught:
        list(client.wait([job.id], 0.1))
    assert caught.value.code == grpc.StatusCode.DEADLINE_EXCEEDED


def test_every_call_of_the_protocol_is_at_hand(client: howdah.Client, task_type: str) -> None:
    job = client.enqueue(task_type)
    assert list(client.jobs.CancelJobs(v1.CancelJobsRequest(ids=[job.id])).cancelled_ids) == [job.id]
    template = howdah.new_job(task_type)
    plan = {"period": timedelta(hours=1), "start_time": datetime(2096, 1, 1, tzinfo=timezone.utc)}
    schedule = howdah.fill(v1.Schedule(name=task_type, template=template), plan)
    assert client.schedules.CreateSchedule(v1.CreateScheduleRequest(schedule=schedule)).schedule.next_times
    assert client.schedules.RunSchedule(v1.RunScheduleRequest(name=task_type)).job.is_new
    assert client.settings.GetSettings(v1.GetSettingsRequest()).settings.batch == 10_000
    types = client.task_types.ListTaskTypes(v1.ListTaskTypesRequest(task_type=task_type)).task_types
    assert types[0].counts.ready == 1


def test_middleware_is_around_each_job_that_is_enqueued(broker: Broker, task_type: str) -> None:
    seen = []

    @contextmanager
    def tenant(job: v1.NewJob) -> Iterator[None]:
        job.headers["tenant"] = "t1"
        seen.append("before")
        yield
        seen.append("after")

    with howdah.Client(broker.address, middleware=[tenant]) as client:
        made = howdah.new_job(task_type)
        done = client.enqueue_many([made])[0]
        assert client.jobs.GetJob(v1.GetJobRequest(id=done.id)).job.headers["tenant"] == "t1"
    assert seen == ["before", "after"] and not made.headers


def test_a_call_ends_when_no_broker_answers() -> None:
    with howdah.Client("127.0.0.1:1", request_timeout=0.5) as client:
        with pytest.raises(howdah.HowdahError, match=r"127\.0\.0\.1:1") as caught:
            client.enqueue("a")
    assert caught.value.retryable


def test_a_producer_gives_up_when_no_broker_answers() -> None:
    with howdah.Client("127.0.0.1:1", request_timeout=0.5) as client, client.producer() as producer:
        future = producer.submit("a")
    error = future.exception()
    assert isinstance(error, howdah.HowdahError) and error.code == grpc.StatusCode.DEADLINE_EXCEEDED

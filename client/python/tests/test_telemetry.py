"""Spans and metrics, against a broker, with exporters to memory. docs/operate/tracing.md lists them."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from typing import Any, Dict, Iterator, List, Tuple

import pytest

import howdah
from howdah import testing, v1
from howdah.handler import Handler, JobBase
from howdah.ledger import HeldLease, Ledger
from howdah.slots import Slot
from howdah.telemetry import processing
from howdah.testing import Broker

pytest.importorskip("opentelemetry.sdk")
from opentelemetry import context, trace
from opentelemetry.trace import SpanContext, SpanKind, StatusCode
from recorded import (
    CONSUMED,
    OPERATION,
    PROCESS,
    SENT,
    Recorded,
    attributes,
    ids_of,
    linked,
    parent,
    span_context,
    traceparent,
)


@pytest.fixture(scope="session")
def sdk() -> Recorded:
    return Recorded()


@pytest.fixture
def recorded(sdk: Recorded) -> Recorded:
    sdk.exporter.clear()
    return sdk


@pytest.fixture
def remote() -> Iterator[SpanContext]:
    """A current trace context, as of a request that the producer handles."""
    ids = trace.get_tracer_provider().id_generator  # type: ignore[attr-defined]
    current = SpanContext(ids.generate_trace_id(), ids.generate_span_id(), True, trace.TraceFlags(1))
    token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(current)))
    yield current
    context.detach(token)


def contexts(client: howdah.Client, *task_types: str) -> Dict[int, str]:
    """Returns the trace contexts of the ready jobs by job id."""
    request = v1.PullJobsRequest(task_types=task_types, max_jobs=100)
    return {job.id: job.traceparent for job in client.workers.PullJobs(request).jobs}


def test_one_job_is_one_trace_from_the_request_to_the_confirmation(
    broker: Broker, client: howdah.Client, task_type: str, recorded: Recorded, remote: SpanContext
) -> None:
    worker = howdah.Worker(client)
    inside: List[SpanContext] = []

    @worker.task(task_type)
    def handle(payload: Any, job: howdah.Job) -> None:
        inside.append(trace.get_current_span().get_span_context())

    with worker:
        job = client.enqueue(task_type)
        list(client.wait([job.id]))
    send, process, ack = (recorded.span(f"{name} {task_type}") for name in ("send", "process", "ack"))
    assert {span_context(span).trace_id for span in (send, process, ack)} == {remote.trace_id}
    assert [parent(span) for span in (send, process, ack)] == [
        remote.span_id,
        span_context(send).span_id,
        span_context(process).span_id,
    ]
    assert [span.kind for span in (send, process, ack)] == [SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CLIENT]
    assert linked(process) == ids_of(send) and not send.links and not ack.links
    assert inside == [span_context(process)]
    of_job = {"messaging__message__id": str(job.id)}
    assert dict(send.attributes or {}) == attributes(broker, "send", "send", task_type, **of_job)
    of_job["howdah__attempt"] = 1  # type: ignore[assignment]
    assert dict(process.attributes or {}) == attributes(broker, "process", "process", task_type, **of_job)
    assert dict(ack.attributes or {}) == attributes(broker, "ack", "settle", task_type, **of_job)
    assert {span.status.status_code for span in (send, process, ack)} == {StatusCode.UNSET}
    assert process.end_time is not None and ack.start_time is not None and ack.end_time is not None
    assert process.start_time is not None and process.start_time <= ack.start_time <= ack.end_time
    assert recorded.counted(OPERATION, task_type) == {("send", "send"): 1, ("ack", "settle"): 1}
    assert recorded.counted(SENT, task_type) == {("send",): 1}
    assert recorded.counted(CONSUMED, task_type) == recorded.counted(PROCESS, task_type) == {("process",): 1}


def test_each_job_of_several_has_a_create(
    broker: Broker, client: howdah.Client, task_type: str, recorded: Recorded
) -> None:
    other = f"{task_type}.other"
    own_trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    jobs = [howdah.new_job(task_type), howdah.new_job(other), howdah.new_job(task_type, traceparent=own_trace)]
    answers = client.enqueue_many(jobs)
    creates, send = [recorded.span(f"create {name}") for name in (task_type, other)], recorded.span("send")
    expected = {answers[2].id: own_trace}
    for create, answer, name in zip(creates, answers, (task_type, other)):
        assert (create.kind, parent(create)) == (SpanKind.PRODUCER, span_context(send).span_id)
        of_job = {"messaging__message__id": str(answer.id)}
        assert dict(create.attributes or {}) == attributes(broker, "create", "create", name, **of_job)
        expected[answer.id] = traceparent(create)
    assert contexts(client, task_type, other) == expected
    given = (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
    assert send.kind == SpanKind.CLIENT and set(linked(send)) == {given, *ids_of(*creates)}
    of_all = attributes(broker, "send", "send", task_type, messaging__batch__message_count=3)
    del of_all["messaging.destination.name"]
    assert dict(send.attributes or {}) == of_all
    assert recorded.counted(SENT, task_type) == {("send",): 2} and recorded.counted(SENT, other) == {("send",): 1}
    assert not any(point for point in recorded.points(OPERATION, task_type))


def test_the_jobs_of_a_request_with_a_key_of_the_caller_get_no_context(
    client: howdah.Client, task_type: str, recorded: Recorded
) -> None:
    jobs, key = [howdah.new_job(task_type), howdah.new_job(task_type)], howdah.new_request_key()
    assert [job.is_new for job in client.enqueue_many(jobs, request_key=key)] == [True, True]
    answers = client.enqueue_many(jobs, request_key=key)
    assert [job.outcome for job in answers] == ["repeated", "repeated"]
    assert contexts(client, task_type) == {job.id: "" for job in answers}
    for span in recorded.spans(f"send {task_type}"):
        assert (span.kind, span.links) == (SpanKind.CLIENT, ())
    assert not recorded.spans(f"create {task_type}")


def test_a_job_with_a_context_of_its_own_keeps_it(client: howdah.Client, task_type: str, recorded: Recorded) -> None:
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    job = client.enqueue(task_type, traceparent=given, tracestate="vendor=abc")
    assert contexts(client, task_type) == {job.id: given}
    send = recorded.span(f"send {task_type}")
    assert send.kind == SpanKind.CLIENT and [link.context.trace_state["vendor"] for link in send.links] == ["abc"]


async def test_a_submission_to_a_pipeline_lasts_until_its_answer(
    broker: Broker, client: howdah.Client, task_type: str, recorded: Recorded
) -> None:
    async with howdah.AsyncClient(broker.address) as enqueuer:
        async with enqueuer.producer() as producer:
            futures = [await producer.submit(name) for name in (task_type, "no spaces", task_type)]
            assert not recorded.spans(f"send {task_type}")
            good, _, last = await asyncio.gather(*futures, return_exceptions=True)
    assert isinstance(good, howdah.Enqueued) and isinstance(last, howdah.Enqueued) and good != last
    sends = recorded.spans(f"send {task_type}")
    of_spans = {(span.attributes or {})["messaging.message.id"]: traceparent(span) for span in sends}
    assert of_spans == {str(job_id): each for job_id, each in contexts(client, task_type).items()}
    assert set(of_spans) == {str(good.id), str(last.id)} and {span.kind for span in sends} == {SpanKind.PRODUCER}
    refused = recorded.span("send no spaces")
    assert refused.status.status_code == StatusCode.ERROR
    assert (refused.attributes or {})["error.type"] == "INVALID_FIELD"
    assert recorded.counted(SENT, task_type) == {("send",): 2}
    assert recorded.counted(SENT, "no spaces")[("send", "INVALID_FIELD")] >= 1


def test_a_blocking_producer_records_the_same(client: howdah.Client, task_type: str, recorded: Recorded) -> None:
    with client.producer() as producer:
        job = producer.submit(task_type).result(20)
    assert contexts(client, task_type) == {job.id: traceparent(recorded.span(f"send {task_type}"))}


def test_a_refused_enqueue_and_a_broker_that_is_away_are_errors(recorded: Recorded, client: howdah.Client) -> None:
    with pytest.raises(howdah.HowdahError):
        client.enqueue("bad type")
    with howdah.Client("127.0.0.1:1,localhost:2", request_timeout=0.5) as away:
        with pytest.raises(howdah.HowdahError):
            away.enqueue("away")
    refused, unsent = recorded.span("send bad type"), recorded.span("send away")
    found = [(span.attributes or {})["error.type"] for span in (refused, unsent)]
    assert found == ["INVALID_FIELD", "UNAVAILABLE"]
    assert refused.status.status_code == StatusCode.ERROR and "bad type" in str(refused.status.description)
    assert [event.name for event in refused.events] == ["exception"]
    # The span of a failed enqueue has the address of the last attempt.
    server = {(span.attributes or {})["server.address"]: (span.attributes or {})["server.port"] for span in [unsent]}
    assert server in ({"127.0.0.1": 1}, {"localhost": 2})
    assert recorded.counted(SENT, "bad type") == {("send", "INVALID_FIELD"): 1}
    assert recorded.counted(OPERATION, "bad type") == {("send", "send", "INVALID_FIELD"): 1}


@pytest.mark.parametrize("is_async", [False, True])
def test_each_outcome_has_a_span_and_failures_are_errors(
    client: howdah.Client, task_type: str, recorded: Recorded, is_async: bool
) -> None:
    worker = howdah.Worker(client)
    raises: Dict[str, BaseException] = {
        "retry": howdah.Retry("later" + "ä" * 1024),
        "bug": KeyError("x"),
        "fatal": howdah.Fatal("never"),
        "snooze": howdah.Snooze(3600),
        "release": howdah.Release(),
    }

    def handle(kind: str, job: JobBase) -> object:
        if kind == "unsendable":
            return {1, 2}
        if job.attempt > 1 or (kind == "release" and kind in seen):
            return None
        seen.append(kind)
        raise raises[kind]

    async def handle_async(kind: str, job: howdah.AsyncJob) -> object:
        return handle(kind, job)

    seen: List[str] = []
    worker.task(task_type)(handle_async if is_async else handle)
    policy: howdah.RetryPolicy = {"kind": "fixed", "initial_delay": 0, "jitter": 0}
    with worker:
        kinds = [*raises, "unsendable"]
        jobs = {kind: client.enqueue(task_type, kind, retry_policy=policy) for kind in kinds}
        list(client.wait([job.id for kind, job in jobs.items() if kind != "snooze"]))
    found: Dict[str, List[Tuple[str, Any, str]]] = {}
    for operation in ("ack", "nack", "snooze", "release"):
        for settle in recorded.spans(f"{operation} {task_type}"):
            found_attributes = settle.attributes or {}
            [process] = [
                each for each in recorded.spans(f"process {task_type}") if span_context(each).span_id == parent(settle)
            ]
            kind = next(kind for kind, job in jobs.items() if str(job.id) == found_attributes["messaging.message.id"])
            assert settle.status.status_code == StatusCode.UNSET
            error = (process.attributes or {}).get("error.type")
            assert (process.status.status_code == StatusCode.ERROR) == (error is not None)
            assert [event.name for event in process.events] == (["exception"] if error else [])
            text = process.status.description or ""
            assert len(text.encode()) <= 1024
            found.setdefault(kind, []).append((operation, error, text[:5]))
    again = ("ack", None, "")
    assert {kind: sorted(each, reverse=True) for kind, each in found.items()} == {
        "retry": [("nack", "retry", "later"), again],
        "bug": [("nack", "retry", "KeyEr"), again],
        "fatal": [("nack", "fatal", "never")],
        "unsendable": [("nack", "fatal", "the o")],
        "snooze": [("snooze", None, "")],
        "release": [("release", None, ""), again],
    }
    assert recorded.counted(PROCESS, task_type) == {("process",): 5, ("process", "retry"): 2, ("process", "fatal"): 2}
    assert recorded.counted(CONSUMED, task_type) == {("process",): 9}
    expected = {"ack": 3, "nack": 4, "snooze": 1, "release": 1}
    settles = {(name, "settle"): count for name, count in expected.items()}
    assert recorded.counted(OPERATION, task_type) == {("send", "send"): 6, **settles}


def test_an_outcome_that_is_refused_is_one_nack(client: howdah.Client, task_type: str, recorded: Recorded) -> None:
    worker = howdah.Worker(client)
    worker.task(task_type)(lambda payload: howdah.Done(next_stage="no spaces"))
    with worker:
        list(client.wait([client.enqueue(task_type, max_attempts=1).id]))
    nack = recorded.span(f"nack {task_type}")
    assert nack.status.status_code == StatusCode.UNSET and not recorded.spans(f"ack {task_type}")
    assert recorded.counted(OPERATION, task_type) == {("send", "send"): 1, ("nack", "settle"): 1}


@pytest.mark.parametrize(
    ("status", "kind"), [(v1.SETTLE_STATUS_LEASE_LOST, "LEASE_LOST"), (v1.SETTLE_STATUS_INVALID, "INVALID")]
)
async def test_an_outcome_without_effect_is_an_error(
    status: Any, kind: str, task_type: str, recorded: Recorded
) -> None:
    # Runs without a broker: a real broker reports a lost lease before the outcome is answered, except in a rare race.
    ledger = Ledger()
    ledger.broker = telemetry_broker = howdah.broker.Broker("127.0.0.1:1", False, {})
    held = HeldLease(testing.make_job(task_type=task_type), Slot(Handler(lambda payload: None, 1), 1))
    held.job = howdah.Job(held.message, None, asyncio.get_running_loop())  # type: ignore[arg-type]
    held.job._processing = processing(held.job, telemetry_broker, False)
    ledger.held[held.key] = held
    with held.job._processing:
        pass
    ledger.end(held, v1.Ack())
    decided = time.time_ns()
    while held.key in ledger.held:
        assert not recorded.spans(f"ack {task_type}")
        [outcome] = ledger.next_batch(10, 1000)
        ledger.settled([v1.SettleResult(id=outcome.id, token=outcome.token, status=status, message="no such stage")])
    name = "ack" if kind == "LEASE_LOST" else "nack"
    settle = recorded.span(f"{name} {task_type}")
    assert (settle.attributes or {})["error.type"] == kind and settle.status.status_code == StatusCode.ERROR
    assert settle.start_time is not None and settle.start_time <= decided
    text = "the lease of job 1 is lost" if kind == "LEASE_LOST" else "no such stage"
    assert settle.status.description == text and [event.name for event in settle.events] == ["exception"]
    assert recorded.counted(OPERATION, task_type) == {(name, "settle", kind): 1}


def test_an_outcome_that_no_broker_confirms_is_an_error(task_type: str, recorded: Recorded) -> None:
    started, end = threading.Event(), threading.Event()
    with Broker() as broker:
        client = howdah.Client(broker.address)
        worker = howdah.Worker(client)

        @worker.task(task_type)
        def handle(payload: Any) -> None:
            started.set()
            end.wait(20)

        worker.start()
        client.enqueue(task_type)
        assert started.wait(20)
    worker.stop(now=True)
    assert worker.join(20).unconfirmed == 1
    end.set()
    client.close()
    release = recorded.span(f"release {task_type}")
    assert (release.attributes or {})["error.type"] == "UNCONFIRMED" and release.status.status_code == StatusCode.ERROR
    assert recorded.counted(OPERATION, task_type)["release", "settle", "UNCONFIRMED"] == 1


def test_what_is_not_sampled_goes_on_unsampled_and_is_measured(
    client: howdah.Client, task_type: str, recorded: Recorded, remote: SpanContext
) -> None:
    unsampled = SpanContext(remote.trace_id, remote.span_id, True, trace.TraceFlags(0))
    token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(unsampled)))
    worker, seen = howdah.Worker(client), []
    worker.task(task_type)(lambda payload, job: seen.append(job.traceparent))
    with worker:
        jobs = client.enqueue_many([howdah.new_job(task_type), howdah.new_job(task_type)])
        list(client.wait([job.id for job in jobs]))
    context.detach(token)
    assert len(set(seen)) == 1 and re.fullmatch(f"00-{remote.trace_id:032x}-[0-9a-f]{{16}}-0[02]", seen[0])
    assert not [span for span in recorded.exporter.get_finished_spans() if task_type in span.name]
    assert recorded.counted(OPERATION, task_type) == {("send", "send"): 1, ("ack", "settle"): 2}
    assert recorded.counted(SENT, task_type) == {("send",): 2} and recorded.counted(PROCESS, task_type) == {
        ("process",): 2
    }


def test_a_job_without_a_context_begins_a_trace(
    client: howdah.Client, task_type: str, recorded: Recorded, remote: SpanContext
) -> None:
    worker = howdah.Worker(client)
    worker.task(task_type)(lambda payload: None)
    with worker:
        jobs = client.enqueue_many([howdah.new_job(task_type)], request_key=howdah.new_request_key())
        list(client.wait([job.id for job in jobs]))
    process = recorded.span(f"process {task_type}")
    assert parent(process) is None and not process.links and span_context(process).trace_id != remote.trace_id


def test_with_linked_each_attempt_begins_a_trace(client: howdah.Client, task_type: str, recorded: Recorded) -> None:
    worker = howdah.Worker(client, linked=True)
    worker.task(task_type)(lambda payload: None)
    with worker:
        list(client.wait([client.enqueue(task_type).id]))
    send, process, ack = (recorded.span(f"{name} {task_type}") for name in ("send", "process", "ack"))
    assert parent(process) is None and span_context(process).trace_id != span_context(send).trace_id
    assert linked(process) == ids_of(send) and span_context(ack).trace_id == span_context(process).trace_id


# A program that has not set up OpenTelemetry's SDK. With the SDK, the job would get the current trace context.
OFF = """
import sys, howdah
from opentelemetry import context, trace
own = trace.SpanContext(1, 2, True, trace.TraceFlags(1))
context.attach(trace.set_span_in_context(trace.NonRecordingSpan(own)))
worker, seen = howdah.Worker(howdah.Client(sys.argv[1])), []
worker.task(sys.argv[2])(lambda payload, job: seen.append(job.traceparent))
with worker, howdah.Client(sys.argv[1]) as client:
    list(client.wait([client.enqueue(sys.argv[2]).id]))
assert seen == [""], seen
"""


def test_nothing_is_recorded_without_an_sdk(broker: Broker, task_type: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    command = [sys.executable, "-I", "-c", OFF, broker.address, task_type]
    subprocess.run(command, check=True, timeout=60, env=environment)

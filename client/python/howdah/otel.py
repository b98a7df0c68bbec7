"""Spans and metrics by OpenTelemetry's conventions for messaging. docs/operate/tracing.md lists them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, ContextManager, Dict, Optional, Sequence, Tuple, Union

from opentelemetry import context, metrics, trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from . import v1
from .broker import VERSION, Broker
from .connection import log
from .errors import HowdahError
from .telemetry import Processing, Sending

if TYPE_CHECKING:
    from typing_extensions import Self

    from .client import Enqueued
    from .handler import JobBase
    from .outcome import OutcomeMessage

if "explicit_bucket_boundaries_advisory" not in inspect.signature(metrics.Meter.create_histogram).parameters:
    log.warning("opentelemetry-api is older than 1.30: jobs have no spans and no metrics")
    raise ImportError("opentelemetry-api is older than 1.30")

Attributes = Dict[str, Union[str, int]]
_BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
_LONGEST_STATUS = 1 << 10
_W3C = TraceContextTextMapPropagator()
# These need no SDK. If the program sets up an OpenTelemetry SDK later, spans and metrics from then on go to it.
_tracer, _meter = trace.get_tracer("howdah", VERSION), metrics.get_meter("howdah", VERSION)
_operations = _meter.create_histogram(
    "messaging.client.operation.duration",
    "s",
    "Duration of an enqueue, or of settling a job.",
    explicit_bucket_boundaries_advisory=_BUCKETS,
)
_processes = _meter.create_histogram(
    "messaging.process.duration", "s", "Run time of a handler.", explicit_bucket_boundaries_advisory=_BUCKETS
)
_sent = _meter.create_counter("messaging.client.sent.messages", "{message}", "Jobs that were sent.")
_consumed = _meter.create_counter("messaging.client.consumed.messages", "{message}", "Jobs passed to a handler.")


def _providers() -> Tuple[Any, Any]:
    return trace.get_tracer_provider(), metrics.get_meter_provider()


# The API's own default providers, which record nothing.
_idle = {
    each for each in _providers() if type(each).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))
}
_was_on = False


def is_on() -> bool:
    """Whether the program has set up an SDK. Once true, the result stays true."""
    global _was_on
    if not _was_on:
        tracers, meters = _providers()
        _was_on = tracers not in _idle or meters not in _idle
    return _was_on


class Send(Sending):
    """Telemetry of an enqueue of one or more jobs."""

    def __init__(self, jobs: Sequence[v1.NewJob], broker: Broker, request_key: str) -> None:
        self._began, self._ended, self._broker = time.perf_counter(), False, broker
        self._types = Counter(job.task_type for job in jobs)
        self._one_type: Attributes = _destination(jobs[0].task_type) if len(self._types) == 1 else {}
        # If the caller passes a request key, jobs get no trace context, because a repeated request must be identical.
        without = [] if request_key else [n for n, job in enumerate(jobs) if not job.traceparent]
        several: Attributes = {"messaging.batch.message_count": len(jobs)} if len(jobs) > 1 else {}
        self._span = _tracer.start_span(
            f"send {jobs[0].task_type}" if self._one_type else "send",
            kind=SpanKind.PRODUCER if without and not several else SpanKind.CLIENT,
            attributes={**_operation("send", "send"), **self._one_type, **_server(broker), **several},
            links=[Link(each) for each in map(_context_of, jobs) if each.is_valid],
        )
        self._alone = not several
        self._creates: Dict[int, Span] = {}
        if several and self._span.is_recording():
            self._creates = {n: self._create(jobs[n].task_type) for n in without}
        for n in without:
            _give_context(jobs[n], self._creates.get(n, self._span))

    def _create(self, task_type: str) -> Span:
        attributes = {**_operation("create", "create"), **_destination(task_type), **_server(self._broker)}
        parent = trace.set_span_in_context(self._span)
        span = _tracer.start_span(f"create {task_type}", parent, SpanKind.PRODUCER, attributes)
        self._span.add_link(span.get_span_context())
        return span

    def used(self, broker: Broker) -> None:
        self._broker = broker

    def current(self) -> ContextManager[Any]:
        return trace.use_span(self._span, record_exception=False, set_status_on_exception=False)

    def end(self, answers: Sequence[Enqueued] = (), error: Optional[BaseException] = None) -> None:
        if self._ended:
            return
        self._ended, server = True, _server(self._broker)
        ids: Dict[int, Attributes] = {n: {"messaging.message.id": str(each.id)} for n, each in enumerate(answers)}
        for n, create in self._creates.items():
            create.set_attributes({**server, **ids.get(n, {})})
            create.end()
        self._span.set_attributes({**server, **(ids.get(0, {}) if self._alone else {})})
        failed: Attributes = {} if error is None else {"error.type": _kind_of(error)}
        if error is not None:
            _fail(self._span, _kind_of(error), str(error), error)
        self._span.end()
        seconds = time.perf_counter() - self._began
        _operations.record(seconds, {**_operation("send", "send"), **self._one_type, **server, **failed})
        for task_type, count in self._types.items():
            _sent.add(count, {**_operation("send"), **_destination(task_type), **server, **failed})


class Process(Processing):
    """Telemetry of an attempt and of the settling of its outcome."""

    def __init__(self, job: JobBase, broker: Broker, linked: bool) -> None:
        self._job, self._broker, self._linked = job, broker, linked
        self._recorded, self._began = False, 0.0
        self._span: Optional[Span] = None
        self._error: Tuple[str, str, Optional[BaseException]] = ("", "", None)
        self._settling: Optional[Tuple[int, float]] = None

    def __enter__(self) -> Self:
        job, origin = self._job, _context_of(self._job)
        _consumed.add(1, {**_operation("process"), **_destination(job.task_type), **_server(self._broker)})
        is_child = origin.is_valid and not self._linked
        self._began = time.perf_counter()
        self._span = _tracer.start_span(
            f"process {job.task_type}",
            # Sets the parent of the span explicitly. Otherwise the context that was current when the worker started
            # would be the parent.
            trace.set_span_in_context(trace.NonRecordingSpan(origin) if is_child else trace.INVALID_SPAN),
            SpanKind.CONSUMER,
            {**_operation("process", "process"), **self._of_the_job(), **_server(self._broker)},
            [Link(origin)] if origin.is_valid else [],
        )
        self._recorded = self._span.is_recording()
        self._token = context.attach(trace.set_span_in_context(self._span))
        return self

    def _of_the_job(self) -> Attributes:
        job = self._job
        return {**_destination(job.task_type), "messaging.message.id": str(job.id), "howdah.attempt": job.attempt}

    def note(self, outcome: OutcomeMessage, error: Optional[BaseException]) -> None:
        if isinstance(outcome, v1.Nack):
            self._error = "fatal" if outcome.no_retry else "retry", outcome.error, error

    def __exit__(self, *_: object) -> None:
        assert self._span is not None
        context.detach(self._token)
        kind, text, error = self._error
        failed: Attributes = {"error.type": kind} if kind else {}
        if kind:
            _fail(self._span, kind, text, error)
        self._span.end()
        attributes = {**_operation("process"), **_destination(self._job.task_type), **_server(self._broker), **failed}
        _processes.record(time.perf_counter() - self._began, attributes)
        self.decided()

    def decided(self) -> None:
        self._settling = self._settling or (time.time_ns(), time.perf_counter())

    def settled(self, outcome: OutcomeMessage, broker: Broker, error: Optional[BaseException] = None) -> None:
        if self._span is None or self._settling is None:
            return  # No handler ran for the job.
        since, began = self._settling
        operation = type(outcome).DESCRIPTOR.name.lower()
        failed: Attributes = {} if error is None else {"error.type": _kind_of(error)}
        attributes = {**_operation(operation, "settle"), **_destination(self._job.task_type), **_server(broker)}
        _operations.record(time.perf_counter() - began, {**attributes, **failed})
        if self._recorded:
            name, parent = f"{operation} {self._job.task_type}", trace.set_span_in_context(self._span)
            attributes.update(self._of_the_job())
            span = _tracer.start_span(name, parent, SpanKind.CLIENT, attributes, start_time=since)
            if error is not None:
                _fail(span, _kind_of(error), str(error), error)
            span.end()


def _operation(name: str, kind: str = "") -> Attributes:
    found: Attributes = {"messaging.system": "howdah", "messaging.operation.name": name}
    return {**found, "messaging.operation.type": kind} if kind else found


def _destination(task_type: str) -> Attributes:
    return {"messaging.destination.name": task_type}


def _server(broker: Broker) -> Attributes:
    return {"server.address": broker.host, "server.port": broker.port}


def _context_of(job: Union[v1.NewJob, JobBase]) -> SpanContext:
    """Returns the trace context of a job, or an invalid context."""
    if not job.traceparent:
        return trace.INVALID_SPAN_CONTEXT
    carrier = {"traceparent": job.traceparent, "tracestate": job.tracestate}
    return trace.get_current_span(_W3C.extract(carrier, context.Context())).get_span_context()


def _give_context(job: v1.NewJob, span: Span) -> None:
    carrier: Dict[str, str] = {}
    _W3C.inject(carrier, trace.set_span_in_context(span))
    job.traceparent, job.tracestate = carrier.get("traceparent", ""), carrier.get("tracestate", "")


def _kind_of(error: BaseException) -> str:
    if isinstance(error, HowdahError):
        return error.reason or error.code.name
    cancelled = isinstance(error, (asyncio.CancelledError, concurrent.futures.CancelledError))
    return "CANCELLED" if cancelled else "UNKNOWN"


def _fail(span: Span, kind: str, text: str, error: Optional[BaseException]) -> None:
    if span.is_recording():
        if error is not None:
            span.record_exception(error)
        span.set_attribute("error.type", kind)
        span.set_status(StatusCode.ERROR, text.encode("utf-8", "replace")[:_LONGEST_STATUS].decode("utf-8", "ignore"))

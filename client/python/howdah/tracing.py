"""Spans by OpenTelemetry's conventions for messaging, if its API is installed; and middleware around handlers."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Sequence

from . import v1
from .broker import VERSION
from .outcome import Done, Release, Snooze

if TYPE_CHECKING:
    from .handler import JobBase

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    TRACING = False
else:
    TRACING = True


@contextmanager
def send_span(jobs: Sequence[v1.NewJob], request_key: str) -> Iterator[None]:
    """A span around an enqueue, if OpenTelemetry is installed: the parent of the jobs, unless they have one.

    Nor is it that of a request with a key of the caller's: repeated, the request must have the same jobs.
    """
    if not TRACING or not jobs:
        yield
        return
    types = sorted({job.task_type for job in jobs})
    attributes: Dict[str, Any] = {
        "messaging.system": "howdah",
        "messaging.operation.type": "send",
        "messaging.operation.name": "enqueue",
        "messaging.destination.name": ",".join(types),
    }
    if len(jobs) > 1:
        attributes["messaging.batch.message_count"] = len(jobs)
    tracer, kind = trace.get_tracer("howdah", VERSION), trace.SpanKind.PRODUCER
    with tracer.start_as_current_span(f"send {','.join(types)}", kind=kind, attributes=attributes):
        carrier: Dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        for job in jobs:
            if not job.traceparent and not request_key:
                job.traceparent, job.tracestate = carrier.get("traceparent", ""), carrier.get("tracestate", "")
        yield


@contextmanager
def around_handler(job: JobBase, middleware: Sequence[Callable[[Any], Any]]) -> Iterator[None]:
    """The middleware and a span around a handler."""
    with ExitStack() as stack:
        if TRACING:
            stack.enter_context(_process_span(job))
        for each in middleware:
            stack.enter_context(each(job))
        yield


@contextmanager
def _process_span(job: JobBase) -> Iterator[None]:
    attributes: Dict[str, Any] = {
        "messaging.system": "howdah",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": job.task_type,
        "messaging.message.id": str(job.id),
    }
    parent = TraceContextTextMapPropagator().extract({"traceparent": job.traceparent, "tracestate": job.tracestate})
    tracer, kind = trace.get_tracer("howdah", VERSION), trace.SpanKind.CONSUMER
    with tracer.start_as_current_span(
        f"process {job.task_type}", parent, kind, attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield
        except (Done, Snooze, Release):
            raise
        except Exception as error:
            span.record_exception(error)
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(trace.StatusCode.ERROR, str(error))
            raise

"""Spans and metrics that OpenTelemetry recorded, for tests."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional, Tuple

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from howdah.testing import Broker

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
OPERATION, SENT = "messaging.client.operation.duration", "messaging.client.sent.messages"
CONSUMED, PROCESS = "messaging.client.consumed.messages", "messaging.process.duration"


class Recorded:
    """Recorded spans by name, and recorded metrics by task type."""

    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        trace.set_tracer_provider(provider)
        metrics.set_meter_provider(MeterProvider([self.reader]))

    def spans(self, name: str) -> List[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def span(self, name: str) -> ReadableSpan:
        [span] = self.spans(name)
        return span

    def points(self, name: str, task_type: str) -> Iterator[Any]:
        data = self.reader.get_metrics_data()
        for scope in (scope for resource in data.resource_metrics for scope in resource.scope_metrics) if data else ():
            for metric in scope.metrics:
                unit = "{message}" if metric.name in (SENT, CONSUMED) else "s"
                assert metric.unit == unit and scope.scope.name == "howdah"
                for point in metric.data.data_points if metric.name == name else ():
                    if dict(point.attributes or {}).get("messaging.destination.name") == task_type:
                        yield point

    def counted(self, name: str, task_type: str) -> Dict[Tuple[str, ...], int]:
        """Returns counts by the attributes that differ between the points of a metric."""
        found: Dict[Tuple[str, ...], int] = {}
        for point in self.points(name, task_type):
            attributes = dict(point.attributes)
            assert attributes.pop("messaging.system") == "howdah"
            assert attributes.pop("server.address") == "127.0.0.1" and attributes.pop("server.port") > 0
            del attributes["messaging.destination.name"]
            if isinstance(point, HistogramDataPoint):
                assert point.explicit_bounds == BUCKETS and point.sum >= 0
            names = ("messaging.operation.name", "messaging.operation.type", "error.type")
            key = tuple(attributes.pop(each) for each in names if each in attributes)
            assert not attributes
            found[key] = point.count if isinstance(point, HistogramDataPoint) else point.value
        return found


def parent(span: ReadableSpan) -> Optional[int]:
    return span.parent.span_id if span.parent else None


def span_context(span: ReadableSpan) -> SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def linked(span: ReadableSpan) -> List[Tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def ids_of(*spans: ReadableSpan) -> List[Tuple[int, int]]:
    return [(span_context(span).trace_id, span_context(span).span_id) for span in spans]


def attributes(broker: Broker, operation: str, kind: str, task_type: str, **more: Any) -> Dict[str, Any]:
    found = {"messaging.system": "howdah", "messaging.operation.name": operation, "messaging.operation.type": kind}
    named = {name.replace("__", "."): value for name, value in more.items()}
    port = int(broker.address.rpartition(":")[2])
    return {
        **found,
        "messaging.destination.name": task_type,
        "server.address": "127.0.0.1",
        "server.port": port,
        **named,
    }


def traceparent(span: ReadableSpan) -> str:
    return (
        f"00-{span_context(span).trace_id:032x}-{span_context(span).span_id:016x}-{span_context(span).trace_flags:02x}"
    )

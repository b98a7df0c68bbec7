"""Telemetry of enqueues and attempts. It records nothing unless OpenTelemetry's API and a configured SDK exist."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ContextManager, Optional, Sequence

from . import v1

if TYPE_CHECKING:
    from typing_extensions import Self

    from .broker import Broker
    from .client import Enqueued
    from .connection import Connection
    from .handler import JobBase
    from .outcome import OutcomeMessage


class Sending:
    """Telemetry of an enqueue, until the broker has answered. This base class records nothing."""

    def used(self, broker: Broker) -> None:
        """Records the broker to which the enqueue is sent."""

    def current(self) -> ContextManager[Any]:
        """Makes the span of the enqueue the current span."""
        return nullcontext()

    def end(self, answers: Sequence[Enqueued] = (), error: Optional[BaseException] = None) -> None:
        """Records the broker's answers, or the error that the caller gets. Only the first call counts."""


class Processing:
    """Telemetry of an attempt: a context manager around the handler, and of the outcome's confirmation afterwards.

    This base class records nothing.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def note(self, outcome: OutcomeMessage, error: Optional[BaseException]) -> None:
        """Records the outcome of the handler. Called before the context manager ends."""

    def decided(self) -> None:
        """Records the time at which the outcome can be sent. Only the first call counts."""

    def settled(self, outcome: OutcomeMessage, broker: Broker, error: Optional[BaseException] = None) -> None:
        """Records that the broker has confirmed the outcome or, with ``error``, that it had no effect."""


_NO_SENDING, NO_PROCESSING = Sending(), Processing()


@functools.cache
def _otel() -> Any:
    try:
        from . import otel
    except ImportError:
        return None
    return otel


def is_on() -> bool:
    otel = _otel()
    return otel is not None and bool(otel.is_on())


def sending(jobs: Sequence[v1.NewJob], connection: Connection, request_key: str) -> Sending:
    """Starts the telemetry of an enqueue, and adds trace contexts to its jobs."""
    return _otel().Send(jobs, connection.at(connection.current), request_key) if jobs and is_on() else _NO_SENDING


def processing(job: JobBase, broker: Optional[Broker], linked: bool) -> Processing:
    """Creates the telemetry of an attempt."""
    return _otel().Process(job, broker, linked) if broker is not None and is_on() else NO_PROCESSING

"""What an enqueue and an attempt tell OpenTelemetry: nothing, unless its API is installed and its SDK is set up."""

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
    """An enqueue, until the broker has answered. This one tells nothing."""

    def used(self, broker: Broker) -> None:
        """It goes to this broker now."""

    def current(self) -> ContextManager[Any]:
        """Its span is the current one."""
        return nullcontext()

    def end(self, answers: Sequence[Enqueued] = (), error: Optional[BaseException] = None) -> None:
        """The broker has answered, or the caller gets an error. Only the first call counts."""


class Processing:
    """An attempt: a context manager around the handler, which then waits for the outcome's confirmation."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def note(self, outcome: OutcomeMessage, error: Optional[BaseException]) -> None:
        """The handler has ended so, before the context manager ends."""

    def decided(self) -> None:
        """The outcome is there to be sent. Only the first call counts."""

    def settled(self, outcome: OutcomeMessage, broker: Broker, error: Optional[BaseException] = None) -> None:
        """The broker has confirmed the outcome, or it had no effect."""


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
    """An enqueue begins. Its jobs get their trace contexts."""
    return _otel().Send(jobs, connection.at(connection.current), request_key) if jobs and is_on() else _NO_SENDING


def processing(job: JobBase, broker: Optional[Broker], linked: bool) -> Processing:
    """A job is given to its handler."""
    return _otel().Process(job, broker, linked) if broker is not None and is_on() else NO_PROCESSING

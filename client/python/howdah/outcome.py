"""The outcomes of attempts, which handlers return or raise."""

from __future__ import annotations

import traceback
from typing import Optional, Tuple, Union

from . import v1
from .messages import Seconds, duration, encode, span

OutcomeMessage = Union[v1.Ack, v1.Nack, v1.Snooze, v1.Release]
# Maximum length of an error text that the client sends, in bytes. The broker truncates the text to 16 KiB and marks it
# as truncated.
_LONGEST_ERROR = 32 << 10
# Maximum length of a traceback, in bytes. The broker would truncate a longer one at its end.
_LONGEST_DETAILS = 16 << 10


class Outcome(Exception):
    """The outcome of an attempt, which a handler returns or raises.

    Any other exception counts as `Retry`, except `LeaseLost`.
    """

    #: The place and the traceback of a failure in another process.
    _origin: Optional[Tuple[str, str]] = None

    def _message(self) -> OutcomeMessage:
        raise NotImplementedError


class Retry(Outcome):
    """The attempt failed. The job is retried after ``after``, or else after the retry policy's delay."""

    def __init__(self, error: object, after: Optional[Seconds] = None) -> None:
        super().__init__(error)
        self.after = None if after is None else span(after, "after")

    def _message(self) -> v1.Nack:
        after = None if self.after is None else duration(self.after)
        return _with_origin(v1.Nack(error=_cut(str(self)), retry_after=after), self)


class Fatal(Outcome):
    """The attempt failed for good: the job is not retried."""

    def _message(self) -> v1.Nack:
        return _with_origin(v1.Nack(error=_cut(str(self)), no_retry=True), self)


class Snooze(Outcome):
    """The job runs again after this delay. The attempt does not count."""

    def __init__(self, delay: Seconds) -> None:
        super().__init__(delay)
        self.delay = span(delay, "delay")

    def _message(self) -> v1.Snooze:
        return v1.Snooze(delay=duration(self.delay))


class Release(Outcome):
    """Another worker may run the job at once. The attempt does not count."""

    def _message(self) -> v1.Release:
        return v1.Release()


class Done(Outcome):
    """The attempt succeeded. With ``next_stage``, the job continues in this task type instead of its planned stage."""

    def __init__(self, result: object = None, next_stage: str = "") -> None:
        super().__init__(result)
        self.result, self.next_stage = result, next_stage

    def _message(self) -> v1.Ack:
        return v1.Ack(result=encode(self.result), next_stage=self.next_stage)


def _with_origin(nack: v1.Nack, error: BaseException) -> v1.Nack:
    """Adds the traceback of a raised error, and the function that raised it.

    If it was raised from another error, adds the tracebacks of both, and the function that raised the first one. Adds
    nothing to an error that a handler returns instead of raising.
    """
    if isinstance(error, Outcome) and error._origin is not None:
        nack.place, nack.details = error._origin
        return nack
    root, seen = error, {id(error)}
    while root.__cause__ is not None and root.__cause__.__traceback__ is not None and id(root.__cause__) not in seen:
        root = root.__cause__
        seen.add(id(root))
    frames = [frame for frame, _ in traceback.walk_tb(root.__traceback__)]
    module = frames[-1].f_globals.get("__name__", "") if frames else ""
    # This package raises an outcome that the handler has returned.
    if frames and module != "howdah.handler":
        code = frames[-1].f_code
        nack.place = _cut(f"{module}.{getattr(code, 'co_qualname', code.co_name)}")
        # The client makes a `Retry` of any other exception. It was not raised, so only its cause is shown.
        shown = error if error.__traceback__ is not None else error.__cause__ or error
        details = "".join(traceback.format_exception(type(shown), shown, shown.__traceback__))
        # The end of a traceback names the error, so a long one loses its beginning.
        nack.details = _encoded(details)[-_LONGEST_DETAILS:].decode("utf-8", "ignore")
    return nack


def _cut(text: str) -> str:
    return _encoded(text)[:_LONGEST_ERROR].decode("utf-8", "ignore")


def _encoded(text: str) -> bytes:
    # Escapes surrogate characters, which UTF-8 cannot encode. They occur for example in file names that are not UTF-8.
    return text.encode("utf-8", "backslashreplace")

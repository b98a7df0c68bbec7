"""Handlers: the job that they receive, and the conversion of their results and exceptions to outcomes."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import itertools
import logging
import sys
import threading
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from typing import Any, AsyncIterator, Awaitable, Callable, Iterator, List, Optional, Sequence, Tuple, Union

from . import v1
from .connection import log
from .errors import LeaseLost
from .messages import Seconds, decoder, duration, encode
from .outcome import Done, Fatal, Outcome, OutcomeMessage, Release, Retry
from .telemetry import NO_PROCESSING, Processing
from .threads import Threads

GetResults = Callable[[v1.GetResultsRequest], Awaitable[v1.GetResultsResponse]]
SendRequest = Callable[[Union[v1.Extension, v1.ProgressReport]], Awaitable[None]]


class JobBase:
    """One attempt of one job, for its handler."""

    def __init__(
        self,
        job: v1.LeasedJob,
        send_request: SendRequest,
        loop: asyncio.AbstractEventLoop,
        get_results: Optional[GetResults] = None,
    ) -> None:
        self.id = job.id
        #: The fencing token of the lease, for example for ``howdah.complete`` in SQL.
        self.token = job.token
        self.task_type = job.task_type
        #: The number of this attempt, from 1.
        self.attempt, self.max_attempts = job.attempt, job.max_attempts
        #: Time at which the attempt times out unless it is extended, by the database's clock. None: no timeout.
        self.deadline = _time(job.deadline) if job.HasField("deadline") else None
        self.payload, self.headers = job.payload, dict(job.headers)
        #: The tags without duplicates, in the order of the enqueue.
        self.tags = list(job.tags)
        self.create_time = _time(job.create_time)
        #: The producer's W3C trace context.
        self.traceparent, self.tracestate = job.traceparent, job.tracestate
        #: The checkpoint that an earlier attempt stored, or empty. `howdah.decode` decodes it.
        self.checkpoint = job.checkpoint
        #: Set when the handler should abandon the job, for the `cancel_reason`. An async handler is also cancelled.
        self.cancelled = threading.Event()
        #: Reason why the handler should abandon the job: ``cancelled``, ``timeout``, ``lease_lost``, or ``stop`` (the
        #: worker stops and its stop timeout has passed). Empty while the handler should continue.
        self.cancel_reason = ""
        self._sent, self._dependencies = list(job.after), job.dependency_count
        self._get_results, self._send_request, self._loop = get_results, send_request, loop
        self._processing: Processing = NO_PROCESSING
        self._message = job
        #: Called when the handler should abandon the job.
        self._on_cancel: Callable[[], None] = lambda: None

    def raise_if_cancelled(self) -> None:
        """Ends the handler with an exception if it should abandon the job. The attempt does not count as failed.

        The exception is `Release` if the worker stops: another worker then runs the job, and the attempt does not count.
        Otherwise it is `LeaseLost`: the job was cancelled, its attempt timed out, or another worker may run it.
        """
        if self.cancelled.is_set():
            raise Release() if self.cancel_reason == "stop" else LeaseLost(self.id, self.cancel_reason)

    def _sent_results(self) -> List[v1.DependencyResult]:
        """Returns the results that came with the job, up to the first that the broker left out."""
        return list(itertools.takewhile(lambda sent: not sent.truncated, self._sent))

    async def _page(self, start: int) -> List[v1.DependencyResult]:
        """Gets results from the broker, beginning after the first ``start`` dependencies. An empty page is the last."""
        if start >= self._dependencies or self._get_results is None:
            return []
        return list((await self._get_results(v1.GetResultsRequest(id=self.id, start=start))).results)

    def _extension(self, time: Seconds) -> v1.Extension:
        return v1.Extension(id=self.id, token=self.token, duration=duration(time, "time"))

    def _report(self, fraction: Optional[float], text: Optional[str], checkpoint: object) -> v1.ProgressReport:
        kept = None if checkpoint is None else encode(checkpoint)
        return v1.ProgressReport(id=self.id, token=self.token, fraction=fraction, text=text, checkpoint=kept)


class AsyncJob(JobBase):
    """The job for an ``async def`` handler."""

    async def results(self) -> AsyncIterator[v1.DependencyResult]:
        """Yields the jobs that this job ran after (``after``, then ``after_local``), with their results, in order.

        With ``on_dependency_failure="run"``, look at ``state``: a dependency may have failed. A result is unknown
        (``missing``) if the database no longer contains the dependency. `howdah.decode` decodes ``result``.
        """
        start, page = 0, self._sent_results() or await self._page(0)
        while page:
            for result in page:
                yield result
            start += len(page)
            page = await self._page(start)

    async def extend(self, time: Seconds) -> None:
        """Sets the deadline to this long from now. Raises `LeaseLost` if the worker no longer holds the job."""
        await self._send_request(self._extension(time))

    async def progress(
        self, fraction: Optional[float] = None, text: Optional[str] = None, *, checkpoint: object = None
    ) -> None:
        """Reports progress, and stores a checkpoint for the next attempt (``b""`` removes it).

        Raises `LeaseLost` if the worker no longer holds the job.
        """
        await self._send_request(self._report(fraction, text, checkpoint))


class Job(JobBase):
    """The job for a handler that is a plain function, which runs in a thread."""

    def results(self) -> Iterator[v1.DependencyResult]:
        """Blocking version of `AsyncJob.results`."""
        start, page = 0, self._sent_results() or self._next_page(0)
        while page:
            yield from page
            start += len(page)
            page = self._next_page(start)

    def _next_page(self, start: int) -> List[v1.DependencyResult]:
        if start >= self._dependencies:
            return []
        return asyncio.run_coroutine_threadsafe(self._page(start), self._loop).result()

    def extend(self, time: Seconds) -> None:
        """Blocking version of `AsyncJob.extend`."""
        self._wait(self._extension(time))

    def progress(
        self, fraction: Optional[float] = None, text: Optional[str] = None, *, checkpoint: object = None
    ) -> None:
        """Blocking version of `AsyncJob.progress`."""
        self._wait(self._report(fraction, text, checkpoint))

    def _wait(self, message: Union[v1.Extension, v1.ProgressReport]) -> None:
        async def send() -> None:
            await self._send_request(message)

        asyncio.run_coroutine_threadsafe(send(), self._loop).result()


class Handler:
    """A function that handles jobs of one or more task types, and how to call it."""

    def __init__(self, function: Callable[..., Any], concurrency: int) -> None:
        self.function, self.concurrency = function, concurrency
        call_method = getattr(function, "__call__", None)  # noqa: B004  A callable object may have an async method.
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call_method)
        signature = inspect.signature(function)
        self.takes_job = _accepts(signature, 2)
        if not self.takes_job and not _accepts(signature, 1):
            raise TypeError(f"{function!r} must be a function of the payload, or of the payload and the job")
        self.kind = _annotation(function, next(iter(signature.parameters.values())))
        self.decode = decoder(self.kind)

    def arguments(self, job: JobBase) -> Tuple[Any, ...]:
        try:
            payload = self.decode(job.payload)
        except Exception as error:
            # An unreadable payload fails the job for good, because a retry would get the same payload.
            is_json = not isinstance(self.kind, type) or self.kind.__module__ == "builtins"
            kind = "JSON" if is_json else getattr(self.kind, "__name__", "")
            raise Fatal(f"the payload is not {kind}: {error}") from error
        return (payload, job) if self.takes_job else (payload,)

    async def run(self, job: JobBase, threads: Threads, middleware: Sequence[Callable[[Any], Any]]) -> OutcomeMessage:
        """Runs the handler for a job, and returns the outcome."""

        def blocking() -> OutcomeMessage:
            error: Optional[BaseException] = None
            with job._processing as processing:
                try:
                    with _around(job, middleware):
                        outcome: Outcome = Done(raised(self.function(*self.arguments(job))))
                except BaseException as thrown:
                    # Catches every exception, because SystemExit and KeyboardInterrupt would end the event loop.
                    outcome, error = failed(thrown), thrown
                return _concluded(job, processing, outcome, error)

        if not self.is_async:
            message: OutcomeMessage = await threads.run(functools.partial(contextvars.copy_context().run, blocking))
            return message
        error: Optional[BaseException] = None
        with job._processing as processing:
            try:
                with _around(job, middleware):
                    outcome: Outcome = Done(raised(await self.function(*self.arguments(job))))
            except BaseException as thrown:
                is_ctrl_c = (
                    isinstance(thrown, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
                )
                if is_ctrl_c or isinstance(thrown, GeneratorExit) or _was_cancelled(job, thrown):
                    raise
                outcome, error = failed(thrown), thrown
            return _concluded(job, processing, outcome, error)


@contextmanager
def _around(job: JobBase, middleware: Sequence[Callable[[Any], Any]]) -> Iterator[None]:
    with ExitStack() as stack:
        for each in middleware:
            stack.enter_context(each(job))
        yield


def _concluded(
    job: JobBase, processing: Processing, outcome: Outcome, error: Optional[BaseException]
) -> OutcomeMessage:
    """Converts an outcome to the message that is sent to the broker, and logs a failure."""
    message, unsendable = message_of(outcome)
    error = unsendable or error
    processing.note(message, error)
    if isinstance(message, v1.Nack):
        log_failure(job, message, error)
    return message


def message_of(outcome: Outcome) -> Tuple[OutcomeMessage, Optional[BaseException]]:
    """Returns the message of an outcome, or of a failure and its reason if the outcome cannot be sent."""
    try:
        return outcome._message(), None
    except Exception as unsendable:
        return Fatal(f"the outcome cannot be sent: {unsendable}")._message(), unsendable


def log_failure(job: JobBase, failure: v1.Nack, error: Optional[BaseException]) -> None:
    """Logs a failed attempt: as an error if the job is out of attempts or is not retried, otherwise as a warning."""
    is_last = failure.no_retry or job.attempt >= job.max_attempts
    level, effect = (logging.ERROR, "failed for good") if is_last else (logging.WARNING, "failed")
    text = "job %d (%s): attempt %d of %d %s: %s"
    # A failure that the handler returns instead of raising has no traceback.
    shown = error if failure.details or not isinstance(error, Outcome) else None
    log.log(level, text, job.id, job.task_type, job.attempt, job.max_attempts, effect, failure.error, exc_info=shown)


def _was_cancelled(job: JobBase, error: BaseException) -> bool:
    """Whether the handler's own task was cancelled, and not another task that the handler awaited."""
    if not isinstance(error, asyncio.CancelledError):
        return False
    cancelling = getattr(asyncio.current_task(), "cancelling", None)  # Since Python 3.11.
    return job.cancelled.is_set() or (cancelling is not None and cancelling() > 0)


def failed(error: BaseException) -> Outcome:
    """Converts an exception of a handler to an outcome. All exceptions except `Outcome` and `LeaseLost` lead to a retry.

    After `LeaseLost` the broker refuses any outcome. If it has kept the lease after all, a release lets the job go on.
    """
    if isinstance(error, Outcome):
        return error
    if isinstance(error, LeaseLost):
        return Release()
    # The new error has the traceback of the handler's error.
    retry = Retry(f"{type(error).__name__}: {error}")
    retry.__cause__ = error
    return retry


def _accepts(signature: inspect.Signature, count: int) -> bool:
    """Whether a function may be called with this number of positional arguments."""
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Returns the annotated type of one parameter.

    It does not evaluate the other annotations, which may have types that only a type checker can import.
    """
    kind = parameter.annotation
    if isinstance(kind, str):
        while isinstance(function, functools.partial):
            function = function.func
        unwrapped = inspect.unwrap(function)
        kind = eval(kind, getattr(unwrapped, "__globals__", None) or vars(sys.modules[unwrapped.__module__]))
    return None if kind is parameter.empty else kind


def raised(result: object) -> object:
    if isinstance(result, Outcome):
        raise result
    return result


def _time(timestamp: Any) -> datetime:
    found: datetime = timestamp.ToDatetime(timezone.utc)
    return found

"""Workers, which run handlers by task type on one stream."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import suppress
from typing import Any, Callable, Dict, Literal, Mapping, Optional, Sequence, TypeVar, Union

from . import v1
from .client import AsyncClient
from .connection import log
from .errors import HowdahError
from .handler import Handler
from .ledger import WorkerReport
from .messages import Seconds, duration, fill, seconds
from .processes import InProcess, Processes
from .session import Session, SessionOptions
from .slots import Slot, Slots
from .sync import Client, background_loop

F = TypeVar("F", bound=Callable[..., Any])
# Polling interval of `Worker.join` in seconds. Some platforms handle signals only when the main thread wakes up.
_POLL_INTERVAL = 0.5


class Worker:
    """Runs handlers for the jobs of a broker, at most ``concurrency`` at once over all task types. A worker runs once.

    The concurrency is also the window (prefetch) of each task type, so a worker of several types may receive more jobs
    than it has slots. A job that has waited for a slot for a second is released for another worker. A
    larger ``window`` hides the round trip to the broker when jobs are short. ``window_bytes`` limits the payloads of a
    task type that the worker holds at once (default 64 MiB).

    A stop waits for handlers for the ``stop_timeout`` (default 30 s). Then it tells them to end, and a second later releases their
    jobs. ``middleware`` are functions that take a job and return a context manager, which is entered around the
    handler. With ``linked``, the span of a handler starts a new trace, with a link to the producer's.

    The broker counts the worker as lost after the ``liveness`` without a message (10 s to 1 h; default: the broker's
    setting, 60 s). Threads answer the broker's heartbeat, also while a handler blocks the event loop.

    A process of a handler with ``executor="process"`` is replaced after ``max_jobs_per_process`` jobs (default: never).
    """

    def __init__(
        self,
        client: Union[Client, AsyncClient, None] = None,
        *,
        concurrency: int = 16,
        window: Optional[int] = None,
        window_bytes: int = 0,
        stop_timeout: Seconds = 30,
        labels: Optional[Mapping[str, str]] = None,
        middleware: Sequence[Callable[[Any], Any]] = (),
        linked: bool = False,
        max_message_bytes: Optional[int] = None,
        liveness: Optional[Seconds] = None,
        max_jobs_per_process: Optional[int] = None,
    ) -> None:
        self._client = client if client is not None else Client()
        self._concurrency, self._window = _checked(concurrency), window
        connection = self._connection()
        limit = max_message_bytes or connection.options.get("max_message_bytes", 16 << 20)
        stop = seconds(stop_timeout, "stop_timeout")
        silence = None if liveness is None else duration(liveness, "liveness")
        kept = dict(fill(v1.Subscribe(), {"labels": labels}).labels)
        self._options = SessionOptions(window_bytes, limit, stop, kept, middleware, linked, silence)
        self._handlers: Dict[str, Handler] = {}
        self._processes = Processes(max_jobs_per_process)
        self._session: Optional[Session] = None
        self._stops, self._ended = 0, threading.Event()
        self._sizes: Dict[str, int] = {}
        self._result: Union[WorkerReport, BaseException, None] = None

    def _connection(self) -> Any:
        return (self._client._inner if isinstance(self._client, Client) else self._client).connection

    def task(
        self,
        *task_types: str,
        concurrency: Optional[int] = None,
        executor: Literal["thread", "process"] = "thread",
        hard_timeout: Optional[Seconds] = None,
    ) -> Callable[[F], F]:
        """Decorates the handler of one or more task types: a function of the payload, or of the payload and the job.

        ``concurrency`` is the maximum number of concurrent jobs of each of these types. Default: the worker's.

        An ``async def`` runs on the event loop, with an `AsyncJob`. Any other function runs in a thread, with a `Job`.
        The annotation of its first parameter determines how the payload is decoded: `bytes` (unchanged), a protobuf
        message, a dataclass or a pydantic model; otherwise from JSON. The return value is the job's result.

        With ``executor="process"``, a plain function at the top level of a module runs in a process, which suits
        computations. The process is killed, and the attempt fails, after the ``hard_timeout``. It is also killed
        5 seconds after `Job.cancelled` was set.
        """
        if not task_types or not all(isinstance(name, str) for name in task_types):
            raise TypeError('a handler needs the names of its task types: write @worker.task("type")')
        if executor not in ("thread", "process"):
            raise ValueError(f"executor is {executor!r}; it may be thread or process")

        def decorate(function: F) -> F:
            if self._session is not None:
                raise RuntimeError("the worker has started: add its handlers before")
            for name in task_types:
                if name in self._handlers:
                    raise ValueError(f"the task type {name!r} has two handlers: remove one")
                handler = Handler(function, _checked(self._concurrency if concurrency is None else concurrency))
                if executor == "process":
                    if handler.is_async:
                        raise TypeError(f"the handler of {name} is an async def, which cannot run in a process")
                    handler = Handler(InProcess(self._processes, function, hard_timeout), handler.concurrency)
                elif hard_timeout is not None:
                    raise ValueError(f"the handler of {name} has a hard_timeout, which needs executor='process'")
                self._handlers[name] = handler
            return function

        return decorate

    async def serve(self) -> WorkerReport:
        """Runs on the current event loop until `stop`. Raises if the broker refuses the worker."""
        if not self._handlers:
            raise ValueError("the worker has no handlers: decorate functions with its method task before it starts")
        for handler in self._handlers.values():
            if isinstance(handler.function, InProcess):
                handler.function.check()
        total = self._concurrency
        types = {
            name: Slot(each, self._window or min(each.concurrency, total)) for name, each in self._handlers.items()
        }
        self._session = session = Session(self._connection(), Slots(types, total), self._options)
        for _ in range(self._stops):
            self._stop(session)
        for task_type, jobs in list(self._sizes.items()):
            session.resize(task_type, jobs)
        try:
            return await session.run()
        finally:
            self._processes.close()

    def start(self) -> None:
        """Starts the worker in a background thread. `join` waits for its end."""
        future = asyncio.run_coroutine_threadsafe(self.serve(), background_loop())

        def ended(_: object) -> None:
            error = future.exception()
            if error is not None and not isinstance(error, HowdahError):
                log.error("the worker failed", exc_info=error)
            self._result = error if error is not None else future.result()
            self._ended.set()

        future.add_done_callback(ended)

    def join(self, timeout: Optional[Seconds] = None) -> WorkerReport:
        """Waits until the worker has ended, after `start`. Raises `TimeoutError` after ``timeout``."""
        left = seconds(timeout, "timeout") if timeout is not None else float("inf")
        while not self._ended.wait(min(left, _POLL_INTERVAL)):
            left -= _POLL_INTERVAL
            if left <= 0:
                raise TimeoutError("the worker has not ended")
        if isinstance(self._result, BaseException):
            raise self._result
        assert self._result is not None
        return self._result

    def run(self) -> WorkerReport:
        """Runs until SIGTERM or SIGINT, then stops the worker (see `stop_on_signals`). Blocks until it has ended."""
        self.stop_on_signals()
        self.start()
        return self.join()

    def stop(self, *, now: bool = False) -> None:
        """Begins to stop, from any thread. With ``now``, releases the running jobs at once."""
        self._stops = 2 if now else max(self._stops, 1)
        if self._session is not None:
            self._call_on_loop(self._stop, self._session)

    def _call_on_loop(self, act: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # The loop is closed, because the worker has ended.
            assert self._session is not None
            self._session.loop.call_soon_threadsafe(act, *arguments)

    def _stop(self, session: Session) -> None:
        session.stop()
        if self._stops > 1:
            session.stop_now()

    def set_concurrency(self, task_type: str, jobs: int) -> None:
        """Changes the concurrency of a task type, and its window.

        0 pauses the type in this worker: its waiting jobs go to other workers.
        """
        if task_type not in self._handlers:
            raise ValueError(f"the worker has no handler of the task type {task_type!r}")
        _checked(jobs, "jobs", 0)
        # A worker that was just started may not have a session yet. So the sizes are also stored, and `serve` applies
        # them.
        self._sizes[task_type] = jobs
        if self._session is not None:
            self._call_on_loop(self._session.resize, task_type, jobs)

    def stop_on_signals(self, *signals: int) -> None:
        """Stops the worker at the first of these signals, and at once at a second one. Default: SIGTERM and SIGINT.

        Must be called in the main thread.
        """

        def stop(*_: object) -> None:
            self.stop(now=self._stops > 0)

        for number in signals or (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.join()


def _checked(count: int, name: str = "concurrency", least: int = 1) -> int:
    if not isinstance(count, int) or count < least:
        raise ValueError(f"{name} is {count!r}; it must be at least {least}")
    return count

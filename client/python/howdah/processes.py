"""Processes for handlers that compute, each with its own interpreter. A thread of the worker waits for each job.

The worker's process keeps the lease, sends progress and extensions, and settles the job. So a process that crashes or
is killed fails only its attempt.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import queue
import signal
import threading
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any, Callable, List, Optional, Set, Tuple, Union, cast

from . import v1
from .errors import HowdahError, Stopped
from .handler import Handler, Job, failed, message_of, raised
from .messages import Seconds, seconds
from .outcome import Done, Fatal, Outcome, Release, Retry, Snooze

# The processes are not forked, because gRPC's threads do not work in a forked process.
_CONTEXT = multiprocessing.get_context("spawn")
# Seconds that a handler has to end after it was told to abandon its job. Then its process is killed.
KILL_AFTER = 5.0


class InProcess:
    """A handler that runs another function in a process."""

    def __init__(self, processes: Processes, function: Callable[..., Any], hard_timeout: Optional[Seconds]) -> None:
        self._processes, self._function = processes, function
        self._hard_timeout = None if hard_timeout is None else seconds(hard_timeout, "hard_timeout")
        self._pickled = b""

    def check(self) -> None:
        """Raises `TypeError` if another process cannot import the function."""
        try:
            self._pickled = bytes(ForkingPickler.dumps(self._function))
        except Exception as error:
            hint = "a handler that runs in a process must be a function at the top level of a module"
            raise TypeError(f"{hint}: {error}") from error

    def __call__(self, payload: bytes, job: Job) -> object:
        process = self._processes.take()
        try:
            return process.run(self._pickled, job, self._hard_timeout)
        finally:
            self._processes.put(process)


class Processes:
    """The processes of a worker. They start when they are needed, and each runs one job at a time."""

    def __init__(self, max_jobs: Optional[int]) -> None:
        self._max_jobs, self._closed = max_jobs, False
        self._lock = threading.Lock()
        self._idle: List[Process] = []
        self._all: Set[Process] = set()

    def take(self) -> Process:
        with self._lock:
            if self._closed:
                raise Stopped("worker")
            process = self._idle.pop() if self._idle else None
            if process is None or not process.is_alive():
                self._all.discard(cast(Any, process))
                process = Process()
                if not self._all:
                    # Python waits for the processes when it exits. Functions that are registered now run before.
                    atexit.register(self.close)
                self._all.add(process)
            return process

    def put(self, process: Process) -> None:
        """Takes a process back after a job. Replaces it if it has ended, or has run its number of jobs."""
        with self._lock:
            if process.is_alive() and process.jobs != self._max_jobs and not self._closed:
                self._idle.append(process)
            else:
                self._all.discard(process)
                process.end()

    def close(self) -> None:
        """Ends the idle processes, and kills the others."""
        with self._lock:
            self._closed = True
            for process in self._all:
                if process in self._idle:
                    process.end()
                else:
                    process.kill("the worker has stopped")
            self._all.clear()
        atexit.unregister(self.close)


class Process:
    """One process, in the worker. `_serve` is its other side."""

    def __init__(self) -> None:
        self._connection, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(theirs,), name="howdah-handler")
        self._process.start()
        theirs.close()
        self._lock, self.jobs = threading.Lock(), 0
        self._job: Optional[Job] = None
        self._killed = ""

    def is_alive(self) -> bool:
        return not self._killed and self._process.is_alive()

    def run(self, function: bytes, job: Job, hard_timeout: Optional[float]) -> object:
        """Runs a job, and returns its encoded result or its outcome. Blocks until the process has ended it."""
        timers: List[threading.Timer] = []

        def kill_after(delay: float, reason: str) -> None:
            timers.append(threading.Timer(delay, self._kill_if_running, (job, reason)))
            timers[-1].daemon = True
            timers[-1].start()

        def cancel() -> None:
            self._send("cancel", job.id, job.token, job.cancel_reason)
            kill_after(KILL_AFTER, f"the handler did not end within {KILL_AFTER:g} s after its job was taken away")

        def started() -> None:
            if hard_timeout is not None:
                kill_after(hard_timeout, f"the handler ran longer than its hard timeout of {hard_timeout:g} s")

        with self._lock:
            self._job, self.jobs = job, self.jobs + 1
        try:
            self._send("job", function, job._message.SerializeToString())
            job._on_cancel = cancel
            if job.cancelled.is_set():
                cancel()
            return self._outcome(job, started)
        finally:
            job._on_cancel = _ignore
            with self._lock:
                self._job = None
            for timer in timers:
                timer.cancel()

    def end(self) -> None:
        """Lets the process end after its job."""
        self._send("end")
        self._connection.close()

    def kill(self, reason: str) -> None:
        """Kills the process, and the programs that its handler has started."""
        self._killed = reason
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(cast(int, self._process.pid), signal.SIGKILL)
        self._process.kill()

    def _kill_if_running(self, job: Job, reason: str) -> None:
        with self._lock:
            if self._job is job:
                self.kill(reason)

    def _send(self, *message: object) -> None:
        with suppress(OSError):  # The process has ended.
            with self._lock:
                self._connection.send(message)

    def _outcome(self, job: Job, started: Callable[[], None]) -> object:
        while True:
            try:
                kind, name, content = self._connection.recv()
            except (EOFError, OSError):
                return Release() if job.cancel_reason == "stop" else Retry(self._ending())
            if kind == "started":
                started()
                continue
            message = getattr(v1, name).FromString(content)
            if kind == "outcome":
                return _outcome_of(message)
            try:
                job._wait(message)
                self._send("answer", None)
            except HowdahError as error:
                self._send("answer", error)

    def _ending(self) -> str:
        """Describes how the process has ended."""
        self._process.join()
        code = cast(int, self._process.exitcode)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return f"{self._killed}, so its process was killed" if self._killed else f"the process of the handler {how}"


def _outcome_of(message: Union[v1.Ack, v1.Nack, v1.Snooze, v1.Release]) -> object:
    """Returns the encoded result, or the outcome that the handler has returned or raised in its process."""
    if isinstance(message, v1.Ack):
        return Done(message.result, message.next_stage) if message.next_stage else message.result
    if isinstance(message, v1.Snooze):
        return Snooze(message.delay.ToTimedelta())
    if isinstance(message, v1.Release):
        return Release()
    after = message.retry_after.ToTimedelta() if message.HasField("retry_after") else None
    failure: Outcome = Fatal(message.error) if message.no_retry else Retry(message.error, after)
    failure._origin = message.place, message.details
    if message.details:
        failure.__cause__ = RemoteTraceback(message.details)
    return failure


class RemoteTraceback(Exception):
    """The traceback of a failure in a process, as text, for logs."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _ignore() -> None:
    pass


class _Inbox:
    """Receives the messages of the worker, in the process of a handler."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.jobs: queue.SimpleQueue[Optional[Tuple[bytes, _RemoteJob]]] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[Optional[HowdahError]] = queue.SimpleQueue()
        self._job: Optional[_RemoteJob] = None
        self._asking = threading.Lock()
        threading.Thread(target=self._receive, name="howdah-inbox", daemon=True).start()

    def ask(self, request: Union[v1.Extension, v1.ProgressReport]) -> None:
        """Sends a request of the handler, and waits for its answer."""
        with self._asking:
            self.connection.send(("request", type(request).__name__, request.SerializeToString()))
            error = self.answers.get()
        if error is not None:
            raise error

    def _receive(self) -> None:
        try:
            while True:
                kind, *content = self.connection.recv()
                if kind == "job":
                    self._job = _RemoteJob(v1.LeasedJob.FromString(content[1]), self)
                    self.jobs.put((content[0], self._job))
                elif kind == "answer":
                    self.answers.put(content[0])
                elif kind == "cancel" and self._job is not None and [self._job.id, self._job.token] == content[:2]:
                    self._job.cancel_reason = content[2]
                    self._job.cancelled.set()
                elif kind == "end":
                    return self.jobs.put(None)
        except (EOFError, OSError):
            # The worker has ended without a stop, so its leases are lost. Ends also the programs of the handler.
            if hasattr(os, "killpg"):
                os.killpg(0, signal.SIGKILL)
            os._exit(1)


class _RemoteJob(Job):
    """The job of a handler that runs in a process. The worker sends its requests."""

    def __init__(self, message: v1.LeasedJob, inbox: _Inbox) -> None:
        super().__init__(message, cast(Any, None), cast(Any, None))
        self._inbox = inbox

    def _wait(self, message: Union[v1.Extension, v1.ProgressReport]) -> None:
        self._inbox.ask(message)


def _serve(connection: Any) -> None:
    """Runs the jobs that the worker sends, until the worker ends the process or has ended."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Programs that the handler starts are killed with it.
    # The worker handles these signals. They are not ignored, because programs that a handler starts would inherit that.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    inbox = _Inbox(connection)
    for function, job in iter(inbox.jobs.get, None):
        try:
            handler = Handler(pickle.loads(function), 1)
            # The time to start Python and to import the module does not count as time of the handler.
            connection.send(("started", "", b""))
            outcome: Outcome = Done(raised(handler.function(*handler.arguments(job))))
        except BaseException as error:
            outcome = failed(error)
        message = message_of(outcome)[0]
        connection.send(("outcome", type(message).__name__, message.SerializeToString()))

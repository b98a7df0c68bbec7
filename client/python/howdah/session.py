"""The session of a worker: connects, serves a stream, resumes the session on the next stream, and stops."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Callable, Coroutine, Dict, List, Mapping, Optional, Sequence, cast

import grpc
from google.protobuf.duration_pb2 import Duration

from . import v1
from .broker import Broker
from .connection import Backoff, Connection, log
from .errors import HowdahError
from .ledger import Ledger, WorkerReport
from .link import Link
from .runner import Runner
from .slots import Slots
from .stream import CLOSE_TIMEOUT, Stream, open_stream
from .unary import UnarySettler

# Timeouts of a stop, in seconds. HANDLER_TIMEOUT: for handlers to end after they were told to abandon their jobs.
# CONFIRM_TIMEOUT: then for the broker to confirm the releases. STORE_TIMEOUT: for the next confirmation while no
# handler runs.
HANDLER_TIMEOUT, CONFIRM_TIMEOUT, STORE_TIMEOUT = 1.0, 5.0, 30.0
_CREDENTIAL = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_REFUSED = (
    *_CREDENTIAL,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.UNIMPLEMENTED,
)


@dataclass
class SessionOptions:
    window_bytes: int = 0
    max_message_bytes: int = 16 << 20
    stop_timeout: float = 30.0
    labels: Mapping[str, str] = field(default_factory=dict)
    middleware: Sequence[Callable[[Any], Any]] = ()
    linked: bool = False
    liveness: Optional[Duration] = None


class Session:
    """The session of one worker on one event loop."""

    def __init__(self, connection: Connection, slots: Slots, options: SessionOptions) -> None:
        self.connection, self.options, self.ledger = connection, options, Ledger()
        get_results = cast(Any, v1.WorkerServiceStub(cast(Any, connection)).GetResults)
        self.runner = Runner(
            slots, self.ledger, options.middleware, connection.request_timeout, options.linked, get_results
        )
        self.runner.changed, self.runner.windows_changed = self._changed, self._announce_windows
        self.loop, self.wake = asyncio.get_running_loop(), asyncio.Event()
        self.stream: Optional[Stream] = None
        self.stopping = self.now = False
        self.session_id, self.grace, self.resend_backoff = "", 0.0, Backoff()
        #: Task types whose windows may have changed since they were sent.
        self.windows: List[str] = []
        self.unary = UnarySettler(self)
        self.timers: Dict[str, asyncio.TimerHandle] = {}

    async def run(self) -> WorkerReport:
        """Runs until the worker is stopped. Raises if the broker refuses it."""
        index, backoff, streams = self.connection.current, Backoff(), 0
        try:
            while True:
                token, pause = self.connection.token.read(), 0.0
                try:
                    opened = await self._until_end(open_stream(self, index), CLOSE_TIMEOUT)
                    if opened is not None:
                        self.ledger.report.reconnects, streams = streams, streams + 1
                        pause = max(0.0, await self._serve(*opened) - self.loop.time())
                except HowdahError as error:
                    refusals = _CREDENTIAL if streams else _REFUSED
                    if error.code in refusals and self.connection.token.read() == token:
                        await self._give_up(error)
                        raise
                    if error.reason == "SESSION_RESUMED":
                        self.session_id = ""  # Another stream has taken over the session and its leases.
                    pause = backoff.next()
                    log.warning("no stream to the broker, trying again in %.2f s: %s", pause, error)
                if self.stream is not None and self.stream.worked():
                    backoff = Backoff()
                index, self.stream = index + 1, None
                if self.is_finished() or (await self._until_end(asyncio.sleep(pause, True))) is None:
                    return self._final_report()
        finally:
            self.unary.cancel()
            for timer in self.timers.values():
                timer.cancel()
            self.ledger.give_up()
            self.runner.abort()
            self.runner.close()

    async def _until_end(self, work: Coroutine[Any, Any, Any], timeout: float = 0.0) -> Any:
        """Runs a coroutine while no stream is open. Returns None if the worker must end."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self.wake.set())
        try:
            while not task.done() and not self.is_finished():
                self.wake.clear()
                await self.wake.wait()
            if not task.done() and not self.now:
                await asyncio.wait([task], timeout=timeout)
            return task.result() if task.done() else None
        finally:
            task.cancel()

    def is_finished(self) -> bool:
        return self.now or (self.stopping and not self.ledger.held)

    def window(self, name: str) -> v1.Window:
        """Returns the current window of a task type, which the caller sends to the broker."""
        slots = self.runner.slots
        slots.types[name].announced = jobs = slots.window(name)
        return v1.Window(task_type=name, jobs=jobs, bytes=self.options.window_bytes)

    def next_window(self) -> Optional[v1.Window]:
        """Returns the next window that the broker does not know."""
        slots = self.runner.slots
        while self.windows:
            name = self.windows.pop(0)
            if slots.window(name) != slots.types[name].announced:
                return self.window(name)
        return None

    def _announce_windows(self) -> None:
        if not self.stopping:
            self.windows = self.runner.slots.resized()
            self.wake.set()

    async def _serve(self, link: Link, welcome: v1.Welcome, broker: Broker) -> float:
        # The session id is not logged, because anyone who knows it could take over the session.
        log.info("connected to %s: %d leases kept, %d lost", welcome.broker, len(welcome.kept), len(welcome.lost))
        self.ledger.broker = broker
        self.session_id, self.grace = welcome.session_id, welcome.session_grace.ToTimedelta().total_seconds()
        self._set_timer("lost", None, self._grace_expired)
        self._set_timer("resend", None, self._resend)
        self.ledger.resume(welcome.kept)
        self.unary.start()
        self.runner.resend(everything=True)
        self.stream = Stream(self, link, welcome, broker.name)
        try:
            return await self.stream.serve()
        finally:
            self._set_timer("lost", self.grace, self._grace_expired)
            link.close()

    def resize(self, task_type: str, jobs: int) -> None:
        slots = self.runner.slots
        slot = slots.types[task_type]
        slot.limit, slot.window = jobs, min(jobs, slots.total)
        if jobs == 0:
            self.runner.release_waiting(slot)
        self.runner.fill()
        self._announce_windows()

    def _changed(self) -> None:
        self._wait_for_confirmations()
        self.wake.set()

    def resend_later(self) -> None:
        if "resend" not in self.timers:
            self._set_timer("resend", self.resend_backoff.next(), self._resend)

    def _resend(self) -> None:
        self.ledger.resend()
        self.runner.resend()

    def confirmed(self) -> None:
        self.resend_backoff = Backoff()
        self._set_timer("confirm", None, self._end_now)
        self._wait_for_confirmations()

    def _set_timer(self, name: str, seconds: Optional[float], act: Callable[[], None]) -> None:
        """Restarts a timer, or cancels it if ``seconds`` is None."""
        old = self.timers.pop(name, None)
        if old is not None:
            old.cancel()

        def due() -> None:
            self.timers.pop(name, None)
            act()
            self.wake.set()

        if seconds is not None:
            self.timers[name] = self.loop.call_later(seconds, due)

    def stop(self) -> None:
        """Takes no more jobs. The worker ends when its jobs are settled, or a few seconds after the stop timeout."""
        if self.stopping:
            return
        self.stopping = True
        self.runner.stop()
        self._set_timer("stop", self.options.stop_timeout, self._cancel_handlers)
        self._wait_for_confirmations()
        self.wake.set()

    def stop_now(self) -> None:
        """Cancels the handlers and releases their jobs. The worker ends within a second."""
        self.stop()
        self._abort(HANDLER_TIMEOUT)
        self.wake.set()

    def _cancel_handlers(self, reason: str = "stop") -> None:
        self.runner.cancel(reason)
        if reason == "stop":
            self._set_timer("stop", HANDLER_TIMEOUT, lambda: self._abort(CONFIRM_TIMEOUT))

    def _abort(self, timeout: float) -> None:
        self.runner.abort()
        self._set_timer("stop", timeout, self._end_now)

    def _wait_for_confirmations(self) -> None:
        """Limits the time that a stop waits for confirmations when no handler runs any more."""
        if self.stopping and "confirm" not in self.timers and self.ledger.only_unconfirmed():
            self._set_timer("confirm", STORE_TIMEOUT, self._end_now)

    def _end_now(self) -> None:
        self.now = True

    def _grace_expired(self) -> None:
        log.warning("could not reconnect to a broker within the session's grace time: the leases may be lost")
        # Outcomes of the handlers are still sent, because the broker may have kept the leases.
        self._cancel_handlers("lease_lost")
        if self.stopping and self.ledger.only_unconfirmed():
            self._end_now()

    async def _give_up(self, error: HowdahError) -> None:
        """Tells the handlers to end, because the broker refuses this worker and their outcomes cannot be settled."""
        log.error("the broker refuses this worker: %s", error)
        self._cancel_handlers("lease_lost")
        await self.runner.wait(HANDLER_TIMEOUT)

    def _final_report(self) -> WorkerReport:
        left = self.ledger.unconfirmed()
        self.ledger.report.unconfirmed = len(left)
        if left:
            ids = ", ".join(str(held.key[0]) for held in left[:20])
            log.warning("the worker ended before the broker confirmed %d outcomes: %s", len(left), ids)
        return self.ledger.report

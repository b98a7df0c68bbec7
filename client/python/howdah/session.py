"""The life of a worker: connect, serve a stream, resume on the next, stop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Callable, Coroutine, Dict, List, Mapping, Optional, Sequence

import grpc
import grpc.aio

from . import v1
from .broker import Broker
from .connection import Backoff, Connection, log
from .errors import HowdahError
from .ledger import Ledger, WorkerReport
from .runner import Runner, Slot
from .stream import CLOSE_PATIENCE, Stream, open_stream

# In a stop: for handlers that were told to end, for the last confirmations, for each confirmation.
HANDLER_PATIENCE, CONFIRM_PATIENCE, STORE_PATIENCE = 1.0, 5.0, 30.0
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


class Session:
    """One worker on one event loop."""

    def __init__(self, connection: Connection, slots: Dict[str, Slot], options: SessionOptions) -> None:
        self.connection, self.options, self.ledger = connection, options, Ledger()
        self.runner = Runner(slots, self.ledger, options.middleware, connection.request_timeout, options.linked)
        self.runner.changed = self._changed
        self.loop, self.wake = asyncio.get_running_loop(), asyncio.Event()
        self.stream: Optional[Stream] = None
        self.stopping = self.now = False
        self.session_id, self.grace, self.again = "", 0.0, Backoff()
        #: Windows that have changed since a stream was opened, for it to send.
        self.windows: List[v1.Window] = []
        self.timers: Dict[str, asyncio.TimerHandle] = {}

    async def run(self) -> WorkerReport:
        """Until it is stopped, or the broker refuses it."""
        index, backoff, streams = self.connection.current, Backoff(), 0
        try:
            while True:
                token, pause = self.connection.token.read(), 0.0
                try:
                    opened = await self._unless_over(open_stream(self, index), CLOSE_PATIENCE)
                    if opened is not None:
                        self.ledger.report.reconnects, streams = streams, streams + 1
                        pause = max(0.0, await self._serve(*opened) - self.loop.time())
                except HowdahError as error:
                    refusals = _CREDENTIAL if streams else _REFUSED
                    if error.code in refusals and self.connection.token.read() == token:
                        await self._give_up(error)
                        raise
                    if error.reason == "SESSION_RESUMED":
                        self.session_id = ""  # Another stream has it, and what it held.
                    pause = backoff.next()
                    log.warning("no stream to the broker, trying again in %.2f s: %s", pause, error)
                if self.stream is not None and self.stream.has_proved():
                    backoff = Backoff()
                index, self.stream = index + 1, None
                if self.is_over() or (await self._unless_over(asyncio.sleep(pause, True))) is None:
                    return self._final_report()
        finally:
            for timer in self.timers.values():
                timer.cancel()
            self.ledger.give_up()
            self.runner.abort()
            self.runner.close()

    async def _unless_over(self, work: Coroutine[Any, Any, Any], patience: float = 0.0) -> Any:
        """Runs it while there is no stream. None: it is time to end."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self.wake.set())
        try:
            while not task.done() and not self.is_over():
                self.wake.clear()
                await self.wake.wait()
            if not task.done() and not self.now:
                await asyncio.wait([task], timeout=patience)
            return task.result() if task.done() else None
        finally:
            task.cancel()

    def is_over(self) -> bool:
        return self.now or (self.stopping and not self.ledger.held)

    def window(self, name: str) -> v1.Window:
        return v1.Window(task_type=name, jobs=self.runner.slots[name].window, bytes=self.options.window_bytes)

    async def _serve(self, channel: grpc.aio.Channel, call: Any, welcome: v1.Welcome, broker: Broker) -> float:
        # Without the session's id: who knows it may take over the session.
        log.info("connected to %s: %d leases kept, %d lost", welcome.broker, len(welcome.kept), len(welcome.lost))
        self.ledger.broker = broker
        self.session_id, self.grace = welcome.session_id, welcome.session_grace.ToTimedelta().total_seconds()
        self._set_timer("lost", None, self._grace_is_over)
        self._set_timer("again", None, self._send_again)
        self.ledger.resume(welcome.kept)
        self.runner.send_again(everything=True)
        self.stream = Stream(self, call, welcome, broker.name)
        try:
            return await self.stream.serve()
        finally:
            self._set_timer("lost", self.grace, self._grace_is_over)
            await channel.close()

    def resize(self, task_type: str, jobs: int) -> None:
        slot = self.runner.slots[task_type]
        slot.limit = slot.window = jobs
        self.runner.fill(slot)
        if not self.stopping:
            self.windows.append(self.window(task_type))
            self.wake.set()

    def _changed(self) -> None:
        self._wait_for_confirmations()
        self.wake.set()

    def send_again_later(self) -> None:
        if "again" not in self.timers:
            self._set_timer("again", self.again.next(), self._send_again)

    def _send_again(self) -> None:
        self.ledger.send_again()
        self.runner.send_again()

    def confirmed(self) -> None:
        self.again = Backoff()
        self._set_timer("confirm", None, self._end_now)
        self._wait_for_confirmations()

    def _set_timer(self, name: str, seconds: Optional[float], act: Callable[[], None]) -> None:
        """Sets a timer anew, or cancels it."""
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
        """Takes no more jobs; ends when those that run are settled, or soon after the stop timeout."""
        if self.stopping:
            return
        self.stopping = True
        self.runner.stop()
        self._set_timer("stop", self.options.stop_timeout, self._cancel_handlers)
        self._wait_for_confirmations()
        self.wake.set()

    def stop_now(self) -> None:
        """Gives up the jobs that run, and ends within a second."""
        self.stop()
        self._abort(HANDLER_PATIENCE)
        self.wake.set()

    def _cancel_handlers(self, reason: str = "stop") -> None:
        self.runner.cancel(reason)
        if reason == "stop":
            self._set_timer("stop", HANDLER_PATIENCE, lambda: self._abort(CONFIRM_PATIENCE))

    def _abort(self, patience: float) -> None:
        self.runner.abort()
        self._set_timer("stop", patience, self._end_now)

    def _wait_for_confirmations(self) -> None:
        """In a stop, handlers may take their time, but not confirmations that never come."""
        if self.stopping and "confirm" not in self.timers and self.ledger.only_unconfirmed():
            self._set_timer("confirm", STORE_PATIENCE, self._end_now)

    def _end_now(self) -> None:
        self.now = True

    def _grace_is_over(self) -> None:
        log.warning("no stream within the grace time: the leases may be lost")
        # The broker decides when we come back: it may have kept them.
        self._cancel_handlers("lease_lost")
        if self.stopping and self.ledger.only_unconfirmed():
            self._end_now()

    async def _give_up(self, error: HowdahError) -> None:
        """The broker refuses this worker: what its handlers still return cannot be settled."""
        log.error("the broker refuses this worker: %s", error)
        self._cancel_handlers("lease_lost")
        await self.runner.wait(HANDLER_PATIENCE)

    def _final_report(self) -> WorkerReport:
        left = self.ledger.unconfirmed()
        self.ledger.report.unconfirmed = len(left)
        if left:
            ids = ", ".join(str(held.key[0]) for held in left[:20])
            log.warning("the worker ended before the broker confirmed %d outcomes: %s", len(left), ids)
        return self.ledger.report

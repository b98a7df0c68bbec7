"""One ``Work`` stream of a worker: sends and receives its messages, and detects when it is broken."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Optional, Tuple

import grpc
import grpc.aio

from . import v1
from .broker import VERSION, Broker
from .connection import log
from .errors import HowdahError, broken, deadline
from .link import Link

if TYPE_CHECKING:
    from .session import Session

WELCOME_TIMEOUT = 15.0
# Seconds after which an unanswered settle message ends the stream. Without Postgres, a broker answers within 15 s.
ANSWER_TIMEOUT = 60.0
# CLOSE_TIMEOUT: seconds that the broker may take to end a half-closed stream. DRAIN_TIMEOUT: seconds that it may take
# to answer a drain request.
CLOSE_TIMEOUT, DRAIN_TIMEOUT = 2.0, 5.0
# Detection of handlers that block the event loop, in seconds: interval of the checks, shortest blocking that is logged,
# and minimum time between two log lines.
CHECK_INTERVAL, MIN_BLOCK, LOG_INTERVAL = 0.5, 2.0, 60.0
_REASONS = {v1.CANCEL_REASON_CANCELLED: "cancelled", v1.CANCEL_REASON_TIMEOUT: "timeout"}


async def open_stream(session: Session, index: int) -> Tuple[Link, v1.Welcome, Broker]:
    """Opens a stream on a new connection, and waits for the broker's `Welcome`."""
    broker, channel = await session.connection.dial_blocking(index)
    link = Link(channel, session.connection.metadata())
    try:
        first = await asyncio.wait_for(_greet(session, link), WELCOME_TIMEOUT)
        if first is grpc.aio.EOF or not first.HasField("welcome"):
            raise broken(f"{broker.name}: the broker closed the stream, or its first message was not a welcome")
        return link, first.welcome, broker
    except BaseException as error:
        link.close()
        if isinstance(error, asyncio.TimeoutError):
            raise deadline("the broker's welcome", WELCOME_TIMEOUT) from None
        if isinstance(error, grpc.RpcError):
            session.connection.move_on_from(broker)
            raise HowdahError._from_rpc(error, broker.name) from None
        raise


async def _greet(session: Session, link: Link) -> Any:
    # The Subscribe contains the current windows, so earlier changes need not be sent.
    session.windows.clear()
    windows = [] if session.stopping else [session.window(name) for name in session.runner.slots.types]
    held = session.ledger.leases() if session.session_id else []
    labels = {"client": f"howdah-python/{VERSION}", "host": socket.gethostname(), **session.options.labels}
    subscribe = v1.Subscribe(windows=windows, session_id=session.session_id, held=held, labels=labels)
    subscribe.max_message_bytes = session.options.max_message_bytes
    if session.options.liveness is not None:
        subscribe.liveness.CopyFrom(session.options.liveness)
    with suppress(asyncio.InvalidStateError):  # The stream has already ended; read() raises the reason.
        await link.write(v1.WorkRequest(subscribe=subscribe))
    return await link.read()


async def notice_blocked_loop() -> None:
    """Logs how long handlers block the event loop, until it is cancelled."""
    logged = -LOG_INTERVAL
    while True:
        begun = time.monotonic()
        await asyncio.sleep(CHECK_INTERVAL)
        now = time.monotonic()
        blocked = now - begun - CHECK_INTERVAL
        if blocked >= MIN_BLOCK and now - logged >= LOG_INTERVAL:
            logged = now
            hint = "use a plain function, or await asyncio.to_thread, for work that does not await"
            log.warning("a handler blocked the event loop for %.1f s; %s", blocked, hint)


class Stream:
    """Serves a stream until it ends, or until the worker must leave it."""

    def __init__(self, session: Session, link: Link, welcome: v1.Welcome, address: str) -> None:
        self.session, self.ledger, self.link, self.address = session, session.ledger, link, address
        local_limit, limits = session.options.max_message_bytes, welcome.limits
        self.max_outcomes = limits.max_settle_outcomes or 10_000
        self.max_bytes = max(1024, min(limits.max_message_bytes or local_limit, local_limit) - 1024)
        self.ping = welcome.ping_interval.ToTimedelta().total_seconds() or 10.0
        self.opened = self.heard = session.loop.time()
        self.drain_requested = self.drained = self.settled = False
        #: Event-loop time at which to open the next stream, set when the broker announces a drain; else None.
        self.reconnect_at: Optional[float] = None

    def worked(self) -> bool:
        """Whether the stream has shown that the broker works, so that the backoff of reconnects starts again."""
        return self.settled or self.drained or self.session.loop.time() - self.opened > 3 * self.ping

    async def serve(self) -> float:
        """Serves the stream. Returns the loop time at which to open the next one. Raises if the stream broke."""
        works = (self._read(), self._write(), self._watch(), notice_blocked_loop())
        tasks = [asyncio.ensure_future(work) for work in works]
        reader, writer, *_ = tasks
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if writer.done() and not reader.done() and (writer.exception() or not self.ledger.held):
                # A failed write does not say why the stream broke. Waits until the reader has the broker's status,
                # which has the reason.
                await asyncio.wait([reader], timeout=CLOSE_TIMEOUT)
            for task in tasks:
                if task.done():
                    task.result()
        except grpc.RpcError as error:
            if self.reconnect_at is None:
                raise HowdahError._from_rpc(error, self.address) from None
        except asyncio.InvalidStateError:
            raise broken(f"{self.address}: the stream is closed") from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self.reconnect_at is None and not self.session.is_finished():
            raise broken(f"{self.address}: the broker closed the stream")
        return self.reconnect_at or 0.0

    async def _write(self) -> None:
        wake = self.session.wake
        while not self._is_left():
            wake.clear()
            message = self._next_message()
            if message is None:
                await wake.wait()
            else:
                await self.link.write(message)
        if not self.session.now and not self.ledger.held:
            self.link.done_writing()

    def _is_left(self) -> bool:
        idle = not self.ledger.held and not self.session.windows
        if self.session.now or (idle and self.session.stopping and self.drained):
            return True
        return self.reconnect_at is not None and (idle or self.session.loop.time() >= self.reconnect_at)

    def _next_message(self) -> Optional[v1.WorkRequest]:
        """Returns the next message: windows and drain first, then requests of handlers, then collected outcomes."""
        session = self.session
        window = session.next_window()
        if window is not None:
            return v1.WorkRequest(window=window)
        if session.stopping and not self.drain_requested:
            self.drain_requested = True
            session.loop.call_later(DRAIN_TIMEOUT, self._drained)
            return v1.WorkRequest(drain=v1.DrainRequest())
        extensions = session.runner.extensions.next_batch(self.max_bytes)
        if extensions:
            return v1.WorkRequest(extend=v1.Extend(extensions=extensions))
        reports = session.runner.reports.next_batch(self.max_bytes)
        if reports:
            return v1.WorkRequest(progress=v1.Progress(reports=reports))
        if self.ledger.may_send(session.runner.slots.limit):
            outcomes = self.ledger.next_batch(self.max_outcomes, self.max_bytes)
            if outcomes:
                return v1.WorkRequest(settle=v1.Settle(outcomes=outcomes))
        return None

    def _drained(self) -> None:
        self.drained = True
        self.session.wake.set()

    async def _watch(self) -> None:
        """Raises if the broker is silent, or does not answer outcomes.

        Silence counts only at two checks in a row: before the first one, this program itself may have been suspended.
        """
        silent = 0
        while silent < 2:
            await asyncio.sleep(min(self.ping / 2, 1.0))
            now = self.session.loop.time()
            silent = silent + 1 if now - self.heard > 3 * self.ping else 0
            if any(now - sent > ANSWER_TIMEOUT for _, sent in self.ledger.batches.values()):
                raise broken(f"{self.address}: the broker has not answered a Settle message in time")
        raise broken(f"{self.address}: the broker is silent: no message for three ping intervals")

    async def _read(self) -> None:
        while (message := await self.link.read()) is not grpc.aio.EOF:
            self.heard = self.session.loop.time()
            self._receive(message)
            self.session.wake.set()

    def _receive(self, message: v1.WorkResponse) -> None:
        session, stored = self.session, True
        if message.HasField("jobs"):
            session.runner.take(message.jobs.jobs)
        elif message.HasField("settled"):
            stored = self.ledger.settled(message.settled.results)
            if stored:
                self.settled = True
                session.confirmed()
        elif message.HasField("cancel"):
            for job in message.cancel.jobs:
                self.ledger.cancel((job.id, job.token), _REASONS.get(job.reason, "lease_lost"))
        elif message.HasField("extended"):
            stored = session.runner.extensions.answered(message.extended.results)
        elif message.HasField("progressed"):
            stored = session.runner.reports.answered(message.progressed.results)
        elif message.HasField("drain"):
            self._drain(message.drain)
        if not stored:
            session.resend_later()

    def _drain(self, drain: v1.Drain) -> None:
        log.debug("the broker %s is draining this stream", self.address)
        self.drained = True
        if drain.reason == v1.DRAIN_REASON_SHUTDOWN or drain.HasField("reconnect_after"):
            after = drain.reconnect_after.ToTimedelta().total_seconds()
            self.reconnect_at = self.session.loop.time() + after
            self.session.loop.call_later(after, self.session.wake.set)

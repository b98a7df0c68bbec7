"""One stream of a worker: what is sent, what is received, and how long it is good."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Optional, Tuple, cast

import grpc.aio

from . import v1
from .broker import VERSION, Broker
from .connection import log
from .errors import HowdahError, broken, deadline

if TYPE_CHECKING:
    from .session import Session

WELCOME_TIMEOUT = 15.0
# A broker that cannot reach Postgres answers within 15 s.
LONGEST_ANSWER = 60.0
# How long the broker may take to end a stream that was closed, and to answer a drain request.
CLOSE_PATIENCE, DRAIN_PATIENCE = 2.0, 5.0
_REASONS = {v1.CANCEL_REASON_CANCELLED: "cancelled", v1.CANCEL_REASON_TIMEOUT: "timeout"}


async def open_stream(session: Session, index: int) -> Tuple[grpc.aio.Channel, Any, v1.Welcome, Broker]:
    """Opens a stream on a new connection, and waits for the welcome."""
    broker, channel = await session.connection.dial(index)
    try:
        call = cast(Any, v1.WorkerServiceStub(channel)).Work(metadata=session.connection.metadata())
        first = await asyncio.wait_for(_greet(session, call), WELCOME_TIMEOUT)
        if first is grpc.aio.EOF or not first.HasField("welcome"):
            raise broken(f"{broker.name}: the broker did not begin with a welcome")
        return channel, call, first.welcome, broker
    except BaseException as error:
        await channel.close()
        if isinstance(error, asyncio.TimeoutError):
            raise deadline("the broker's welcome", WELCOME_TIMEOUT) from None
        if isinstance(error, grpc.aio.AioRpcError):
            session.connection.move_on_from(broker)
            raise HowdahError._of_rpc(error, broker.name) from None
        raise


async def _greet(session: Session, call: Any) -> Any:
    # These include all changes so far; those that come while the broker has not answered are sent afterwards.
    session.windows.clear()
    windows = [] if session.stopping else [session.window(name) for name in session.runner.slots]
    held = session.ledger.leases() if session.session_id else []
    labels = {"client": f"howdah-python/{VERSION}", "host": socket.gethostname(), **session.options.labels}
    subscribe = v1.Subscribe(windows=windows, session_id=session.session_id, held=held, labels=labels)
    subscribe.max_message_bytes = session.options.max_message_bytes
    with suppress(asyncio.InvalidStateError):  # The stream has ended already; reading tells why.
        await call.write(v1.WorkRequest(subscribe=subscribe))
    return await call.read()


class Stream:
    """Serves a stream until it ends, or should be left."""

    def __init__(self, session: Session, call: Any, welcome: v1.Welcome, address: str) -> None:
        self.session, self.ledger, self.call, self.address = session, session.ledger, call, address
        own, limits = session.options.max_message_bytes, welcome.limits
        self.max_outcomes = limits.max_settle_outcomes or 10_000
        self.max_bytes = max(1024, min(limits.max_message_bytes or own, own) - 1024)
        self.ping = welcome.ping_interval.ToTimedelta().total_seconds() or 10.0
        self.opened = self.heard = session.loop.time()
        self.drain_asked = self.drained = self.useful = False
        #: When to open another stream, after a drain by the broker.
        self.reconnect_at: Optional[float] = None

    def has_proved(self) -> bool:
        """Whether it has shown that the broker works."""
        return self.useful or self.drained or self.session.loop.time() - self.opened > 3 * self.ping

    async def serve(self) -> float:
        """Returns when to open the next stream. Raises if it broke."""
        tasks = [asyncio.ensure_future(work) for work in (self._read(), self._write(), self._watch())]
        reader, writer, _ = tasks
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if writer.done() and not reader.done() and (writer.exception() or not self.ledger.held):
                # Left in order: the broker ends it. If it took no more, the broker's status says why.
                await asyncio.wait([reader], timeout=CLOSE_PATIENCE)
            for task in tasks:
                if task.done():
                    task.result()
        except grpc.aio.AioRpcError as error:
            if self.reconnect_at is None:
                raise HowdahError._of_rpc(error, self.address) from None
        except asyncio.InvalidStateError:
            raise broken(f"{self.address}: the stream is closed") from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self.reconnect_at is None and not self.session.is_over():
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
                await self.call.write(message)
        if not self.session.now and not self.ledger.held:
            await self.call.done_writing()

    def _is_left(self) -> bool:
        idle = not self.ledger.held and not self.session.windows
        if self.session.now or (idle and self.session.stopping and self.drained):
            return True
        return self.reconnect_at is not None and (idle or self.session.loop.time() >= self.reconnect_at)

    def _next_message(self) -> Optional[v1.WorkRequest]:
        """The next message: windows and drain first, then requests of handlers, then gathered outcomes."""
        session = self.session
        if session.windows:
            return v1.WorkRequest(window=session.windows.pop(0))
        if session.stopping and not self.drain_asked:
            self.drain_asked = True
            session.loop.call_later(DRAIN_PATIENCE, self._drained)
            return v1.WorkRequest(drain=v1.DrainRequest())
        extensions = session.runner.extensions.next_batch(self.max_bytes)
        if extensions:
            return v1.WorkRequest(extend=v1.Extend(extensions=extensions))
        reports = session.runner.reports.next_batch(self.max_bytes)
        if reports:
            return v1.WorkRequest(progress=v1.Progress(reports=reports))
        if self.ledger.may_send(session.runner.limit):
            outcomes = self.ledger.next_batch(self.max_outcomes, self.max_bytes)
            if outcomes:
                return v1.WorkRequest(settle=v1.Settle(outcomes=outcomes))
        return None

    def _drained(self) -> None:
        self.drained = True
        self.session.wake.set()

    async def _watch(self) -> None:
        """Raises when the broker is silent, twice: the first time, this program may have been stopped itself."""
        silent = 0
        while silent < 2:
            await asyncio.sleep(min(self.ping / 2, 5.0))
            now = self.session.loop.time()
            silent = silent + 1 if now - self.heard > 3 * self.ping else 0
            if any(now - sent > LONGEST_ANSWER for _, sent in self.ledger.batches.values()):
                raise broken(f"{self.address}: the broker does not answer")
        raise broken(f"{self.address}: the broker is silent")

    async def _read(self) -> None:
        # Not by iterating: the welcome was read already, and the two styles do not mix.
        while (message := await self.call.read()) is not grpc.aio.EOF:
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
                self.useful = True
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
            session.send_again_later()

    def _drain(self, drain: v1.Drain) -> None:
        log.debug("the broker %s is draining this stream", self.address)
        self.drained = True
        if drain.reason == v1.DRAIN_REASON_SHUTDOWN or drain.HasField("reconnect_after"):
            after = drain.reconnect_after.ToTimedelta().total_seconds()
            self.reconnect_at = self.session.loop.time() + after
            self.session.loop.call_later(after, self.session.wake.set)

"""Runs handlers for jobs, as many at once as there are slots, and sends their extensions and progress reports."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Dict, Generic, Iterable, List, Optional, Sequence, Tuple, TypeVar, Union

import grpc

from . import v1
from .connection import SMALL_CALL, log
from .errors import HowdahError, LeaseLost, Stopped, deadline
from .handler import AsyncJob, GetResults, Job, log_failure
from .ledger import HeldLease, Key, Ledger
from .slots import Slot, Slots
from .telemetry import processing
from .threads import Threads

A = TypeVar("A", v1.Extension, v1.ProgressReport)


class PendingRequests(Generic[A]):
    """Extensions or progress reports that are unsent or unanswered."""

    def __init__(self) -> None:
        self.waiting: List[Tuple[A, asyncio.Future[None]]] = []
        self.sent: Dict[Key, Tuple[A, asyncio.Future[None]]] = {}
        self.later: List[Tuple[A, asyncio.Future[None]]] = []
        #: Set after a stream broke with many unanswered bytes. Until all requests are answered, each message is small
        #: and waits for the answer to the previous one.
        self.one_at_a_time = False

    def next_batch(self, max_bytes: int) -> List[A]:
        """Takes the next requests to send.

        A message may name a job only once, so a second request for a job waits for the answer to the first.
        """
        batch: List[A] = []
        size, waiting = 0, []
        if self.one_at_a_time:
            if self.sent:
                return batch
            max_bytes = min(max_bytes, SMALL_CALL)
        for request in self.waiting:
            message, future = request
            key = (message.id, message.token)
            fits = not batch or (size + message.ByteSize() + 16 <= max_bytes and len(batch) < 1_000)
            if future.done():
                continue
            if key in self.sent or not fits:
                waiting.append(request)
                continue
            self.sent[key] = request
            batch.append(message)
            size += message.ByteSize() + 16
        self.waiting = waiting
        return batch

    def answered(self, results: Iterable[v1.SettleResult]) -> bool:
        """Handles the broker's answers. Returns false if some requests must be sent again later."""
        for result in results:
            message, future = self.sent.pop((result.id, result.token), (None, None))
            if message is None or future is None or future.done():
                continue
            if result.status == v1.SETTLE_STATUS_UNAVAILABLE:
                self.later.append((message, future))
            elif result.status == v1.SETTLE_STATUS_OK:
                future.set_result(None)
            elif result.status == v1.SETTLE_STATUS_INVALID:
                future.set_exception(HowdahError(result.message, grpc.StatusCode.INVALID_ARGUMENT))
            else:
                future.set_exception(LeaseLost(result.id))
        self.one_at_a_time = self.one_at_a_time and bool(self.sent or self.waiting or self.later)
        return not self.later

    def resend(self, everything: bool = False) -> None:
        unanswered = [*(self.sent.values() if everything else ()), *self.later]
        if everything:
            self.one_at_a_time = (
                self.one_at_a_time or sum(message.ByteSize() for message, _ in self.sent.values()) > SMALL_CALL
            )
            self.sent.clear()
        self.later.clear()
        self.waiting[:0] = unanswered

    def close(self) -> None:
        for _, future in (*self.sent.values(), *self.waiting, *self.later):
            if not future.done():
                future.set_exception(Stopped("worker"))


class Runner:
    """Runs the handlers of a worker."""

    def __init__(
        self,
        slots: Slots,
        ledger: Ledger,
        middleware: Sequence[Callable[[Any], Any]],
        timeout: float,
        linked: bool,
        get_results: GetResults,
    ) -> None:
        self.slots, self.ledger, self.middleware, self.timeout = slots, ledger, middleware, timeout
        self.linked, self.get_results = linked, get_results
        self.extensions, self.reports = PendingRequests[v1.Extension](), PendingRequests[v1.ProgressReport]()
        self.loop, self.threads = asyncio.get_running_loop(), Threads()
        self.stopping = False
        self._hand_back_timer: Optional[asyncio.TimerHandle] = None
        #: Called when a window may have changed.
        self.windows_changed: Callable[[], None] = lambda: None
        #: Called when a handler has ended, or when a handler requests an extension or reports progress.
        self.changed: Callable[[], None] = lambda: None

    def stop(self) -> None:
        """Stops starting handlers, and releases the jobs that wait for a slot."""
        self.stopping = True
        for slot in self.slots.types.values():
            self.release_waiting(slot)

    def release_waiting(self, slot: Slot) -> None:
        """Releases the jobs that wait for a slot."""
        while slot.queue:
            held = slot.queue.popleft()
            if not held.over:
                self.ledger.end(held, v1.Release())

    def cancel(self, reason: str) -> None:
        """Tells every handler to abandon its job. Outcomes that handlers return after that are still sent."""
        for held in list(self.ledger.held.values()):
            held.cancel(reason)

    def abort(self) -> None:
        """Ends every handler now. Releases their jobs, so that the attempts do not count."""
        for held in list(self.ledger.held.values()):
            task = held.task
            held.cancel("stop")
            if held.over:
                del self.ledger.held[held.key]
            elif held.outcome is None:
                self.ledger.end(held, v1.Release())
            if task is not None:
                task.cancel()

    async def wait(self, seconds: float) -> None:
        """Waits for the running handlers, at most this many seconds."""
        tasks = [held.task for held in self.ledger.held.values() if held.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    def resend(self, everything: bool = False) -> None:
        self.extensions.resend(everything)
        self.reports.resend(everything)

    def close(self) -> None:
        self.extensions.close()
        self.reports.close()
        self.threads.close()
        if self._hand_back_timer is not None:
            self._hand_back_timer.cancel()

    def take(self, messages: Iterable[v1.LeasedJob]) -> None:
        """Accepts jobs that the broker has sent."""
        for message in messages:
            held = HeldLease(message, self.slots.types.get(message.task_type), self.loop.time())
            if held.key in self.ledger.held:
                log.warning("received job %d twice with the same token; ignoring the second delivery", message.id)
                continue
            self.ledger.report.received += 1
            self.ledger.held[held.key] = held
            # The broker may have sent the job before it knew that its type is paused here.
            if held.slot is None or held.slot.limit == 0 or self.stopping:
                self.ledger.end(held, v1.Release())
            else:
                held.slot.queue.append(held)
        self.fill()

    def fill(self) -> None:
        """Starts waiting jobs while there are slots."""
        while (held := self.slots.next()) is not None and held.slot is not None:
            handler = held.slot.handler
            kind = AsyncJob if handler.is_async else Job
            held.job = job = kind(held.message, self._send_request, self.loop, self.get_results)
            job._processing = processing(job, self.ledger.broker, self.linked)
            held.task = self.loop.create_task(handler.run(job, self.threads, self.middleware))
            held.task.add_done_callback(lambda task, held=held: self._ended(held, task))  # type: ignore[misc]
        due = self.slots.next_hand_back()
        if due is not None and self._hand_back_timer is None:
            self._hand_back_timer = self.loop.call_at(due, self._hand_back)
        if self.slots.is_exact:
            self.windows_changed()

    def _hand_back(self) -> None:
        """Releases the jobs that have waited too long, so that other workers can run them."""
        self._hand_back_timer = None
        jobs = self.slots.hand_back(self.loop.time())
        for held in jobs:
            self.ledger.end(held, v1.Release())
        self.fill()
        if jobs:
            self.changed()

    def _ended(self, held: HeldLease, task: Any) -> None:
        """Frees the slot of a handler that has ended, and records its outcome."""
        if held.slot is not None:
            if self.slots.ended(held.slot, self.loop.time()):
                self.windows_changed()
            self.fill()
        if held.over:
            self.ledger.held.pop(held.key, None)
        elif held.outcome is None:
            # The task of a handler is cancelled if the worker stops or has lost its stream. Then the outcome is a
            # release, so that another worker can run the job.
            error = None if task.cancelled() else task.exception()
            if error is not None and held.job is not None:
                failure = v1.Nack(error=repr(error))
                log_failure(held.job, failure, error)
                self.ledger.end(held, failure)
            else:
                self.ledger.end(held, v1.Release() if task.cancelled() else task.result())
        self.changed()

    async def _send_request(self, message: Union[v1.Extension, v1.ProgressReport]) -> None:
        future: asyncio.Future[None] = self.loop.create_future()
        if isinstance(message, v1.Extension):
            self.extensions.waiting.append((message, future))
        else:
            self.reports.waiting.append((message, future))
        self.changed()
        try:
            await asyncio.wait_for(future, self.timeout)
        except asyncio.TimeoutError:
            raise deadline("an extension or progress report", self.timeout) from None

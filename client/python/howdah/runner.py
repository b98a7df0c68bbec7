"""Runs handlers on jobs, as many at once as there are slots, and asks the broker what they ask for."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Callable, Deque, Dict, Generic, Iterable, List, Sequence, Tuple, TypeVar, Union

import grpc

from . import v1
from .connection import log
from .errors import HowdahError, LeaseLost, Stopped, deadline
from .handler import AsyncJob, Handler, Job
from .ledger import Held, Key, Ledger
from .telemetry import processing
from .threads import Threads

A = TypeVar("A", v1.Extension, v1.ProgressReport)


class Slot:
    """The handlers of a task type that run, and the jobs that wait for one to end."""

    def __init__(self, handler: Handler, window: int) -> None:
        self.handler, self.limit, self.window, self.running = handler, handler.concurrency, window, 0
        self.queue: Deque[Held] = deque()


class Asks(Generic[A]):
    """Extensions or progress reports that the broker has not answered."""

    def __init__(self) -> None:
        self.waiting: List[Tuple[A, asyncio.Future[None]]] = []
        self.sent: Dict[Key, Tuple[A, asyncio.Future[None]]] = {}
        self.later: List[Tuple[A, asyncio.Future[None]]] = []

    def next_batch(self, max_bytes: int) -> List[A]:
        """The next ones to send. A message names a job once; the second request for it follows the first's answer."""
        batch: List[A] = []
        size, waiting = 0, []
        for ask in self.waiting:
            message, future = ask
            key = (message.id, message.token)
            fits = not batch or (size + message.ByteSize() + 16 <= max_bytes and len(batch) < 1_000)
            if future.done():
                continue
            if key in self.sent or not fits:
                waiting.append(ask)
                continue
            self.sent[key] = ask
            batch.append(message)
            size += message.ByteSize() + 16
        self.waiting = waiting
        return batch

    def answered(self, results: Iterable[v1.SettleResult]) -> bool:
        """False: some must be sent again a little later."""
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
        return not self.later

    def send_again(self, everything: bool = False) -> None:
        again = [*(self.sent.values() if everything else ()), *self.later]
        if everything:
            self.sent.clear()
        self.later.clear()
        self.waiting[:0] = again

    def close(self) -> None:
        for _, future in (*self.sent.values(), *self.waiting, *self.later):
            if not future.done():
                future.set_exception(Stopped("worker"))


class Runner:
    """The handlers of a worker."""

    def __init__(
        self,
        slots: Dict[str, Slot],
        ledger: Ledger,
        middleware: Sequence[Callable[[Any], Any]],
        patience: float,
        linked: bool,
    ) -> None:
        self.slots, self.ledger, self.middleware, self.patience = slots, ledger, middleware, patience
        self.linked = linked
        self.extensions, self.reports = Asks[v1.Extension](), Asks[v1.ProgressReport]()
        self.loop, self.threads = asyncio.get_running_loop(), Threads()
        self.stopping = False
        #: Called when a handler has ended, or asks for something.
        self.changed: Callable[[], None] = lambda: None

    def limit(self) -> int:
        """How many handlers may run at once."""
        return sum(slot.limit for slot in self.slots.values())

    def stop(self) -> None:
        """Starts no more handlers: jobs that wait for a slot are released."""
        self.stopping = True
        for slot in self.slots.values():
            while slot.queue:
                held = slot.queue.popleft()
                if not held.over:
                    self.ledger.end(held, v1.Release())

    def cancel(self, reason: str) -> None:
        """Tells every handler to give up; what it returns still counts."""
        for held in list(self.ledger.held.values()):
            held.cancel(reason)

    def abort(self) -> None:
        """Ends every handler now. Their jobs are released, and the attempts do not count."""
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
        """Waits for the handlers that run."""
        tasks = [held.task for held in self.ledger.held.values() if held.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    def send_again(self, everything: bool = False) -> None:
        self.extensions.send_again(everything)
        self.reports.send_again(everything)

    def close(self) -> None:
        self.extensions.close()
        self.reports.close()
        self.threads.close()

    def take(self, messages: Iterable[v1.LeasedJob]) -> None:
        """Jobs have arrived."""
        for message in messages:
            held = Held(message, self.slots.get(message.task_type))
            if held.key in self.ledger.held:
                log.warning("job %d came twice with the same token", message.id)
                continue
            self.ledger.report.received += 1
            self.ledger.held[held.key] = held
            if held.slot is None or self.stopping:
                self.ledger.end(held, v1.Release())
            else:
                held.slot.queue.append(held)
                self.fill(held.slot)

    def fill(self, slot: Slot) -> None:
        """Starts waiting jobs while there are slots."""
        while slot.queue and slot.running < slot.limit:
            held = slot.queue.popleft()
            if held.over:
                continue
            slot.running += 1
            kind = AsyncJob if slot.handler.is_async else Job
            held.job = job = kind(held.message, self._ask, self.loop)
            job._processing = processing(job, self.ledger.broker, self.linked)
            held.task = self.loop.create_task(slot.handler.run(job, self.threads, self.middleware))
            held.task.add_done_callback(lambda task, held=held: self._ended(held, task))  # type: ignore[misc]

    def _ended(self, held: Held, task: Any) -> None:
        """A handler has ended."""
        if held.slot is not None:
            held.slot.running -= 1
            self.fill(held.slot)
        if held.over:
            self.ledger.held.pop(held.key, None)
        elif held.outcome is None:
            # Cancelled, since the worker stops or is cut off: another one may run it.
            error = None if task.cancelled() else task.exception()
            outcome = v1.Nack(error=repr(error)) if error else v1.Release() if task.cancelled() else task.result()
            self.ledger.end(held, outcome)
        self.changed()

    async def _ask(self, message: Union[v1.Extension, v1.ProgressReport]) -> None:
        future: asyncio.Future[None] = self.loop.create_future()
        if isinstance(message, v1.Extension):
            self.extensions.waiting.append((message, future))
        else:
            self.reports.waiting.append((message, future))
        self.changed()
        try:
            await asyncio.wait_for(future, self.patience)
        except asyncio.TimeoutError:
            raise deadline("the broker's answer", self.patience) from None

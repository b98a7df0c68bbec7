"""What a worker holds: leases, and outcomes that the broker has not confirmed. No I/O here."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Deque, Dict, Iterable, List, Optional, Set, Tuple

import grpc

from . import v1
from .broker import Broker
from .connection import log
from .errors import HowdahError, LeaseLost
from .handler import JobBase
from .outcome import OutcomeMessage

if TYPE_CHECKING:
    from .runner import Slot

Key = Tuple[int, int]
# While FEW messages with outcomes are unanswered, outcomes gather until a quarter of the slots (1/PART) have ended with
# one, and the next message takes them all. So messages grow under load, and few slots stand idle because their outcomes
# wait. With MOST, nothing is sent until an answer comes.
FEW, MOST, PART = 4, 16, 4


@dataclass
class WorkerReport:
    """Counters of a worker. Outcomes count when the broker has confirmed them."""

    received: int = 0
    acked: int = 0
    failed: int = 0
    snoozed: int = 0
    released: int = 0
    lost: int = 0  #: leases lost while the job ran, or before its outcome was stored
    cancelled: int = 0  #: jobs that were cancelled, or timed out, while they ran
    unconfirmed: int = 0  #: outcomes that were not confirmed when the worker ended
    reconnects: int = 0


class Held:
    """A lease, from its delivery until the broker has confirmed its outcome."""

    def __init__(self, message: v1.LeasedJob, slot: Optional[Slot]) -> None:
        self.message, self.slot, self.key = message, slot, (message.id, message.token)
        self.job: Optional[JobBase] = None
        self.task: Optional[asyncio.Task[OutcomeMessage]] = None
        self.outcome: Optional[OutcomeMessage] = None
        self.over, self.refused, self.batch = False, False, 0

    def cancel(self, reason: str) -> None:
        """Tells the handler to give up."""
        if self.job is not None and self.task is not None and not self.job.cancelled.is_set():
            self.job.cancel_reason = reason
            self.job.cancelled.set()
            if self.slot is not None and self.slot.handler.is_async:
                self.task.cancel()


class Ledger:
    """Leases by id and token: a job may come again while an older handler of it still runs."""

    def __init__(self) -> None:
        self.held: Dict[Key, Held] = {}
        self.unsent: Deque[Held] = deque()
        self.later: List[Held] = []
        self.report = WorkerReport()
        #: Where the stream is, or was the last time.
        self.broker: Optional[Broker] = None
        # Of messages with outcomes on this stream: how many are not answered, and when they were sent.
        self.batches: Dict[int, List[float]] = {}
        self.number = 0

    def end(self, held: Held, outcome: OutcomeMessage) -> None:
        held.outcome, held.task = outcome, None
        if held.job is not None:
            held.job._processing.decided()
        self.unsent.append(held)

    def only_unconfirmed(self) -> bool:
        return bool(self.held) and all(held.outcome is not None for held in self.held.values())

    def may_send(self, slots: Callable[[], int]) -> bool:
        """Whether another message may be sent for the outcomes of a worker with so many slots."""
        outcomes, messages = len(self.unsent), len(self.batches)
        return outcomes > 0 and (messages < FEW or (messages < MOST and outcomes * PART >= slots()))

    def next_batch(self, max_outcomes: int, max_bytes: int) -> List[v1.Outcome]:
        """The outcomes of the next message: each job once, at least one, no more bytes than the broker takes."""
        outcomes: List[v1.Outcome] = []
        ids: Set[int] = set()
        size = 0
        self.number += 1
        while self.unsent and len(outcomes) < max_outcomes:
            held = self.unsent[0]
            if self.held.get(held.key) is held and held.outcome is not None:
                own = held.outcome.ByteSize() + 64
                if own > max_bytes:
                    text = f"the result takes {own} bytes; the broker accepts messages of {max_bytes}"
                    held.outcome, own = v1.Nack(error=text), 256
                if held.key[0] in ids or (outcomes and size + own > max_bytes):
                    break
                ids.add(held.key[0])
                size += own
                held.batch = self.number
                outcomes.append(outcome_message(held.key, held.outcome))
            self.unsent.popleft()
        if outcomes:
            self.batches[self.number] = [len(outcomes), time.monotonic()]
        return outcomes

    def settled(self, results: Iterable[v1.SettleResult]) -> bool:
        """The broker's answers to outcomes. False: some must be sent again a little later."""
        for result in results:
            held = self.held.get((result.id, result.token))
            if held is None or held.outcome is None or not held.batch:
                continue
            batch = self.batches[held.batch]
            batch[0] -= 1
            if not batch[0]:
                del self.batches[held.batch]
            held.batch = 0
            if result.status == v1.SETTLE_STATUS_UNAVAILABLE:
                self.later.append(held)
            elif result.status == v1.SETTLE_STATUS_INVALID and not held.refused:
                log.warning("job %d: the broker refused the outcome: %s", result.id, result.message)
                held.refused = True
                self.end(held, v1.Nack(error=f"the outcome was refused: {result.message}"))
            else:
                del self.held[held.key]
                self._count(held, result)
        return not self.later

    def _count(self, held: Held, result: v1.SettleResult) -> None:
        stored = result.status == v1.SETTLE_STATUS_OK
        names = {v1.Ack: "acked", v1.Nack: "failed", v1.Snooze: "snoozed", v1.Release: "released"}
        if not stored:
            log.warning("job %d: the lease was lost before the outcome arrived", held.key[0])
        name = names[type(held.outcome)] if stored else "lost"
        setattr(self.report, name, getattr(self.report, name) + 1)
        if result.status == v1.SETTLE_STATUS_INVALID:
            self._tell(held, HowdahError(result.message, grpc.StatusCode.INVALID_ARGUMENT, reason="INVALID"))
        else:
            self._tell(held, None if stored else LeaseLost(held.key[0]))

    def _tell(self, held: Held, error: Optional[HowdahError]) -> None:
        if held.job is not None and held.outcome is not None and self.broker is not None:
            held.job._processing.settled(held.outcome, self.broker, error)

    def unconfirmed(self) -> List[Held]:
        return [held for held in self.held.values() if held.outcome is not None]

    def give_up(self) -> None:
        """The worker ends: no more answers will come."""
        for held in self.unconfirmed():
            text = f"the worker ended before the broker confirmed the outcome of job {held.key[0]}"
            self._tell(held, HowdahError(text, grpc.StatusCode.CANCELLED, reason="UNCONFIRMED"))

    def send_again(self) -> None:
        self.unsent.extend(self.later)
        self.later.clear()

    def cancel(self, key: Key, reason: str) -> None:
        """The broker has ended a lease. An outcome in flight gets its own answer."""
        held = self.held.get(key)
        if held is None or held.over or held.outcome is not None:
            return
        name = "lost" if reason == "lease_lost" else "cancelled"
        setattr(self.report, name, getattr(self.report, name) + 1)
        held.over = True
        if held.task is None:
            # It waited for a slot.
            del self.held[key]
        held.cancel(reason)

    def leases(self) -> List[v1.Lease]:
        """The leases to name when resuming, each job once: of two, the one whose handler runs."""
        tokens: Dict[int, int] = {}
        for (job_id, token), held in self.held.items():
            if not held.over and (held.outcome is None or job_id not in tokens):
                tokens[job_id] = token
        return [v1.Lease(id=job_id, token=token) for job_id, token in list(tokens.items())[:100_000]]

    def resume(self, kept: Iterable[v1.Lease]) -> None:
        """A new stream has started. Outcomes are sent again in any case: if they were stored, the answer is OK again."""
        mine = {(lease.id, lease.token) for lease in kept}
        self.later.clear()
        self.batches.clear()
        self.unsent = deque(held for held in self.held.values() if held.outcome is not None)
        for key, held in list(self.held.items()):
            held.batch = 0
            if held.outcome is None and key not in mine:
                self.cancel(key, "lease_lost")


def outcome_message(key: Key, outcome: OutcomeMessage) -> v1.Outcome:
    message = v1.Outcome(id=key[0], token=key[1])
    getattr(message, type(outcome).DESCRIPTOR.name.lower()).CopyFrom(outcome)
    return message

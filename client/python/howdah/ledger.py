"""The ledger of a worker: its leases, and the outcomes that the broker has not confirmed. It does no I/O."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Deque, Dict, Iterable, List, Optional, Set, Tuple

import grpc

from . import v1
from .broker import Broker
from .connection import RESEND_LIMIT, log
from .errors import HowdahError, LeaseLost
from .handler import JobBase
from .outcome import OutcomeMessage

if TYPE_CHECKING:
    from .slots import Slot

Key = Tuple[int, int]
# Limits on settle messages. With fewer than EAGER_MESSAGES unanswered settle messages, outcomes are sent at once. With
# more, outcomes accumulate until they number a quarter of the slots (1/SLOT_FRACTION). With MAX_MESSAGES unanswered
# messages, nothing is sent until an answer comes. So messages grow under load, and few slots are idle because their
# outcomes wait.
EAGER_MESSAGES, MAX_MESSAGES, SLOT_FRACTION = 4, 16, 4


@dataclass
class WorkerReport:
    """Counters of a worker. Outcomes count once the broker has confirmed them."""

    received: int = 0
    acked: int = 0
    failed: int = 0
    snoozed: int = 0
    released: int = 0
    lost: int = 0  #: leases lost while the job ran, or before its outcome was stored
    cancelled: int = 0  #: jobs that were cancelled or timed out while this worker held them
    unconfirmed: int = 0  #: outcomes that were not confirmed when the worker ended
    reconnects: int = 0


class HeldLease:
    """A lease, from its delivery until the broker has confirmed its outcome."""

    def __init__(self, message: v1.LeasedJob, slot: Optional[Slot], arrived: float = 0.0) -> None:
        self.message, self.slot, self.key = message, slot, (message.id, message.token)
        #: Time of the delivery, on the clock of the event loop.
        self.arrived = arrived
        self.job: Optional[JobBase] = None
        self.task: Optional[asyncio.Task[OutcomeMessage]] = None
        self.outcome: Optional[OutcomeMessage] = None
        self.over, self.refused, self.batch = False, False, 0
        #: Whether the outcome is sent with SettleJobs instead of the stream.
        self.unary = False

    def cancel(self, reason: str) -> None:
        """Tells the handler to abandon the job."""
        if self.job is not None and self.task is not None and not self.job.cancelled.is_set():
            self.job.cancel_reason = reason
            self.job.cancelled.set()
            self.job._on_cancel()
            if self.slot is not None and self.slot.handler.is_async:
                self.task.cancel()


class Ledger:
    """Leases by job id and fencing token.

    The key includes the token, because a job may be delivered again while an older handler of it still runs.
    """

    def __init__(self) -> None:
        self.held: Dict[Key, HeldLease] = {}
        self.unsent: Deque[HeldLease] = deque()
        self.later: List[HeldLease] = []
        #: Outcomes that were unanswered when a stream broke, and are now sent with SettleJobs instead of a stream.
        self.unary: Deque[HeldLease] = deque()
        self.report = WorkerReport()
        #: The broker of the current stream, or of the last one if no stream is open.
        self.broker: Optional[Broker] = None
        # The unanswered settle messages of the current stream by number. Each entry has the number of unanswered
        # outcomes, and the time of sending.
        self.batches: Dict[int, List[float]] = {}
        self.number = 0

    def end(self, held: HeldLease, outcome: OutcomeMessage) -> None:
        held.outcome, held.task = outcome, None
        if held.job is not None:
            held.job._processing.decided()
        self.unsent.append(held)

    def only_unconfirmed(self) -> bool:
        return bool(self.held) and all(held.outcome is not None for held in self.held.values())

    def may_send(self, slots: Callable[[], int]) -> bool:
        """Whether a settle message may be sent now, for a worker with this many slots."""
        outcomes, messages = len(self.unsent), len(self.batches)
        return outcomes > 0 and (
            messages < EAGER_MESSAGES or (messages < MAX_MESSAGES and outcomes * SLOT_FRACTION >= slots())
        )

    def next_batch(self, max_outcomes: int, max_bytes: int) -> List[v1.Outcome]:
        """Takes the outcomes of the next message: at least one, each job once, within the broker's message size."""
        outcomes: List[v1.Outcome] = []
        ids: Set[int] = set()
        size = 0
        self.number += 1
        while self.unsent and len(outcomes) < max_outcomes:
            held = self.unsent[0]
            if self.held.get(held.key) is held and held.outcome is not None:
                cost = held.outcome.ByteSize() + 64
                if cost > max_bytes:
                    text = f"the result takes {cost} bytes; the broker accepts at most {max_bytes}"
                    held.outcome, cost = v1.Nack(error=text), 256
                if held.key[0] in ids or (outcomes and size + cost > max_bytes):
                    break
                ids.add(held.key[0])
                size += cost
                held.batch = self.number
                outcomes.append(outcome_message(held.key, held.outcome))
            self.unsent.popleft()
        if outcomes:
            self.batches[self.number] = [len(outcomes), time.monotonic()]
        return outcomes

    def settled(self, results: Iterable[v1.SettleResult]) -> bool:
        """Handles the broker's answers to outcomes. Returns false if some outcomes must be sent again later."""
        for result in results:
            held = self.held.get((result.id, result.token))
            if held is None or held.outcome is None or not (held.batch or held.unary):
                continue
            if held.batch:
                batch = self.batches[held.batch]
                batch[0] -= 1
                if not batch[0]:
                    del self.batches[held.batch]
            held.batch, held.unary = 0, False
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

    def _count(self, held: HeldLease, result: v1.SettleResult) -> None:
        stored = result.status == v1.SETTLE_STATUS_OK
        names = {v1.Ack: "acked", v1.Nack: "failed", v1.Snooze: "snoozed", v1.Release: "released"}
        if not stored:
            log.warning("job %d: the lease was lost before the outcome arrived", held.key[0])
        name = names[type(held.outcome)] if stored else "lost"
        setattr(self.report, name, getattr(self.report, name) + 1)
        if result.status == v1.SETTLE_STATUS_INVALID:
            self._notify(held, HowdahError(result.message, grpc.StatusCode.INVALID_ARGUMENT, reason="INVALID"))
        else:
            self._notify(held, None if stored else LeaseLost(held.key[0]))

    def _notify(self, held: HeldLease, error: Optional[HowdahError]) -> None:
        if held.job is not None and held.outcome is not None and self.broker is not None:
            held.job._processing.settled(held.outcome, self.broker, error)

    def unconfirmed(self) -> List[HeldLease]:
        return [held for held in self.held.values() if held.outcome is not None]

    def give_up(self) -> None:
        """Fails the outcomes that are still unconfirmed when the worker ends."""
        for held in self.unconfirmed():
            text = f"the worker ended before the broker confirmed the outcome of job {held.key[0]}"
            self._notify(held, HowdahError(text, grpc.StatusCode.CANCELLED, reason="UNCONFIRMED"))

    def resend(self) -> None:
        self.unsent.extend(self.later)
        self.later.clear()

    def cancel(self, key: Key, reason: str) -> None:
        """Handles the end of a lease. Does nothing if the handler has ended: the broker also answers its outcome."""
        held = self.held.get(key)
        if held is None or held.over or held.outcome is not None:
            return
        name = "lost" if reason == "lease_lost" else "cancelled"
        setattr(self.report, name, getattr(self.report, name) + 1)
        held.over = True
        if held.task is None:
            # The job was waiting for a slot, so no handler must end first.
            del self.held[key]
        held.cancel(reason)

    def leases(self) -> List[v1.Lease]:
        """Returns the leases for a Subscribe, one per job. If a job has two, takes the one whose handler runs."""
        tokens: Dict[int, int] = {}
        for (job_id, token), held in self.held.items():
            if not held.over and (held.outcome is None or job_id not in tokens):
                tokens[job_id] = token
        return [v1.Lease(id=job_id, token=token) for job_id, token in list(tokens.items())[:100_000]]

    def resume(self, kept: Iterable[v1.Lease]) -> None:
        """Handles the resume of the session on a new stream, where the broker has kept these leases.

        Unconfirmed outcomes are always resent: if the broker has already stored one, it answers OK again.
        """
        mine = {(lease.id, lease.token) for lease in kept}
        self.later.clear()
        self.batches.clear()
        self.unsent.clear()
        ended = [held for held in self.unconfirmed() if not held.unary]
        is_large = sum(held.outcome.ByteSize() for held in ended if held.outcome and held.batch) > RESEND_LIMIT
        for held in ended:
            held.unary = is_large and held.batch > 0
            held.batch = 0
            (self.unary if held.unary else self.unsent).append(held)
        for key, held in list(self.held.items()):
            if held.outcome is None and key not in mine:
                self.cancel(key, "lease_lost")


def outcome_message(key: Key, outcome: OutcomeMessage) -> v1.Outcome:
    message = v1.Outcome(id=key[0], token=key[1])
    getattr(message, type(outcome).DESCRIPTOR.name.lower()).CopyFrom(outcome)
    return message

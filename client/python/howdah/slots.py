"""The slots of a worker: how many jobs run at once, in total and of each task type. Windows follow from free slots."""

from __future__ import annotations

import itertools
import math
from collections import deque
from typing import TYPE_CHECKING, Deque, Dict, List, Optional

from .handler import Handler

if TYPE_CHECKING:
    from .ledger import HeldLease

# Seconds that a job waits for a slot of the total. Then the job goes to another worker, because its timeout counts from
# the delivery.
LONGEST_WAIT = 1.0
# Seconds without a job that waited too long, after which each type may fill all slots again.
EXACT_TIME = 30.0


class Slot:
    """The handler of a task type, its concurrency, the number of running jobs, and the jobs that wait for a slot."""

    def __init__(self, handler: Handler, window: int) -> None:
        self.handler, self.limit, self.window, self.running = handler, handler.concurrency, window, 0
        self.queue: Deque[HeldLease] = deque()
        #: The window that the broker knows, and the position of the last start among all starts of the worker.
        self.announced, self.last_start = 0, 0

    def waits_for_total(self) -> bool:
        """Whether a job of this type would start if the worker had another slot."""
        while self.queue and self.queue[0].over:
            self.queue.popleft()
        return bool(self.queue) and self.running < self.limit


class Slots:
    """The slots of all task types, which share a total.

    Windows are per task type, so that the broker may deliver more jobs than there are free slots. Such jobs wait. Most
    handlers are short, and the next jobs are then at hand. If a job waits for `LONGEST_WAIT`, it is handed back. From
    then on the windows are exact: they have only the jobs that the worker holds and the free slots.
    """

    def __init__(self, types: Dict[str, Slot], total: int) -> None:
        self.types, self.total, self.running = types, total, 0
        self.is_exact, self._handed_back, self._starts = False, -math.inf, itertools.count(1)

    def limit(self) -> int:
        """Returns the maximum number of concurrent handlers, over all task types."""
        return min(self.total, sum(slot.limit for slot in self.types.values()))

    def next(self) -> Optional[HeldLease]:
        """Takes the job that has waited longest. Returns None if no job may start."""
        waiting = self._waiting() if self.running < self.total else []
        if not waiting:
            return None
        slot = min(waiting, key=lambda slot: slot.queue[0].arrived)
        self.running, slot.running, slot.last_start = self.running + 1, slot.running + 1, next(self._starts)
        return slot.queue.popleft()

    def ended(self, slot: Slot, now: float) -> bool:
        """Frees the slot of a handler. Returns true if the windows are no longer exact."""
        self.running, slot.running = self.running - 1, slot.running - 1
        was_exact, self.is_exact = self.is_exact, self.is_exact and now - self._handed_back < EXACT_TIME
        return was_exact and not self.is_exact

    def next_hand_back(self) -> Optional[float]:
        """Returns the time at which the next job must be handed back, unless it starts before. None: no job waits."""
        return min((slot.queue[0].arrived + LONGEST_WAIT for slot in self._waiting()), default=None)

    def hand_back(self, now: float) -> List[HeldLease]:
        """Takes the jobs that have waited too long for the total."""
        jobs: List[HeldLease] = []
        for slot in self._waiting():
            while slot.queue and slot.queue[0].arrived + LONGEST_WAIT <= now:
                jobs.append(slot.queue.popleft())
        if jobs:
            self.is_exact, self._handed_back = True, now
        return jobs

    def window(self, name: str) -> int:
        slot = self.types[name]
        return self._window(slot, self._free()) if self.is_exact else slot.window

    def resized(self) -> List[str]:
        """Returns the types whose windows the broker does not know, the type first that has not started for longest.

        The broker serves the first window first, so that the types take turns.
        """
        names = [name for name in self.types if self.window(name) != self.types[name].announced]
        return sorted(names, key=lambda name: self.types[name].last_start)

    def _waiting(self) -> List[Slot]:
        return [slot for slot in self.types.values() if slot.waits_for_total()]

    def _free(self) -> int:
        return max(0, self.total - self.running - sum(len(slot.queue) for slot in self.types.values()))

    def _window(self, slot: Slot, free: int) -> int:
        return min(slot.window, slot.running + len(slot.queue) + min(free, max(0, slot.limit - slot.running)))

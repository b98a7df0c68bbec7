"""Sends outcomes in unary calls, after a stream broke with many unanswered bytes.

To a proxy a stream is one request, and some proxies limit the bytes of a request. A new stream with the same outcomes
may break at the same byte again. So these outcomes are sent with SettleJobs, a few at a time. A unary call that is too
large fails with HTTP 413, whereas a stream is only cut off.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, List, Optional, Set, cast

from . import v1
from .connection import SMALL_CALL, Backoff, log
from .errors import REQUEST_TOO_LARGE, HowdahError
from .ledger import HeldLease, outcome_message

if TYPE_CHECKING:
    from .session import Session


class UnarySettler:
    """The SettleJobs calls of a session, one at a time."""

    def __init__(self, session: Session) -> None:
        self._session, self._ledger, self._max_bytes = session, session.ledger, SMALL_CALL
        self._task: Optional[asyncio.Future[None]] = None

    def start(self) -> None:
        """Starts a task that makes calls until all of these outcomes are settled."""
        if self._ledger.unary and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._run())

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        stub, backoff = v1.WorkerServiceStub(cast(Any, self._session.connection)), Backoff()
        while self._ledger.unary:
            sent = self._next()
            outcomes = [outcome_message(held.key, held.outcome) for held in sent if held.outcome is not None]
            try:
                answer = await cast(Any, stub.SettleJobs)(v1.SettleJobsRequest(outcomes=outcomes))
            except HowdahError as error:
                if not self._failed(sent, error):
                    await asyncio.sleep(backoff.next())
            else:
                backoff = Backoff()
                if self._ledger.settled(answer.results):
                    self._session.confirmed()
                else:
                    self._session.resend_later()
                self._move_to_stream(sent)
            self._session.wake.set()

    def _next(self) -> List[HeldLease]:
        """Takes the outcomes of the next call: at least one, and each job once."""
        batch: List[HeldLease] = []
        ids: Set[int] = set()
        size = 0
        while self._ledger.unary:
            held = self._ledger.unary[0]
            size += held.outcome.ByteSize() if held.outcome is not None else 0
            if batch and (size > self._max_bytes or held.key[0] in ids):
                break
            ids.add(held.key[0])
            batch.append(self._ledger.unary.popleft())
        return batch

    def _failed(self, sent: List[HeldLease], error: HowdahError) -> bool:
        """Handles a failed call. Returns false if the next call must wait for the backoff."""
        if error.reason == REQUEST_TOO_LARGE and len(sent) == 1:
            held = sent[0]
            log.error("job %d: the outcome is too large for a proxy, so the job fails: %s", held.key[0], error)
            size = held.outcome.ByteSize() if held.outcome is not None else 0
            text = f"the outcome takes {size} bytes and does not reach the broker: {error}"
            held.outcome = v1.Nack(error=text, no_retry=True)
        elif error.reason == REQUEST_TOO_LARGE or error._retried:
            if not error._retried:
                self._max_bytes //= 2
            self._ledger.unary.extendleft(reversed(sent))
            return not error._retried
        else:
            # The broker refused the SettleJobs call, but it may still accept the outcomes on a stream.
            log.warning("a call with outcomes was refused; sending the outcomes on the stream: %s", error)
        self._move_to_stream(sent)
        return True

    def _move_to_stream(self, sent: List[HeldLease]) -> None:
        """Queues these outcomes for the stream instead, unless the call has settled them."""
        for held in sent:
            if held.unary:
                held.unary = False
                self._ledger.unsent.append(held)

"""Requests of a pipeline: jobs that are sent together, and how a refused request is split."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import Future
from typing import Deque, List, Optional, Sequence, Tuple, TypedDict, Union

import grpc

from . import v1
from .client import Enqueued
from .connection import new_request_key
from .errors import HowdahError

AnyFuture = Union["asyncio.Future[Enqueued]", "Future[Enqueued]"]
# These concern the caller: no part of a request would be accepted.
_FOR_ALL = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED)


class ProducerOptions(TypedDict, total=False):
    """Limits of a producer."""

    max_in_flight: int  #: requests that are sent and not answered; default 4
    max_batch_jobs: int  #: jobs of a request; default 1,000
    max_batch_bytes: int  #: bytes of a request with several jobs; default 4 MiB
    max_gathered_bytes: int  #: bytes gathered and in flight, before submitting waits; default 64 MiB


def cost(job: v1.NewJob) -> int:
    """The bytes of a job, about, on the wire and in memory."""
    return job.ByteSize() + 256


class Batch:
    """A request. It is repeated unchanged, under its key, until it is answered."""

    def __init__(self, jobs: Sequence[v1.NewJob], futures: Sequence[AnyFuture]) -> None:
        self.jobs, self.futures, self.key, self.sent = jobs, futures, new_request_key(), 0.0

    def is_over(self) -> bool:
        """Whether nobody waits for it any more."""
        return all(future.done() for future in self.futures)

    def resolve(self, answers: Sequence[Enqueued]) -> None:
        for future, answer in zip(self.futures, answers):
            if not future.done():
                future.set_result(answer)

    def fail(self, error: BaseException) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(error)

    def split(self, error: HowdahError) -> List[Batch]:
        """The broker refused it, so nothing is stored: fails the job at fault, and returns the rest as new requests."""
        blamed = re.match(r"jobs\[(\d+)\](.*)", error.field)
        if blamed and int(blamed[1]) < len(self.jobs):
            index = int(blamed[1])
            old, new = f"jobs[{index}]", "jobs[0]"
            own = HowdahError(error.message.replace(old, new), error.code, reason=error.reason, field=new + blamed[2])
            own.retry_after = error.retry_after
            Batch([], [self.futures[index]]).fail(own)
            rest = [*self.jobs[:index], *self.jobs[index + 1 :]]
            return [Batch(rest, [*self.futures[:index], *self.futures[index + 1 :]])] if rest else []
        if len(self.jobs) > 1 and error.code not in _FOR_ALL:
            half = len(self.jobs) // 2
            return [Batch(self.jobs[:half], self.futures[:half]), Batch(self.jobs[half:], self.futures[half:])]
        self.fail(error)
        return []


def gather(gathered: Deque[Tuple[v1.NewJob, AnyFuture]], max_jobs: int, max_bytes: int) -> Optional[Batch]:
    """The next request: what fits into one, in order; at least one job."""
    jobs: List[v1.NewJob] = []
    futures: List[AnyFuture] = []
    size = 0
    while gathered and len(jobs) < max_jobs:
        job, future = gathered[0]
        size += cost(job)
        if jobs and size > max_bytes:
            break
        gathered.popleft()
        # Who asked may have given up.
        if not future.done():
            jobs.append(job)
            futures.append(future)
    return Batch(jobs, futures) if jobs else None

"""Requests of a producer: jobs that are sent together, and the splitting of refused requests."""

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
# Codes of errors that concern the caller or the whole call, not one job. Every part of a split request would fail with
# them too.
_FOR_ALL = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED)


class ProducerOptions(TypedDict, total=False):
    """Limits of a producer."""

    max_in_flight: int  #: maximum number of unanswered requests; default 4
    max_batch_jobs: int  #: maximum number of jobs per request; default 1,000
    max_batch_bytes: int  #: maximum bytes of a request with several jobs; default 4 MiB
    max_queued_bytes: int  #: maximum bytes queued and in flight; beyond it, submitting waits; default 64 MiB


def cost(job: v1.NewJob) -> int:
    """Approximate size of a job on the wire and in memory, in bytes."""
    return job.ByteSize() + 256


class Batch:
    """One request. It is repeated unchanged, with its request key, until it is answered."""

    def __init__(self, jobs: Sequence[v1.NewJob], futures: Sequence[AnyFuture]) -> None:
        self.jobs, self.futures, self.key, self.sent = jobs, futures, new_request_key(), 0.0

    def cost(self) -> int:
        return sum(cost(job) for job in self.jobs)

    def is_abandoned(self) -> bool:
        """Whether no caller waits for a result of this request."""
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
        """Splits a refused request, of which the broker stored nothing.

        Fails the job that caused the error, and returns the rest as new requests.
        """
        blamed = re.match(r"jobs\[(\d+)\](.*)", error.field)
        if blamed and int(blamed[1]) < len(self.jobs):
            index = int(blamed[1])
            old, new = f"jobs[{index}]", "jobs[0]"
            job_error = HowdahError(
                error.message.replace(old, new), error.code, reason=error.reason, field=new + blamed[2]
            )
            job_error.retry_after = error.retry_after
            Batch([], [self.futures[index]]).fail(job_error)
            rest = [*self.jobs[:index], *self.jobs[index + 1 :]]
            return [Batch(rest, [*self.futures[:index], *self.futures[index + 1 :]])] if rest else []
        if len(self.jobs) > 1 and error.code not in _FOR_ALL:
            half = len(self.jobs) // 2
            return [Batch(self.jobs[:half], self.futures[:half]), Batch(self.jobs[half:], self.futures[half:])]
        self.fail(error)
        return []


def take_batch(queue: Deque[Tuple[v1.NewJob, AnyFuture]], max_jobs: int, max_bytes: int) -> Optional[Batch]:
    """Takes as many queued jobs as fit into one request, in order; at least one job."""
    jobs: List[v1.NewJob] = []
    futures: List[AnyFuture] = []
    size = 0
    while queue and len(jobs) < max_jobs:
        job, future = queue[0]
        size += cost(job)
        if jobs and size > max_bytes:
            break
        queue.popleft()
        # Skips jobs whose callers no longer wait, because they timed out or cancelled the future.
        if not future.done():
            jobs.append(job)
            futures.append(future)
    return Batch(jobs, futures) if jobs else None

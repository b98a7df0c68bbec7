"""The clients: `AsyncClient` for asyncio, and `Client` for everything else."""

from __future__ import annotations

import asyncio
import copy
import time
from contextlib import ExitStack, contextmanager
from typing import (
    TYPE_CHECKING,
    Any,
    AsyncIterator,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Sequence,
    Tuple,
    TypeVar,
    cast,
)

import grpc

from . import v1
from .broker import Addresses, ClientOptions
from .connection import LONGEST_WAIT_CALL, WAIT_SLACK, Backoff, Connection
from .errors import HowdahError, deadline
from .messages import Seconds, duration, encode, fill, seconds
from .operations import AsyncOperations
from .options import JobOptions
from .telemetry import Sending, is_on, sending

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .batch import ProducerOptions
    from .producer import AsyncProducer

T = TypeVar("T")


class Enqueued(NamedTuple):
    """Result of enqueueing one job."""

    id: int
    is_new: bool
    outcome: str  #: ``new``, ``repeated``, ``kept``, ``replaced``, ``stale``, ``next`` or ``debounced``


def new_job(task_type: str, payload: object = None, **options: Unpack[JobOptions]) -> v1.NewJob:
    """Creates a job for `AsyncClient.enqueue_many`. `howdah.encode` encodes the payload, by default as JSON."""
    return fill(v1.NewJob(payload=encode(payload)), {"task_type": task_type, **options})


def enqueued(answers: Sequence[v1.EnqueuedJob], jobs: Sequence[v1.NewJob], generated_key: bool) -> List[Enqueued]:
    """Converts the broker's answers to an enqueue.

    A job that an earlier attempt of the same call has stored is reported as new.
    """
    if len(answers) != len(jobs):
        text = f"the broker answered for {len(answers)} jobs instead of {len(jobs)}"
        raise HowdahError(text, grpc.StatusCode.INTERNAL, reason="WRONG_COUNT")
    found = []
    for answer, job in zip(answers, jobs):
        is_new = answer.is_new or (generated_key and not job.key)
        word = v1.EnqueueOutcome.Name(answer.outcome)[len("ENQUEUE_OUTCOME_") :].lower()
        found.append(Enqueued(answer.id, is_new, "new" if is_new and not answer.is_new else word))
    return found


@contextmanager
def around(
    jobs: Iterable[v1.NewJob], connection: Connection, request_key: str = ""
) -> Iterator[Tuple[List[v1.NewJob], Sending]]:
    """Enters the caller's middleware around an enqueue, and starts its OpenTelemetry span.

    Yields copies of the jobs if middleware or OpenTelemetry may change them, so that the caller's jobs stay unchanged.
    """
    with ExitStack() as stack:
        copies, around_each = list(jobs), connection.options.get("middleware", ())
        if around_each or is_on():
            copies = [v1.NewJob.FromString(job.SerializeToString()) for job in copies]
        for job in copies:
            for middleware in around_each:
                stack.enter_context(middleware(job))
        send = sending(copies, connection, request_key)
        try:
            yield copies, send
        except BaseException as error:
            send.end(error=error)
            raise


def _wait_times(remaining: float, untried: int) -> Tuple[float, float]:
    """Returns the wait time to request in the next call, and the timeout of that call, in seconds.

    The remaining time is divided among the brokers that were not tried yet.
    """
    share = remaining / untried
    if untried == 1:
        wait_time = min(share, LONGEST_WAIT_CALL)
        return wait_time, wait_time + WAIT_SLACK
    return min(share * 3 / 4, LONGEST_WAIT_CALL), max(WAIT_SLACK / 2, min(share, LONGEST_WAIT_CALL + WAIT_SLACK))


class AsyncClient(AsyncOperations):
    """A client for asyncio. It connects at the first use, to the first broker that answers.

    Without addresses, ``HOWDAH_SERVER`` is used, or else ``http://127.0.0.1:7432``.

    `jobs`, `task_types`, `schedules`, `settings`, `access`, `bulks`, `workers` and `stores` are the generated stubs.
    They have every call of the protocol. The calls use this client's credential and deadline, are retried if that is
    safe, and raise `HowdahError`.
    """

    def __init__(self, addresses: Addresses = None, **options: Unpack[ClientOptions]) -> None:
        self._use(Connection(addresses, options))

    def _use(self, connection: Connection) -> None:
        self.connection = connection
        channel = cast(Any, connection)
        self.jobs = cast("v1.JobServiceAsyncStub", v1.JobServiceStub(channel))
        self.task_types = cast("v1.TaskTypeServiceAsyncStub", v1.TaskTypeServiceStub(channel))
        self.schedules = cast("v1.ScheduleServiceAsyncStub", v1.ScheduleServiceStub(channel))
        self.settings = cast("v1.SettingsServiceAsyncStub", v1.SettingsServiceStub(channel))
        self.access = cast("v1.AccessServiceAsyncStub", v1.AccessServiceStub(channel))
        self.bulks = cast("v1.BulkServiceAsyncStub", v1.BulkServiceStub(channel))
        self.workers = cast("v1.WorkerServiceAsyncStub", v1.WorkerServiceStub(channel))
        self.stores = cast("v1.StoreServiceAsyncStub", v1.StoreServiceStub(channel))

    def in_store(self, name: str) -> Self:
        """Returns a client for one store of a broker that serves several.

        Its calls concern that store alone, its jobs go there, and its workers get jobs of that store only. (A worker of
        the original client gets jobs of all stores.) Both clients share their connections, so close only one of them.
        """
        other = copy.copy(self)
        other._use(self.connection.in_store(name))
        return other

    async def enqueue(
        self, task_type: str, payload: object = None, *, request_key: str = "", **options: Unpack[JobOptions]
    ) -> Enqueued:
        """Enqueues a job. When this returns, the job is committed. Retries never store it twice.

        The ``request_key`` has the same effect as in `enqueue_many`.
        """
        return (await self.enqueue_many([new_job(task_type, payload, **options)], request_key=request_key))[0]

    async def enqueue_many(self, jobs: Iterable[v1.NewJob], *, request_key: str = "") -> List[Enqueued]:
        """Enqueues up to 10,000 jobs in one transaction: all of them or none.

        The caller's request key makes the call idempotent for 24 hours, from any process: it returns the same ids.
        """
        with around(jobs, self.connection, request_key) as (copies, send), send.current():
            return await self._send(copies, request_key, send)

    async def _send(self, jobs: Sequence[v1.NewJob], request_key: str, send: Sending) -> List[Enqueued]:
        if not jobs:
            return []
        request = fill(v1.EnqueueJobsRequest(jobs=jobs), {"request_key": request_key})
        answer = await cast(Any, self.jobs.EnqueueJobs)(request, used=send.used)
        found = enqueued(answer.jobs, jobs, not request_key)
        send.end(found)
        return found

    async def wait(self, ids: Iterable[int], timeout: Seconds = 60) -> AsyncIterator[v1.Job]:
        """Yields each job once, when it has ended, with its state and result.

        Raises DEADLINE_EXCEEDED after the timeout.
        """
        left, limit = dict.fromkeys(ids), seconds(timeout, "timeout")
        until, backoff = time.monotonic() + limit, Backoff()
        count, attempts, broker_works = len(self.connection.brokers), 0, False
        while left:
            began = time.monotonic()
            wait_time, call_timeout = _wait_times(
                max(0.0, until - began), 1 if broker_works else count - attempts % count
            )
            request = v1.WaitJobsRequest(ids=left, timeout=duration(wait_time))
            try:
                answers = cast("AsyncIterator[v1.WaitJobsResponse]", self.jobs.WaitJobs(request, timeout=call_timeout))
                async for answer in answers:
                    backoff = Backoff()
                    if left.pop(answer.job.id, 0) is None:
                        yield answer.job
                return
            except HowdahError as error:
                # Only a broker sends this reason: the wait time of the call has passed. So the broker works, and the
                # next call goes to it. After other temporary errors, the next call goes to the next broker.
                broker_works = error.reason == "DEADLINE_EXCEEDED"
                attempts += not broker_works
                remaining = until - time.monotonic()
                if not error._retried or (broker_works and remaining <= 0):
                    raise
                if remaining <= 0 and attempts >= count:
                    raise deadline("wait", limit) from None
                if broker_works and time.monotonic() - began > wait_time - WAIT_SLACK:
                    backoff = Backoff()
                    continue
            await asyncio.sleep(max(0.0, min(backoff.next(), remaining)))

    def producer(self, **options: Unpack[ProducerOptions]) -> AsyncProducer:
        """Returns a producer for many jobs, on a separate connection: ``async with client.producer() as producer``."""
        from .producer import AsyncProducer

        return AsyncProducer(self, **options)

    async def connect(self) -> None:
        """Connects now. Fails if no broker answers, or if the brokers serve different databases."""
        await self.connection.connect()

    async def close(self) -> None:
        await self.connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

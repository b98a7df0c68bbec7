"""The clients: `AsyncClient` for asyncio, and `Client` for everything else."""

from __future__ import annotations

import asyncio
import copy
import time
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Any,
    AsyncIterator,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Sequence,
    Tuple,
    TypedDict,
    TypeVar,
    cast,
)

import grpc

from . import v1
from .broker import Addresses, ClientOptions
from .connection import Connection
from .errors import HowdahError
from .messages import Seconds, duration, encode, fill
from .telemetry import Sending, is_on, sending

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .batch import ProducerOptions
    from .producer import AsyncProducer

T = TypeVar("T")


class RetryPolicy(TypedDict, total=False):
    """The delay between a failed attempt and the next one. What is missing is the task type's setting."""

    kind: str  #: ``exponential``, ``linear``, ``fixed`` or ``list``
    initial_delay: Seconds
    multiplier: float
    max_delay: Seconds
    jitter: float  #: the random part, 0 to 1
    delays: Sequence[Seconds]  #: for ``list``: the delay after each failure; the last one repeats


class JobOptions(TypedDict, total=False):
    """Options of a job, by the names of the protocol. Durations are seconds or `timedelta`; times are `datetime`."""

    headers: Mapping[str, str]  #: for the handler, unchanged
    tags: Sequence[str]  #: the job is found by them later: at most 16, each 1 to 64 bytes
    priority: int  #: -1000 to 1000; lower runs first
    delay: Seconds  #: the earliest start, from now
    run_at: datetime  #: the earliest start
    max_attempts: int
    retry_policy: RetryPolicy
    timeout: Seconds  #: the longest time of an attempt, unless the handler extends it
    key: str  #: at most one unfinished job of the type has it
    key_policy: str  #: ``keep``, ``replace``, ``replace_if_newer``, ``reject`` or ``debounce``
    key_version: int
    key_hold: Seconds
    key_debounce_limit: Seconds
    on_holder_failure: str  #: ``supersede`` or ``retry``
    expire_at: datetime
    expire_after: Seconds
    limit_key: str  #: what the task type's limits per key count by
    fair_key: str  #: waiting jobs are shared evenly between fairness keys
    next_stages: Sequence[str]
    stage_payload: str  #: ``result`` or ``unchanged``
    after: Sequence[int]  #: ids of jobs that must succeed first
    local_name: str  #: a name within the request, for ``after_local``
    after_local: Sequence[str]
    on_dependency_failure: str  #: ``cancel``, ``run`` or ``wait``
    parent_id: int
    fallback: str  #: the task type to go on as when the attempts are used up
    traceparent: str
    tracestate: str


class Enqueued(NamedTuple):
    """What an enqueue did with a job."""

    id: int
    is_new: bool
    outcome: str  #: ``new``, ``repeated``, ``kept``, ``replaced``, ``stale``, ``next`` or ``debounced``


def new_job(task_type: str, payload: object = None, **options: Unpack[JobOptions]) -> v1.NewJob:
    """A job for `AsyncClient.enqueue_many`. The payload is sent as `howdah.encode` makes it: by default as JSON."""
    return fill(v1.NewJob(task_type=task_type, payload=encode(payload)), options)


def enqueued(answers: Sequence[v1.EnqueuedJob], jobs: Sequence[v1.NewJob], own_key: bool) -> List[Enqueued]:
    """The broker's answers. A job that an earlier try of the same call has stored is new to the caller."""
    if len(answers) != len(jobs):
        text = f"the broker answered for {len(answers)} jobs instead of {len(jobs)}"
        raise HowdahError(text, grpc.StatusCode.INTERNAL, reason="WRONG_COUNT")
    found = []
    for answer, job in zip(answers, jobs):
        is_new = answer.is_new or (own_key and not job.key)
        word = v1.EnqueueOutcome.Name(answer.outcome)[len("ENQUEUE_OUTCOME_") :].lower()
        found.append(Enqueued(answer.id, is_new, "new" if is_new and not answer.is_new else word))
    return found


@contextmanager
def around(
    jobs: Iterable[v1.NewJob], connection: Connection, request_key: str = ""
) -> Iterator[Tuple[List[v1.NewJob], Sending]]:
    """The caller's middleware around an enqueue, and what OpenTelemetry is told of it.

    The jobs that are sent are copies, if these change them.
    """
    with ExitStack() as stack:
        own, around_each = list(jobs), connection.options.get("middleware", ())
        if around_each or is_on():
            own = [v1.NewJob.FromString(job.SerializeToString()) for job in own]
        for job in own:
            for middleware in around_each:
                stack.enter_context(middleware(job))
        send = sending(own, connection, request_key)
        try:
            yield own, send
        except BaseException as error:
            send.end(error=error)
            raise


class AsyncClient:
    """A client for asyncio. It connects at the first use, to the first broker that answers.

    Without addresses, ``HOWDAH_SERVER`` is used, or a broker on this machine. `jobs`, `task_types`, `schedules`,
    `settings`, `access`, `bulks`, `workers` and `stores` are the generated stubs with every call of the protocol; what
    they send has this client's credential and deadline, is retried where that is safe, and fails with `HowdahError`.
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
        """The same client for one store of a broker that serves several: its calls are about that store alone, and its
        jobs go there. It shares the connections of this one, so only one of them is closed. Workers get jobs from all
        stores, whatever this is.
        """
        other = copy.copy(self)
        other._use(self.connection.in_store(name))
        return other

    async def enqueue(self, task_type: str, payload: object = None, **options: Unpack[JobOptions]) -> Enqueued:
        """Enqueues a job. When this returns, it is committed; whatever breaks meanwhile, it is not stored twice."""
        return (await self.enqueue_many([new_job(task_type, payload, **options)]))[0]

    async def enqueue_many(self, jobs: Iterable[v1.NewJob], *, request_key: str = "") -> List[Enqueued]:
        """Enqueues up to 10,000 jobs in one transaction: all of them or none.

        With a request key of your own, the call may be repeated for 24 hours from anywhere: it returns the same ids.
        """
        with around(jobs, self.connection, request_key) as (own, send), send.current():
            return await self._send(own, request_key, send)

    async def _send(self, jobs: Sequence[v1.NewJob], request_key: str, send: Sending) -> List[Enqueued]:
        if not jobs:
            return []
        request = v1.EnqueueJobsRequest(jobs=jobs, request_key=request_key)
        answer = await cast(Any, self.jobs.EnqueueJobs)(request, used=send.used)
        found = enqueued(answer.jobs, jobs, not request_key)
        send.end(found)
        return found

    async def wait(self, ids: Iterable[int], timeout: Seconds = 60) -> AsyncIterator[v1.Job]:
        """Each of the jobs, once, when it has ended: with its state and result. DEADLINE_EXCEEDED after the timeout."""
        left, until = dict.fromkeys(ids), time.monotonic() + duration(timeout).ToTimedelta().total_seconds()
        tries = len(self.connection.brokers) + 1
        while left:
            request = v1.WaitJobsRequest(ids=left, timeout=duration(max(0.0, until - time.monotonic())))
            try:
                # The broker ends it in time; but a broker that is gone does not.
                late = until - time.monotonic() + self.connection.request_timeout
                answers = cast("AsyncIterator[v1.WaitJobsResponse]", self.jobs.WaitJobs(request, timeout=late))
                async for answer in answers:
                    tries = len(self.connection.brokers) + 1
                    if left.pop(answer.job.id, 0) is None:
                        yield answer.job
                return
            except HowdahError as error:
                tries -= 1
                if not error._passing or error.reason == "DEADLINE_EXCEEDED" or tries <= 0:
                    raise
                await asyncio.sleep(0.1)

    def producer(self, **options: Unpack[ProducerOptions]) -> AsyncProducer:
        """A pipeline for many jobs, on a connection of its own: ``async with client.producer() as producer``."""
        from .producer import AsyncProducer

        return AsyncProducer(self, **options)

    async def connect(self) -> None:
        """Connects now, to learn before the first use that no broker answers, or of brokers with several databases."""
        await self.connection.connect()

    async def close(self) -> None:
        await self.connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

"""Blocking versions of the asyncio client. A background thread runs the event loop."""

from __future__ import annotations

import asyncio
import copy
import os
import threading
from concurrent.futures import Future
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Any,
    AsyncIterator,
    Callable,
    Coroutine,
    Dict,
    Iterable,
    Iterator,
    List,
    Optional,
    TypeVar,
    cast,
)

from . import v1
from .batch import ProducerOptions, cost
from .broker import Addresses, ClientOptions
from .client import AsyncClient, Enqueued, around, new_job
from .messages import Seconds
from .operations import JobFilter, JobQuery, Retried, ScheduleOptions, TaskTypeOptions
from .options import JobOptions
from .producer import AsyncProducer

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

T = TypeVar("T")
_loops: Dict[int, asyncio.AbstractEventLoop] = {}
_starting = threading.Lock()


def background_loop() -> asyncio.AbstractEventLoop:
    """Returns the background event loop of this process. A forked process gets a new one."""
    with _starting:
        loop = _loops.get(os.getpid())
        if loop is None:
            _loops.clear()
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="howdah", daemon=True).start()
        return loop


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on the background loop, and blocks until it ends."""
    loop = background_loop()
    if asyncio._get_running_loop() is loop:
        work.close()
        raise RuntimeError("a blocking call in an async handler would wait for itself: use AsyncClient")
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    finally:
        future.cancel()


def iterate(items: AsyncIterator[T]) -> Iterator[T]:
    async def following() -> T:
        return await items.__anext__()

    try:
        while True:
            yield run(following())
    except StopAsyncIteration:
        return
    finally:
        run(cast(Any, items).aclose())


class _Channel:
    """A channel for the generated stubs, with blocking calls."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def unary_unary(self, *method: Any, **options: Any) -> Any:
        def call(request: Any, timeout: Optional[float] = None, **_: Any) -> Any:
            return run(self.client._inner.connection.unary_unary(*method, **options)(request, timeout))

        return call

    def unary_stream(self, *method: Any, **options: Any) -> Any:
        def call(request: Any, timeout: Optional[float] = None, **_: Any) -> Any:
            return iterate(self.client._inner.connection.unary_stream(*method, **options)(request, timeout))

        return call

    def stream_stream(self, path: str, *_: Any, **__: Any) -> Any:
        def call(*_: Any, **__: Any) -> Any:
            raise NotImplementedError(f"{path} cannot be called directly: use Client.producer or Worker")

        return call


class Operations:
    """The part of `Client` that manages jobs, schedules and task types, like `AsyncOperations`."""

    @property
    def _inner(self) -> AsyncClient:
        raise NotImplementedError

    def get(self, job_id: int) -> v1.Job:
        """Returns a job with payload, result and failures."""
        return run(self._inner.get(job_id))

    def explain(self, job_id: int) -> v1.ExplainJobResponse:
        """Explains why a job does not run, and what must change first."""
        return run(self._inner.explain(job_id))

    def search(self, task_type: str, **query: Unpack[JobQuery]) -> Iterator[v1.Job]:
        """Finds jobs of a task type, like `AsyncClient.search`."""
        return iterate(self._inner.search(task_type, **query))

    def cancel(self, *ids: int, **jobs: Unpack[JobFilter]) -> List[int]:
        """Cancels unfinished jobs, by id or by a filter. Returns the ids of the cancelled jobs."""
        return run(self._inner.cancel(*ids, **jobs))

    def discard(self, *ids: int, **jobs: Unpack[JobFilter]) -> List[int]:
        """Moves dead jobs to history, by id or by a filter. Returns the ids of the discarded jobs."""
        return run(self._inner.discard(*ids, **jobs))

    def retry(
        self,
        *ids: int,
        delay: Optional[Seconds] = None,
        run_at: Optional[datetime] = None,
        payload: object = None,
        **jobs: Unpack[JobFilter],
    ) -> Retried:
        """Makes dead and scheduled jobs run now or later, like `AsyncClient.retry`."""
        return run(self._inner.retry(*ids, delay=delay, run_at=run_at, payload=payload, **jobs))

    def rerun(
        self,
        *ids: int,
        delay: Optional[Seconds] = None,
        run_at: Optional[datetime] = None,
        payload: object = None,
    ) -> List[v1.RerunJob]:
        """Runs finished jobs again, as new jobs, like `AsyncClient.rerun`."""
        return run(self._inner.rerun(*ids, delay=delay, run_at=run_at, payload=payload))

    def apply_schedule(self, name: str, template: v1.NewJob, **options: Unpack[ScheduleOptions]) -> v1.Schedule:
        """Creates a schedule, or replaces its definition, like `AsyncClient.apply_schedule`."""
        return run(self._inner.apply_schedule(name, template, **options))

    def pause_schedule(self, name: str) -> v1.Schedule:
        return run(self._inner.pause_schedule(name))

    def resume_schedule(self, name: str) -> v1.Schedule:
        return run(self._inner.resume_schedule(name))

    def run_schedule(self, name: str, *, request_key: str = "") -> Enqueued:
        """Enqueues the job of a schedule now, in addition to its plan."""
        return run(self._inner.run_schedule(name, request_key=request_key))

    def delete_schedule(self, name: str) -> None:
        """Deletes a schedule. Keeps the jobs that it has enqueued."""
        run(self._inner.delete_schedule(name))

    def apply_task_type(self, name: str, **settings: Unpack[TaskTypeOptions]) -> v1.TaskTypeSettings:
        """Replaces the settings of a task type, like `AsyncClient.apply_task_type`."""
        return run(self._inner.apply_task_type(name, **settings))

    def pause_task_type(self, name: str) -> v1.TaskTypeSettings:
        """Stops the delivery of a task type's jobs. Running jobs continue, and jobs can be enqueued."""
        return run(self._inner.pause_task_type(name))

    def resume_task_type(self, name: str) -> v1.TaskTypeSettings:
        return run(self._inner.resume_task_type(name))


class Client(Operations):
    """A client with blocking calls, for any number of threads. Otherwise it works like `AsyncClient`.

    It may be created before the process forks, if the process uses gRPC (this client or another) only after the fork.
    """

    def __init__(self, addresses: Addresses = None, **options: Unpack[ClientOptions]) -> None:
        # Uses a lambda instead of functools.partial, because the repr of a partial would show the token.
        self._use(lambda: AsyncClient(addresses, **options))

    def _use(self, make: Callable[[], AsyncClient]) -> None:
        self._make = make
        self._pid, self._made = os.getpid(), make()
        channel = cast(Any, _Channel(self))
        self.jobs = v1.JobServiceStub(channel)
        self.task_types = v1.TaskTypeServiceStub(channel)
        self.schedules = v1.ScheduleServiceStub(channel)
        self.settings = v1.SettingsServiceStub(channel)
        self.access = v1.AccessServiceStub(channel)
        self.bulks = v1.BulkServiceStub(channel)
        self.workers = v1.WorkerServiceStub(channel)
        self.stores = v1.StoreServiceStub(channel)

    @property
    def _inner(self) -> AsyncClient:
        if self._pid != os.getpid():
            # The previous client is kept, because its destruction would wait for threads that a forked process lacks.
            self._kept = self._made
            self._pid, self._made = os.getpid(), self._make()
        return self._made

    def in_store(self, name: str) -> Self:
        """Returns a client for one store of a broker that serves several, like `AsyncClient.in_store`."""
        other = copy.copy(self)
        other._use(lambda: self._inner.in_store(name))
        return other

    def enqueue(
        self, task_type: str, payload: object = None, *, request_key: str = "", **options: Unpack[JobOptions]
    ) -> Enqueued:
        """Enqueues a job, like `AsyncClient.enqueue`. When this returns, the job is committed."""
        return self.enqueue_many([new_job(task_type, payload, **options)], request_key=request_key)[0]

    def enqueue_many(self, jobs: Iterable[v1.NewJob], *, request_key: str = "") -> List[Enqueued]:
        """Enqueues up to 10,000 jobs in one transaction, like `AsyncClient.enqueue_many`."""
        # The calling thread enters the middleware and the spans, so that they see the caller's context. The background
        # loop runs only the call.
        with around(jobs, self._inner.connection, request_key) as (copies, send), send.current():
            return run(self._inner._send(copies, request_key, send))

    def wait(self, ids: Iterable[int], timeout: Seconds = 60) -> Iterator[v1.Job]:
        """Yields each job once, when it has ended, like `AsyncClient.wait`."""
        return iterate(self._inner.wait(ids, timeout))

    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        """Returns a producer for many jobs, on a separate connection: ``with client.producer() as producer``."""
        return Producer(self, **options)

    def connect(self) -> None:
        """Connects now, like `AsyncClient.connect`."""
        run(self._inner.connect())

    def close(self) -> None:
        run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Producer:
    """Enqueues over one stream, like `AsyncProducer`, for any number of threads."""

    def __init__(self, client: Client, **options: Unpack[ProducerOptions]) -> None:
        self._connection = client._inner.connection
        self._pipeline = run(self._made(client._inner, options))
        self._room, self._capacity = threading.Condition(), self._pipeline.capacity
        self._free, self._loop = self._capacity, background_loop()

    @staticmethod
    async def _made(client: AsyncClient, options: ProducerOptions) -> AsyncProducer:
        # Runs on the background loop, because Python 3.9 binds asyncio events to the loop that creates them.
        return AsyncProducer(client, **options)

    def submit(self, task_type: str, payload: object = None, **options: Unpack[JobOptions]) -> Future[Enqueued]:
        """Submits a job. Blocks only while the queue is full. The future resolves when the job is committed."""
        with around([new_job(task_type, payload, **options)], self._connection) as ([job], send):
            future: Future[Enqueued] = Future()
            # Marks the future as running, which makes it impossible to cancel, because the job may already be stored.
            future.set_running_or_notify_cancel()
            size = min(cost(job), self._capacity)
            with self._room:
                self._room.wait_for(lambda: self._free >= size)
                self._free -= size
            future.add_done_callback(lambda _: self._freed(size))
            self._loop.call_soon_threadsafe(self._pipeline._push, job, future, send)
            return future

    def _freed(self, size: int) -> None:
        with self._room:
            self._free += size
            self._room.notify_all()

    def flush(self) -> None:
        """Waits until all submitted jobs are answered."""
        with self._room:
            self._room.wait_for(lambda: self._free == self._capacity)

    def close(self) -> None:
        """Waits until all submitted jobs are answered, and closes the connection."""
        run(self._pipeline.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

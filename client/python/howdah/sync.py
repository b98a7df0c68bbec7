"""Howdah without asyncio: the same calls, which block. An event loop in a thread of its own does the work."""

from __future__ import annotations

import asyncio
import copy
import os
import threading
from concurrent.futures import Future
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
from .client import AsyncClient, Enqueued, JobOptions, around, new_job
from .messages import Seconds
from .producer import AsyncProducer

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

T = TypeVar("T")
_loops: Dict[int, asyncio.AbstractEventLoop] = {}
_starting = threading.Lock()


def background_loop() -> asyncio.AbstractEventLoop:
    """The loop of this process: a process that was forked has a new one."""
    with _starting:
        loop = _loops.get(os.getpid())
        if loop is None:
            _loops.clear()
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="howdah", daemon=True).start()
        return loop


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on the background loop, and waits for it."""
    loop = background_loop()
    if asyncio._get_running_loop() is loop:
        work.close()
        raise RuntimeError("this would wait for itself: an async handler uses AsyncClient")
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
    """For the generated stubs: calls that block."""

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
            raise NotImplementedError(f"{path} is for Client.producer and Worker")

        return call


class Client:
    """A client whose calls block, for any number of threads; otherwise the same as `AsyncClient`.

    It may be made before a process forks, if neither it nor another user of gRPC there is used before that.
    """

    def __init__(self, addresses: Addresses = None, **options: Unpack[ClientOptions]) -> None:
        # Not a partial, whose repr would show the token.
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
            self._pid, self._made = os.getpid(), self._make()
        return self._made

    def in_store(self, name: str) -> Self:
        """As `AsyncClient.in_store`."""
        other = copy.copy(self)
        other._use(lambda: self._inner.in_store(name))
        return other

    def enqueue(self, task_type: str, payload: object = None, **options: Unpack[JobOptions]) -> Enqueued:
        """As `AsyncClient.enqueue`."""
        return self.enqueue_many([new_job(task_type, payload, **options)])[0]

    def enqueue_many(self, jobs: Iterable[v1.NewJob], *, request_key: str = "") -> List[Enqueued]:
        """As `AsyncClient.enqueue_many`."""
        # Middleware and spans belong to the caller's thread.
        with around(jobs, self._inner.connection, request_key) as (own, send), send.current():
            return run(self._inner._send(own, request_key, send))

    def wait(self, ids: Iterable[int], timeout: Seconds = 60) -> Iterator[v1.Job]:
        """As `AsyncClient.wait`."""
        return iterate(self._inner.wait(ids, timeout))

    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        """A pipeline for many jobs, on a connection of its own: ``with client.producer() as producer``."""
        return Producer(self, **options)

    def connect(self) -> None:
        """As `AsyncClient.connect`."""
        run(self._inner.connect())

    def close(self) -> None:
        run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Producer:
    """As `AsyncProducer`, for any number of threads."""

    def __init__(self, client: Client, **options: Unpack[ProducerOptions]) -> None:
        self._connection = client._inner.connection
        self._pipeline = run(self._made(client._inner, options))
        self._room, self._capacity = threading.Condition(), self._pipeline.capacity
        self._free, self._loop = self._capacity, background_loop()

    @staticmethod
    async def _made(client: AsyncClient, options: ProducerOptions) -> AsyncProducer:
        # On its own loop, to which the events of asyncio are bound in Python 3.9.
        return AsyncProducer(client, **options)

    def submit(self, task_type: str, payload: object = None, **options: Unpack[JobOptions]) -> Future[Enqueued]:
        """Submits a job; blocks only while too much is gathered. The future has the result once it is committed."""
        with around([new_job(task_type, payload, **options)], self._connection) as ([job], send):
            future: Future[Enqueued] = Future()
            # It cannot be cancelled: the job may be stored already.
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
        """Waits until everything that was submitted is answered."""
        with self._room:
            self._room.wait_for(lambda: self._free == self._capacity)

    def close(self) -> None:
        """Waits until everything that was submitted is answered, and closes the connection."""
        run(self._pipeline.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""A producer, which enqueues many jobs over one stream, in batches that grow under load."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Deque, Dict, Optional, Sequence, Tuple, cast

import grpc.aio

from . import v1
from .batch import AnyFuture, Batch, ProducerOptions, cost, take_batch
from .broker import Broker
from .client import Enqueued, around, enqueued, new_job
from .connection import RESEND_LIMIT, Backoff, log
from .errors import REQUEST_TOO_LARGE, HowdahError, Stopped, broken, deadline
from .messages import check_names
from .options import JobOptions
from .telemetry import Sending

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .client import AsyncClient


class AsyncProducer:
    """Enqueues over one stream. If the broker refuses a job, only that job fails, not the others of its request.

    Jobs that arrive while requests are in flight form the next request. So a single job is sent at once, and batches
    grow under load. The producer reconnects, and repeats unanswered requests with the same request keys.
    """

    def __init__(self, client: AsyncClient, **options: Unpack[ProducerOptions]) -> None:
        check_names(options, ProducerOptions.__annotations__, "a producer")
        self._client, self._connection = client, client.connection
        self._max_in_flight = max(1, options.get("max_in_flight", 4))
        self._max_jobs, self._max_bytes = options.get("max_batch_jobs", 1_000), options.get("max_batch_bytes", 4 << 20)
        self.capacity = self._free = options.get("max_queued_bytes", 64 << 20)
        self._queue: Deque[Tuple[v1.NewJob, AnyFuture]] = deque()
        self._retries: Deque[Batch] = deque()
        self._sent: Dict[int, Batch] = {}
        self._sequence, self._closed, self._retry_at, self._backoff = 0, False, 0.0, Backoff()
        self._wake, self._freed = asyncio.Event(), asyncio.Event()
        self._task: Optional[asyncio.Future[None]] = None
        self._broker = self._connection.at(self._connection.current)

    async def submit(
        self, task_type: str, payload: object = None, **options: Unpack[JobOptions]
    ) -> asyncio.Future[Enqueued]:
        """Submits a job. Waits only while the queue is full. The future resolves when the job is committed."""
        return await self.submit_job(new_job(task_type, payload, **options))

    async def submit_job(self, job: v1.NewJob) -> asyncio.Future[Enqueued]:
        """Submits a job made by `new_job`, in the same way as `submit`."""
        with around([job], self._connection) as ([job], send):
            size = min(cost(job), self.capacity)
            await self._until_free(size)
            self._free -= size
            future: asyncio.Future[Enqueued] = asyncio.get_running_loop().create_future()
            future.add_done_callback(lambda _: self._give_back(size))
            self._push(job, future, send)
            return future

    async def flush(self) -> None:
        """Waits until all submitted jobs are answered."""
        await self._until_free(self.capacity)

    async def close(self) -> None:
        """Waits until all submitted jobs are answered, and closes the connection."""
        self._closed = True
        self._wake.set()
        if self._task is not None:
            await self._task

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _until_free(self, size: int) -> None:
        while self._free < size:
            self._freed.clear()
            await self._freed.wait()

    def _give_back(self, size: int) -> None:
        self._free += size
        self._freed.set()

    def _push(self, job: v1.NewJob, future: AnyFuture, send: Sending) -> None:
        future.add_done_callback(functools.partial(self._end_sending, send))
        if self._closed:
            future.set_exception(Stopped("producer"))
            return
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
            self._task.add_done_callback(self._ended)
        self._queue.append((job, future))
        timer = asyncio.get_running_loop().call_later(self._connection.request_timeout, self._expire, future)
        future.add_done_callback(lambda _: timer.cancel())
        self._wake.set()

    def _end_sending(self, send: Sending, future: AnyFuture) -> None:
        send.used(self._broker)
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        send.end([future.result()] if error is None else (), error)

    def _use(self, broker: Broker) -> None:
        self._broker = broker

    def _ended(self, task: asyncio.Future[None]) -> None:
        """Fails the remaining futures when the task has ended, so that no caller waits forever after a bug."""
        error = None if task.cancelled() else task.exception()
        futures = [future for batch in (*self._sent.values(), *self._retries) for future in batch.futures]
        self._closed = True
        Batch((), [*futures, *(future for _, future in self._queue)]).fail(error or Stopped("producer"))

    def _expire(self, future: AnyFuture) -> None:
        if not future.done():
            future.set_exception(deadline("enqueue", self._connection.request_timeout))

    async def _run(self) -> None:
        index = self._connection.current
        while await self._work_to_do():
            self._use(self._connection.at(index))
            try:
                broker, channel = await self._connection.dial(index)
                try:
                    await self._serve(v1.JobServiceStub(channel))
                    return
                except grpc.aio.AioRpcError as error:
                    raise HowdahError._from_rpc(error, broker.name) from None
                finally:
                    await channel.close()
            except HowdahError as error:
                unanswered = sum(batch.cost() for batch in self._sent.values())
                self._retries.extendleft(reversed(list(self._sent.values())))
                self._sent.clear()
                self._retry_at = 0.0
                if not error._retried or unanswered > RESEND_LIMIT:
                    # Single calls show the cause. The broker may refuse one request, or the whole stream. Or a proxy
                    # limits the bytes of a stream; then a single call succeeds, or fails with HTTP 413.
                    await self._call_each()
                    continue
                index += 1
                pause = self._backoff.next()
                log.debug("the enqueue stream broke, opening another in %.2f s: %s", pause, error)
                await asyncio.sleep(pause)

    async def _work_to_do(self) -> bool:
        while True:
            # Drops queued jobs whose callers no longer wait, so that the producer does not connect for them.
            while self._retries and self._retries[0].is_abandoned():
                self._retries.popleft()
            while self._queue and self._queue[0][1].done():
                self._queue.popleft()
            if self._queue or self._retries or self._closed:
                return bool(self._queue or self._retries)
            self._wake.clear()
            await self._wake.wait()

    async def _serve(self, stub: Any) -> None:
        """Sends requests and resolves futures until the producer is closed and all jobs are answered."""
        call = stub.StreamEnqueue(metadata=self._connection.metadata())
        reader = asyncio.ensure_future(self._read(call))
        reader.add_done_callback(lambda _: self._wake.set())
        try:
            while not reader.done():
                self._wake.clear()
                batch = self._next() if len(self._sent) < self._max_in_flight else None
                if batch is not None:
                    await self._write(call, batch)
                    continue
                if self._closed and not (self._sent or self._retries or self._queue):
                    return
                try:
                    waiting = self._retry_at - time.monotonic() if self._retries else self._connection.answer_timeout
                    await asyncio.wait_for(self._wake.wait(), max(0.001, waiting))
                except asyncio.TimeoutError:
                    oldest = min((batch.sent for batch in self._sent.values()), default=time.monotonic())
                    if time.monotonic() - oldest >= self._connection.answer_timeout:
                        raise broken("the broker does not answer enqueue requests") from None
            reader.result()
            raise broken("the broker closed the enqueue stream")
        except asyncio.InvalidStateError:
            # The stream accepts no more requests. The reader raises the stream's status, which has the reason.
            await reader
            raise broken("the enqueue stream is closed") from None
        finally:
            reader.cancel()
            call.cancel()

    async def _write(self, call: Any, batch: Batch) -> None:
        self._sequence += 1
        batch.sent = time.monotonic()
        self._sent[self._sequence] = batch
        await call.write(v1.StreamEnqueueRequest(sequence=self._sequence, jobs=batch.jobs, request_key=batch.key))

    async def _read(self, call: Any) -> None:
        async for answer in call:
            batch = self._sent.pop(answer.sequence, None)
            if batch is not None:
                error = HowdahError._from_request(answer.error) if answer.HasField("error") else None
                self._conclude(batch, error, answer.jobs)
            self._wake.set()

    def _next(self) -> Optional[Batch]:
        """Returns the next request: one to repeat, or else a new one from the queue."""
        while self._retries and self._retry_at <= time.monotonic():
            batch = self._retries.popleft()
            if not batch.is_abandoned():
                return batch
        return take_batch(self._queue, self._max_jobs, self._max_bytes)

    def _conclude(self, batch: Batch, error: Optional[HowdahError], answers: Sequence[v1.EnqueuedJob] = ()) -> None:
        if error is None:
            self._backoff = Backoff()
            batch.resolve(enqueued(answers, batch.jobs, generated_key=True))
        elif error._retried:
            self._retries.append(batch)
            self._retry_at = time.monotonic() + self._backoff.next()
        else:
            if error.reason == REQUEST_TOO_LARGE:
                self._max_bytes = batch.cost() // 2
            self._retries.extendleft(reversed(batch.split(error)))

    async def _call_each(self) -> None:
        batch = self._next()
        while batch is not None:
            try:
                request = v1.EnqueueJobsRequest(jobs=batch.jobs, request_key=batch.key)
                answer = await cast(Any, self._client.jobs.EnqueueJobs)(request, used=self._use)
                self._conclude(batch, None, answer.jobs)
            except HowdahError as error:
                self._conclude(batch, error)
            batch = self._next() if self._retries else None

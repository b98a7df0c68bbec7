"""Clients for tests, which record jobs instead of sending them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, AsyncIterator, Dict, List, Optional, Sequence, Tuple

import grpc

from . import v1
from .checks import check
from .client import AsyncClient
from .connection import Connection
from .errors import HowdahError
from .sync import Client

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .broker import ClientOptions

_REPLACED = {
    v1.KEY_POLICY_REPLACE: v1.ENQUEUE_OUTCOME_REPLACED,
    v1.KEY_POLICY_REPLACE_IF_NEWER: v1.ENQUEUE_OUTCOME_REPLACED,
    v1.KEY_POLICY_DEBOUNCE: v1.ENQUEUE_OUTCOME_DEBOUNCED,
}


class RecordingConnection(Connection):
    """A connection to no broker. It records the jobs of enqueues, and refuses every other call."""

    def __init__(self, options: ClientOptions) -> None:
        super().__init__("127.0.0.1:1", options)
        self.enqueued: List[v1.NewJob] = []
        self._keys: Dict[Tuple[str, str], int] = {}

    def unary_unary(self, path: str, *_: Any, **__: Any) -> Any:
        async def call(request: Any, timeout: Optional[float] = None, used: Any = None) -> Any:
            if not isinstance(request, v1.EnqueueJobsRequest):
                raise _refusal(path)
            if used is not None:
                used(self.at(0))
            return v1.EnqueueJobsResponse(jobs=self._record(request.jobs))

        return call

    def unary_stream(self, path: str, *_: Any, **__: Any) -> Any:
        async def call(*_: Any, **__: Any) -> AsyncIterator[Any]:
            raise _refusal(path)
            yield

        return call

    async def connect(self) -> None:
        pass

    async def dial(self, index: int) -> Any:
        # A producer then sends its jobs in unary calls.
        raise _refusal("StreamEnqueue")

    async def dial_blocking(self, index: int) -> Any:
        raise _refusal("Work")

    def _record(self, jobs: Sequence[v1.NewJob]) -> List[v1.EnqueuedJob]:
        check(jobs)
        for number, job in enumerate(jobs):
            if job.key_policy == v1.KEY_POLICY_REJECT and (job.task_type, job.key) in self._keys:
                field = f"jobs[{number}].key"
                text = f"{field}: the key {job.key!r} is held by another job"
                raise HowdahError(text, grpc.StatusCode.ALREADY_EXISTS, reason="KEY_TAKEN", field=field)
        return [self._stored(job) for job in jobs]

    def _stored(self, job: v1.NewJob) -> v1.EnqueuedJob:
        holder = self._keys.get((job.task_type, job.key)) if job.key else None
        if holder is None:
            self.enqueued.append(job)
            if job.key:
                self._keys[job.task_type, job.key] = len(self.enqueued)
            return v1.EnqueuedJob(id=len(self.enqueued), is_new=True, outcome=v1.ENQUEUE_OUTCOME_NEW)
        outcome = _REPLACED.get(job.key_policy, v1.ENQUEUE_OUTCOME_KEPT)
        if job.key_policy == v1.KEY_POLICY_REPLACE_IF_NEWER:
            old = self.enqueued[holder - 1]
            if old.HasField("key_version") and old.key_version >= job.key_version:
                outcome = v1.ENQUEUE_OUTCOME_STALE
        if outcome in _REPLACED.values():
            self.enqueued[holder - 1] = job
        return v1.EnqueuedJob(id=holder, outcome=outcome)


def _refusal(path: str) -> HowdahError:
    text = f"{path.rpartition('/')[2]}: a recording client has no broker; use testing.Broker"
    return HowdahError(text, grpc.StatusCode.UNIMPLEMENTED, reason="NO_BROKER")


class RecordingAsyncClient(AsyncClient):
    """An `AsyncClient` that needs no broker. It checks and records enqueued jobs, for `assert_enqueued`."""

    connection: RecordingConnection

    def __init__(self, **options: Unpack[ClientOptions]) -> None:
        self._use(RecordingConnection(options))

    @property
    def enqueued(self) -> List[v1.NewJob]:
        """The enqueued jobs, in order. A job that replaces another one takes its place."""
        return self.connection.enqueued


class RecordingClient(Client):
    """A `Client` that needs no broker. It checks and records enqueued jobs, for `assert_enqueued`."""

    def __init__(self, **options: Unpack[ClientOptions]) -> None:
        recording = RecordingAsyncClient(**options)
        self.enqueued = recording.enqueued
        self._use(lambda: recording)

"""For the tests of your program: handlers without a broker, clients that record, a broker of a test's own."""

from __future__ import annotations

import asyncio
import os
import subprocess
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Sequence, Tuple, Union, cast

from . import v1
from .client import AsyncClient, Enqueued, JobOptions, around
from .handler import AsyncJob, Handler, Job, raised
from .messages import decode, encode, fill
from .sync import Client
from .telemetry import Sending

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


def make_job(payload: object = None, **fields: Any) -> v1.LeasedJob:
    """A job for `perform`, with fields such as ``attempt``, ``headers`` and ``checkpoint``."""
    fields["checkpoint"] = encode(fields.get("checkpoint"))
    defaults: Dict[str, Any] = {"id": 1, "token": 1, "task_type": "test", "attempt": 1, "max_attempts": 10}
    return fill(v1.LeasedJob(payload=encode(payload)), {**defaults, **fields})


def perform(handler: Callable[..., Any], payload: object = None, *, reports: Any = None, **fields: Any) -> Any:
    """Calls a handler as a worker would: with the payload as it reads it, and a job. Returns what it returns.

    Outcomes that it returns or raises are raised. Progress, checkpoints and extensions are appended to ``reports``,
    if that is a list, as messages of the protocol. An async handler has an event loop of its own.
    """
    own, said = Handler(handler, 1), reports if reports is not None else []
    message = make_job(payload, **fields)

    async def ask(report: object) -> None:
        said.append(report)

    async def work() -> Any:
        return await own.function(*own.arguments(AsyncJob(message, ask, asyncio.get_running_loop())))

    if own.is_async:
        return raised(asyncio.run(work()))
    job: Any = Job(message, ask, cast(Any, None))
    job._wait = said.append
    return raised(own.function(*own.arguments(job)))


class _Recorder:
    def __init__(self) -> None:
        #: The jobs that were enqueued.
        self.enqueued: List[v1.NewJob] = []
        self._keys: Dict[Tuple[str, str], int] = {}

    def record(self, jobs: Sequence[v1.NewJob], send: Sending) -> List[Enqueued]:
        """As the default for keys: while a job has one, another with the same is not stored."""
        answers = []
        for job in jobs:
            known = self._keys.get((job.task_type, job.key)) if job.key else None
            if known is not None:
                answers.append(Enqueued(known, False, "kept"))
                continue
            self.enqueued.append(job)
            if job.key:
                self._keys[job.task_type, job.key] = len(self.enqueued)
            answers.append(Enqueued(len(self.enqueued), True, "new"))
        send.end(answers)
        return answers


class RecordingClient(_Recorder, Client):
    """A `Client` that needs no broker: it keeps what is enqueued, for `assert_enqueued`."""

    def __init__(self, **options: Any) -> None:
        _Recorder.__init__(self)
        Client.__init__(self, **options)

    def enqueue_many(self, jobs: Iterable[v1.NewJob], *, request_key: str = "") -> List[Enqueued]:
        with around(jobs, self._inner.connection, request_key) as (own, send):
            return self.record(own, send)


class RecordingAsyncClient(_Recorder, AsyncClient):
    """The same for asyncio."""

    def __init__(self, **options: Any) -> None:
        _Recorder.__init__(self)
        AsyncClient.__init__(self, **options)

    async def enqueue_many(self, jobs: Iterable[v1.NewJob], *, request_key: str = "") -> List[Enqueued]:
        with around(jobs, self.connection, request_key) as (own, send):
            return self.record(own, send)


_ANY = object()


def assert_enqueued(
    client: Union[RecordingClient, RecordingAsyncClient],
    task_type: str,
    payload: object = _ANY,
    **options: Unpack[JobOptions],
) -> v1.NewJob:
    """Fails unless a job of this type was enqueued, with this payload and these options. Returns the first one."""
    wanted = fill(v1.NewJob(), options)
    for job in client.enqueued:
        same = job.task_type == task_type and (payload is _ANY or job.payload == encode(payload))
        if same and all(getattr(job, name) == getattr(wanted, name) for name in options):
            return job
    found = [f"{job.task_type} {_shown(job.payload)}" for job in client.enqueued]
    raise AssertionError(f"no {task_type} {'' if payload is _ANY else payload} was enqueued, only {found}")


def _shown(payload: bytes) -> object:
    try:
        return decode(payload)
    except ValueError:
        return payload


class Broker:
    """A broker with a Postgres of its own (``howdah dev --ephemeral``), which a test starts and ends.

    The program is that of ``HOWDAH_BIN``, or ``howdah`` on the PATH.
    """

    def __init__(self, *arguments: str) -> None:
        program = os.environ.get("HOWDAH_BIN") or "howdah"
        ports = ("--listen=127.0.0.1:0", "--http=127.0.0.1:0")
        command = [program, "dev", "--ephemeral", *ports, *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("ready "):
            raise RuntimeError(f"{program} dev ended with status {self._process.wait()}")
        ready = dict(part.split("=", 1) for part in line.split()[1:])
        #: With ``--stores``: the URL of each store's database, by the store's name.
        self.stores = {key[len("store.") :]: url for key, url in ready.items() if key.startswith("store.")}
        #: Its address for clients, and the URL of its database; of several stores, of the first one's.
        self.address, self.postgres = ready["grpc"], ready.get("postgres") or next(iter(self.stores.values()))

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

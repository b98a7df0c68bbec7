"""Helpers for tests of programs that use Howdah: run handlers and record enqueues without a broker, or start one."""

from __future__ import annotations

import asyncio
import os
import subprocess
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Callable, Dict, Union, cast

from . import v1
from .handler import AsyncJob, Handler, Job, raised
from .messages import Seconds, decode, encode, fill
from .options import JobOptions
from .recording import RecordingAsyncClient as RecordingAsyncClient
from .recording import RecordingClient as RecordingClient
from .sync import Client

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


def make_job(payload: object = None, **fields: Any) -> v1.LeasedJob:
    """Creates a job as a worker receives it, with fields such as ``attempt``, ``headers`` and ``checkpoint``.

    ``after`` is a list of `v1.DependencyResult`, for ``job.results()``.
    """
    fields["checkpoint"] = encode(fields.get("checkpoint"))
    defaults: Dict[str, Any] = {"id": 1, "token": 1, "task_type": "test", "attempt": 1, "max_attempts": 10}
    defaults["dependency_count"] = len(fields.get("after", ()))
    return fill(v1.LeasedJob(payload=encode(payload)), {**defaults, **fields})


def perform(handler: Callable[..., Any], payload: object = None, *, reports: Any = None, **fields: Any) -> Any:
    """Calls a handler as a worker would, with the decoded payload and a job. Returns the handler's result.

    An outcome that the handler returns or raises is raised. If ``reports`` is a list, progress, checkpoints and
    extensions are appended to it as protocol messages. An async handler runs on a new event loop.
    """
    wrapped, recorded = Handler(handler, 1), reports if reports is not None else []
    message = make_job(payload, **fields)

    async def send_request(report: object) -> None:
        recorded.append(report)

    async def work() -> Any:
        return await wrapped.function(*wrapped.arguments(AsyncJob(message, send_request, asyncio.get_running_loop())))

    if wrapped.is_async:
        return raised(asyncio.run(work()))
    job: Any = Job(message, send_request, cast(Any, None))
    job._wait = recorded.append
    return raised(wrapped.function(*wrapped.arguments(job)))


_ANY = object()


def assert_enqueued(
    client: Union[RecordingClient, RecordingAsyncClient],
    task_type: str,
    payload: object = _ANY,
    **options: Unpack[JobOptions],
) -> v1.NewJob:
    """Returns the first enqueued job of this type with this payload and these options. Fails without such a job."""
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
    """A broker with a temporary Postgres (``howdah dev --ephemeral``), which a test starts and stops.

    It runs the program that ``HOWDAH_BIN`` names, or else ``howdah`` on the PATH. It logs warnings and errors, unless
    ``HOWDAH_LOG`` is set.
    """

    def __init__(self, *arguments: str) -> None:
        chosen = os.environ.get("HOWDAH_BIN")
        program = chosen or "howdah"
        ports = ("--listen=127.0.0.1:0", "--http=127.0.0.1:0")
        command = [program, "dev", "--ephemeral", *ports, *arguments]
        environment = {"HOWDAH_LOG": "warn", **os.environ}
        try:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        except OSError as error:
            hint = "howdah is not on the PATH: install it or set HOWDAH_BIN"
            raise RuntimeError(f"HOWDAH_BIN is {chosen!r}: {error.strerror}" if chosen else hint) from error
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("ready "):
            raise RuntimeError(f"{program} dev ended with status {self._process.wait()} before it was ready")
        ready = dict(part.split("=", 1) for part in line.split()[1:])
        #: With the argument ``--stores``: the database URL of each store, by the store's name.
        self.stores = {key[len("store.") :]: url for key, url in ready.items() if key.startswith("store.")}
        #: The addresses of the broker's gRPC port, for clients, and of its HTTP port.
        self.address, self.http = ready["grpc"], ready["http"]
        #: The database URL of the broker's first or only store.
        self.postgres = ready.get("postgres") or next(iter(self.stores.values()))

    def advance(self, duration: Seconds) -> datetime:
        """Advances the broker's clock, such as by ``"3 days"``. Returns the new time.

        Delayed jobs, retries, schedules, deadlines and leases become due. `time` and `datetime` do not follow.
        """
        request = fill(v1.AdvanceClockRequest(), {"duration": duration})
        with Client(self.address) as client:
            return client.settings.AdvanceClock(request).time.ToDatetime(timezone.utc)

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

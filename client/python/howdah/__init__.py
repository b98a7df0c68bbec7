"""The Python client of Howdah, a gRPC streaming job broker on Postgres.

A program with threads uses `Client`, `Producer` and `Worker`; one with asyncio `AsyncClient`, `AsyncProducer` and
`Worker.serve`. `howdah.v1` has the messages of the protocol and the generated stubs, `howdah.testing` what tests need.

The modules, in the order of a job's way: `client` and `sync` (enqueue), `producer` and `batch` (many jobs on one
stream), `connection` and `broker` (calls, addresses, credentials), `worker`, `session`, `stream`, `ledger` and `runner`
(run jobs on one stream), `handler`, `threads` and `outcome` (one job), `telemetry` and `otel` (spans and metrics), `messages` (values of Python
as messages) and `errors`.
"""

from . import v1
from .broker import VERSION as __version__
from .client import AsyncClient, Enqueued, JobOptions, RetryPolicy, new_job
from .connection import new_request_key
from .errors import HowdahError, LeaseLost, Stopped
from .handler import AsyncJob, Job
from .ledger import WorkerReport
from .messages import decode, encode, fill
from .outcome import Done, Fatal, Outcome, Release, Retry, Snooze
from .producer import AsyncProducer
from .sync import Client, Producer
from .v1 import NewJob
from .worker import Worker

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "AsyncProducer",
    "Client",
    "Done",
    "Enqueued",
    "Fatal",
    "HowdahError",
    "Job",
    "JobOptions",
    "LeaseLost",
    "NewJob",
    "Outcome",
    "Producer",
    "Release",
    "Retry",
    "RetryPolicy",
    "Snooze",
    "Stopped",
    "Worker",
    "WorkerReport",
    "__version__",
    "decode",
    "encode",
    "fill",
    "new_job",
    "new_request_key",
    "v1",
]

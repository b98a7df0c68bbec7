"""The Python client of Howdah, a gRPC streaming job broker on Postgres.

A program with threads uses `Client`, `Producer` and `Worker`. A program with asyncio uses `AsyncClient`,
`AsyncProducer` and `Worker.serve`. `howdah.v1` has the protocol messages and the generated stubs. `howdah.testing` has
helpers for tests.

The modules, in the order in which a job passes through them:

- `options`: options of a job
- `client`, `sync`: enqueue in one call
- `operations`: manage jobs, schedules and task types
- `producer`, `batch`: enqueue many jobs over one stream
- `connection`, `broker`: calls, addresses and credentials
- `worker`, `session`, `stream`, `link`, `ledger`, `runner`, `slots`, `unary`: receive and settle jobs over one stream
- `handler`, `threads`, `processes`, `outcome`: run one job
- `telemetry`, `otel`: spans and metrics
- `messages`: conversion between Python values and protocol messages
- `errors`: errors of calls, producers and workers
- `forks`: the import of gRPC
"""

from . import forks as forks  # Must come first, because it imports gRPC.
from . import v1
from .broker import VERSION as __version__
from .client import AsyncClient, Enqueued, new_job
from .connection import new_request_key
from .errors import HowdahError, LeaseLost, Stopped
from .handler import AsyncJob, Job
from .ledger import WorkerReport
from .messages import decode, encode, fill
from .operations import Brake, JobConditions, JobFilter, JobQuery, Rate, Retried, ScheduleOptions, TaskTypeOptions
from .options import JobOptions, RetryPolicy
from .outcome import Done, Fatal, Outcome, Release, Retry, Snooze
from .producer import AsyncProducer
from .sync import Client, Producer
from .v1 import NewJob
from .worker import Worker

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "AsyncProducer",
    "Brake",
    "Client",
    "Done",
    "Enqueued",
    "Fatal",
    "HowdahError",
    "Job",
    "JobConditions",
    "JobFilter",
    "JobOptions",
    "JobQuery",
    "LeaseLost",
    "NewJob",
    "Outcome",
    "Producer",
    "Rate",
    "Release",
    "Retried",
    "Retry",
    "RetryPolicy",
    "ScheduleOptions",
    "Snooze",
    "Stopped",
    "TaskTypeOptions",
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

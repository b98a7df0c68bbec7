"""``manage.py howdah_worker``: runs the tasks of a backend until SIGTERM or Ctrl-C."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import Any, Dict, Iterator

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import close_old_connections
from django.tasks import task_backends

from howdah import Client, HowdahError, Job, Worker
from howdah.django import HowdahBackend


@contextmanager
def fresh_connections(_: object) -> Iterator[None]:
    """Closes broken and expired database connections before and after a task, as Django does around a request."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


class Command(BaseCommand):
    help = (
        "Runs the tasks of a Howdah backend. HOWDAH_SERVER, HOWDAH_TOKEN and so on set the broker's address and token."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--backend", default="default", help="alias of the backend in TASKS")
        parser.add_argument("--queue", action="append", help="serve only this queue; repeatable")
        parser.add_argument("--server", help="addresses of brokers, separated by commas")
        parser.add_argument(
            "--concurrency", type=int, default=8, help="concurrent tasks of all queues together, in threads"
        )
        parser.add_argument("--stop-timeout", type=float, default=30, help="seconds that a stop waits for tasks")

    def handle(self, *_: Any, **options: Any) -> None:
        backend = task_backends[options["backend"]]
        if not isinstance(backend, HowdahBackend):
            raise CommandError(f"TASKS[{options['backend']!r}] is not a backend of Howdah")
        queues = options["queue"] or sorted(backend.queues)
        if not queues:
            raise CommandError("QUEUES is empty, which allows any queue: select the queues of this worker with --queue")
        unknown = set(queues) - backend.queues if backend.queues else set()
        if unknown:
            raise CommandError(f"QUEUES of {options['backend']!r} does not have {', '.join(sorted(unknown))}")
        worker = Worker(
            Client(options["server"]),
            concurrency=options["concurrency"],
            stop_timeout=options["stop_timeout"],
            middleware=[fresh_connections],
        )
        for queue in queues:
            worker.task(backend.task_type(queue))(handler(backend, queue))
        try:
            report = worker.run()
        except HowdahError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{report.acked} tasks succeeded, {report.failed} failed")


def handler(backend: HowdahBackend, queue: str) -> Any:
    def perform(payload: Dict[str, Any], job: Job) -> object:
        return run(payload, job)

    run = partial(backend.perform, queue=queue)
    return perform

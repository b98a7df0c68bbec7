"""The backend of django.tasks, against a broker and its database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Iterator

import pytest

pytest.importorskip("django.tasks", reason="Django 6 has django.tasks")
pytest.importorskip("psycopg")

from howdah.testing import Broker

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def project(broker: Broker) -> Any:
    os.environ["HOWDAH_TEST_POSTGRES"] = broker.postgres
    sys.path.insert(0, str(HERE))
    import project

    return project


@pytest.fixture
def worker(broker: Broker, project: Any) -> Iterator[None]:
    command = [sys.executable, "-m", "project", "howdah_worker", "--server", broker.address, "--concurrency", "2"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    both = [subprocess.Popen([*command, "--backend", backend], env=env) for backend in ("default", "once")]
    # Waits until the workers serve, because SIGTERM would kill one that has not installed its signal handler yet.
    serving(broker, "django.default", "django.once")
    yield
    for process in both:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def serving(broker: Broker, *task_types: str) -> None:
    import howdah

    deadline = time.monotonic() + 60
    with howdah.Client(broker.address) as client:
        while time.monotonic() < deadline:
            workers = client.workers.ListWorkers(howdah.v1.ListWorkersRequest()).workers
            windows = {window.task_type for worker in workers for window in worker.windows}
            if windows.issuperset(task_types):
                return
            time.sleep(0.05)
    raise AssertionError(f"no workers serve {task_types}")


def finished(broker: Broker, *results: Any) -> None:
    import howdah

    with howdah.Client(broker.address) as client:
        assert len(list(client.wait([int(result.id) for result in results], 30))) == len(results)
    for result in results:
        result.refresh()


def test_a_task_is_there_when_its_transaction_commits_and_never_when_it_is_rolled_back(project: Any) -> None:
    from django.db import transaction
    from django.tasks.exceptions import TaskResultDoesNotExist

    with pytest.raises(RuntimeError), transaction.atomic():
        lost = project.add.enqueue(1)
        raise RuntimeError
    with pytest.raises(TaskResultDoesNotExist):
        project.add.get_result(lost.id)
    with transaction.atomic():
        kept = project.add.using(run_after=kept_for_later()).enqueue(1, b=2)
    found = project.add.get_result(kept.id)
    assert (found.status, found.args, found.kwargs) == ("READY", [1], {"b": 2})


def kept_for_later() -> Any:
    from django.utils import timezone

    return timezone.now() + timedelta(days=1)


def test_delays_priorities_and_queues_reach_the_job(project: Any) -> None:
    from django.db import connection

    when = kept_for_later()
    result = project.add.using(run_after=when, priority=7, queue_name="other").enqueue(1)
    with connection.cursor() as cursor:
        cursor.execute("SELECT task_type, state, priority, run_at FROM howdah.job WHERE id = %s", (int(result.id),))
        assert cursor.fetchone() == ("django.other", "scheduled", -7, when)
    found = project.add.get_result(result.id).task
    assert (found.priority, found.queue_name, found.run_after) == (7, "other", when)


def test_workers_run_tasks_and_keep_their_results(broker: Broker, project: Any, worker: None) -> None:
    results = [project.add.enqueue(20, b=22), project.context.enqueue("ann"), project.later.enqueue("text")]
    finished(broker, *results)
    assert [result.status for result in results] == ["SUCCESSFUL"] * 3
    assert results[0].return_value == 42 and results[2].return_value == "TEXT"
    assert results[1].return_value == ["ann", 1, results[1].id]
    assert results[0].attempts == 1 and results[0].finished_at >= results[0].started_at >= results[0].enqueued_at


def test_what_a_task_raises_is_kept(broker: Broker, project: Any, worker: None) -> None:
    result = project.fails.enqueue()
    finished(broker, result)
    assert result.status == "FAILED"
    [error] = result.errors
    assert error.exception_class is ValueError and "in fails" in error.traceback and "never" in error.traceback
    with pytest.raises(ValueError, match="failed"):
        result.return_value  # noqa: B018


@pytest.mark.parametrize(
    ("queues", "chosen", "expected"),
    [([], [], "select the queues of this worker with --queue"), (["mail"], ["post"], "does not have post")],
)
def test_a_worker_names_the_queues_that_it_cannot_serve(project: Any, queues: Any, chosen: Any, expected: str) -> None:
    from django.core.management import CommandError, call_command
    from django.test import override_settings

    tasks = {"default": {"BACKEND": "howdah.django.HowdahBackend", "QUEUES": queues}}
    with override_settings(TASKS=tasks), pytest.raises(CommandError, match=expected):
        call_command("howdah_worker", *(f"--queue={queue}" for queue in chosen))


async def test_tasks_are_enqueued_from_asyncio_too(project: Any) -> None:
    result = await project.add.using(run_after=kept_for_later()).aenqueue(1)
    assert (await project.add.aget_result(result.id)).status == "READY"


def test_the_results_of_other_tasks_are_not_mixed_up(project: Any) -> None:
    from django.tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch

    result = project.add.using(run_after=kept_for_later()).enqueue(1)
    with pytest.raises(TaskResultMismatch):
        project.later.get_result(result.id)
    for unknown in ("0", "no number"):
        with pytest.raises(TaskResultDoesNotExist):
            project.add.get_result(unknown)

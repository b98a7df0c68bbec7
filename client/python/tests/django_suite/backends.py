"""Backends of Howdah that replace Django's two backends in Django's own tests.

Django's dummy backend stores tasks and never runs them: its replacement enqueues jobs that no worker receives. Django's
immediate backend runs a task before `enqueue` returns: its replacement waits for the worker of this process.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Dict, List, Tuple

from django.db import connections
from django.tasks.base import Task, TaskResult
from django.tasks.exceptions import TaskResultDoesNotExist

import howdah
from howdah import v1
from howdah.django import HowdahBackend
from howdah.django.management.commands.howdah_worker import fresh_connections


class DummyBackend(HowdahBackend):
    """Replaces the dummy backend. Its list of results, which the tests read, comes from the database."""

    ids: ClassVar[List[str]] = []

    def clear(self) -> None:
        self.ids.clear()

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        result = super().enqueue(task, args, kwargs)
        self.ids.append(result.id)
        return result

    @property
    def results(self) -> List[TaskResult]:
        found = []
        for result_id in self.ids:
            try:
                found.append(self.get_result(result_id))
            except TaskResultDoesNotExist:
                continue  # The transaction of the task was rolled back.
        return found


class ImmediateBackend(HowdahBackend):
    """Replaces the immediate backend: waits until the task has run, and returns its result."""

    def task_type(self, queue_name: str) -> str:
        return f"immediate.{queue_name}"

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        client, _ = worker()
        performers["last"] = self
        result = super().enqueue(task, args, kwargs)
        # A call inside a transaction does not wait for the task, because no worker sees the job before the commit.
        if not connections[self.database].in_atomic_block:
            list(client.wait([int(result.id)], 30))
            result.refresh()
        return result


performers: Dict[str, ImmediateBackend] = {}


@functools.lru_cache
def worker() -> Tuple[howdah.Client, howdah.Worker]:
    """Returns a client and a started worker, which runs each task with the backend that enqueued last."""
    client = howdah.Client()
    # The task type allows one attempt, because Django's tests expect no retries.
    settings = v1.TaskTypeSettings(max_attempts=1)
    client.task_types.UpdateTaskType(v1.UpdateTaskTypeRequest(task_type="immediate.default", settings=settings))
    worker = howdah.Worker(client, middleware=[fresh_connections])

    @worker.task("immediate.default")
    def perform(payload: Dict[str, Any], job: howdah.Job) -> object:
        return performers["last"].perform(payload, job, "default")

    worker.start()
    return client, worker

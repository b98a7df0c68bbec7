"""Howdah in the place of Django's two backends, for Django's tests of these.

Its dummy stores tasks that nobody runs, and its immediate backend has run them when `enqueue` returns. So one of ours is
the backend as it is, without a worker, and the other waits for the worker of this process.
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
    """The tests look into the dummy's list of results. Here they come from the database."""

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
                continue  # Its transaction was rolled back.
        return found


class ImmediateBackend(HowdahBackend):
    """Returns results of tasks that have run."""

    def task_type(self, queue_name: str) -> str:
        return f"immediate.{queue_name}"

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        client, _ = worker()
        performers["last"] = self
        result = super().enqueue(task, args, kwargs)
        # Before the commit no worker can see it.
        if not connections[self.database].in_atomic_block:
            list(client.wait([int(result.id)], 30))
            result.refresh()
        return result


performers: Dict[str, ImmediateBackend] = {}


@functools.lru_cache
def worker() -> Tuple[howdah.Client, howdah.Worker]:
    """It has started, and runs each task by the backend that enqueued last."""
    client = howdah.Client()
    # Django knows no second attempt.
    settings = v1.TaskTypeSettings(max_attempts=1)
    client.task_types.UpdateTaskType(v1.UpdateTaskTypeRequest(task_type="immediate.default", settings=settings))
    worker = howdah.Worker(client, middleware=[fresh_connections])

    @worker.task("immediate.default")
    def perform(payload: Dict[str, Any], job: howdah.Job) -> object:
        return performers["last"].perform(payload, job, "default")

    worker.start()
    return client, worker

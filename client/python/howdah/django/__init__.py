"""Howdah as a backend of Django's tasks (``django.tasks``, Django 6.0 and later).

``task.enqueue()`` calls the SQL function ``howdah.enqueue`` on Django's own connection, in the transaction of the
request. A rollback also removes the job. ``manage.py howdah_worker`` runs the tasks.

::

    INSTALLED_APPS = [..., "howdah.django"]
    TASKS = {"default": {"BACKEND": "howdah.django.HowdahBackend", "QUEUES": ["default", "mail"], "OPTIONS": {}}}

All options have defaults:

- ``database``: the alias of the database with Howdah's schema. Default: ``default``.
- ``schema``: the name of the schema. Default: ``howdah``.
- ``task_type``: the task type of a queue. Default: ``django.{queue}``.
- ``max_attempts``: the maximum number of attempts of a job. Default: the task type's setting, or else 10.
"""

from __future__ import annotations

import json
from datetime import datetime
from traceback import format_exception
from typing import Any, Dict, List, Optional, Tuple

from django.db import connections
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
from django.tasks.exceptions import TaskResultDoesNotExist
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.utils import timezone
from django.utils.json import normalize_json
from django.utils.module_loading import import_string

from ..handler import Job
from ..outcome import Outcome, Retry

_STATUS = {
    "ready": TaskResultStatus.READY,
    "scheduled": TaskResultStatus.READY,
    "waiting": TaskResultStatus.READY,
    "leased": TaskResultStatus.RUNNING,
    "succeeded": TaskResultStatus.SUCCESSFUL,
}


class HowdahBackend(BaseTaskBackend):
    """A task backend that enqueues in the open transaction of Django's connection."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.database = self.options.get("database", "default")
        self.schema = connections[self.database].ops.quote_name(self.options.get("schema", "howdah"))

    def task_type(self, queue_name: str) -> str:
        pattern: str = self.options.get("task_type", "django.{queue}")
        return pattern.format(queue=queue_name)

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        self.validate_task(task)
        payload = {"task": task.module_path, "args": normalize_json(list(args)), "kwargs": normalize_json(kwargs)}
        run_at = task.run_after
        if run_at is not None and timezone.is_naive(run_at):
            run_at = timezone.make_aware(run_at)
        # The sign of the priority changes, because Howdah runs lower numbers first and Django runs higher numbers
        # first.
        values = (self.task_type(task.queue_name), json.dumps(payload), -task.priority, run_at)
        with connections[self.database].cursor() as cursor:
            cursor.execute(
                f"SELECT {self.schema}.enqueue(%s::varchar, %s::jsonb, priority => %s, run_at => %s::timestamptz,"
                " max_attempts => %s::integer), now()",
                (*values, self.options.get("max_attempts")),
            )
            job_id, now = cursor.fetchone()
        result = self._result(task, str(job_id), payload, TaskResultStatus.READY, (now, None, None))
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        try:
            job_id = int(result_id)
        except ValueError:
            raise TaskResultDoesNotExist(result_id) from None
        with connections[self.database].cursor() as cursor:
            cursor.execute(
                "SELECT convert_from(payload, 'UTF8'), state, priority, attempt, created, run_at, leased_at, finished,"
                " failures::text, convert_from(result, 'UTF8'), task_type"
                f" FROM {self.schema}.job WHERE id = %s",
                (job_id,),
            )
            row = cursor.fetchone()
        if row is None:
            raise TaskResultDoesNotExist(result_id)
        text, state, priority, attempt, created, run_at, leased_at, finished, failures, returned, task_type = row
        payload, queue = json.loads(text), self._queue_of(task_type)
        if queue is None:
            raise TaskResultDoesNotExist(result_id)
        failed = [_error(failure["error"]) for failure in json.loads(failures or "[]")]
        # After a failure, the job's run_at is the time of the next attempt, so the task's run_after is no longer known.
        run_after = run_at if not failed else None
        task = _task(payload).using(priority=-priority, queue_name=queue, backend=self.alias, run_after=run_after)
        status = _STATUS.get(state, TaskResultStatus.FAILED)
        result = self._result(task, result_id, payload, status, (created, leased_at, finished), attempt, failed)
        if status == TaskResultStatus.SUCCESSFUL:
            object.__setattr__(result, "_return_value", json.loads(returned) if returned else None)
        return result

    def _queue_of(self, task_type: str) -> Optional[str]:
        # Returns None if the task type is not one of this backend's queues, for example after a fallback.
        before, _, after = self.task_type("\0").partition("\0")
        # If the backend's setting QUEUES is empty, a queue may have any name.
        named = self.queues or [task_type[len(before) : len(task_type) - len(after)]]
        return next((queue for queue in named if queue and self.task_type(queue) == task_type), None)

    def _result(
        self,
        task: Task,
        result_id: str,
        payload: Dict[str, Any],
        status: TaskResultStatus,
        times: Tuple[datetime, Optional[datetime], Optional[datetime]],
        attempt: int = 0,
        errors: Optional[List[TaskError]] = None,
    ) -> TaskResult:
        enqueued_at, last_attempted_at, finished_at = times
        return TaskResult(
            task=task,
            id=result_id,
            status=status,
            enqueued_at=enqueued_at,
            started_at=last_attempted_at,
            last_attempted_at=last_attempted_at,
            finished_at=finished_at,
            args=payload["args"],
            kwargs=payload["kwargs"],
            backend=self.alias,
            errors=errors or [],
            # One placeholder per attempt, because Howdah does not keep session ids and Django only counts the entries.
            worker_ids=[f"attempt-{number + 1}" for number in range(attempt)],
        )

    def perform(self, payload: Dict[str, Any], job: Job, queue: str) -> object:
        """Runs a task as a worker's handler. Raises `Retry` if the task fails, with an error that `_error` reads."""
        task = _task(payload).using(queue_name=queue, backend=self.alias)
        times = (job.create_time, timezone.now(), None)
        result = self._result(task, str(job.id), payload, TaskResultStatus.RUNNING, times, job.attempt)
        task_started.send(type(self), task_result=result)
        try:
            context = (TaskContext(task_result=result),) if task.takes_context else ()
            returned = normalize_json(task.call(*context, *payload["args"], **payload["kwargs"]))
        except Outcome:
            raise
        except (Exception, SystemExit) as error:
            kept = f"{type(error).__module__}.{type(error).__qualname__}: {error}\n{''.join(format_exception(error))}"
            result.errors.append(_error(kept))
            self._finish(result, TaskResultStatus.FAILED)
            raise Retry(kept) from error
        object.__setattr__(result, "_return_value", returned)
        self._finish(result, TaskResultStatus.SUCCESSFUL)
        return returned

    def _finish(self, result: TaskResult, status: TaskResultStatus) -> None:
        object.__setattr__(result, "status", status)
        object.__setattr__(result, "finished_at", timezone.now())
        task_finished.send(type(self), task_result=result)


def _task(payload: Dict[str, Any]) -> Task:
    task = import_string(payload["task"])
    if not isinstance(task, Task):
        raise TypeError(f"{payload['task']} is not a task")
    return task


def _error(text: str) -> TaskError:
    """Converts the error of an attempt, from `perform` or from the broker (such as a timeout)."""
    first, _, traceback = text.partition("\n")
    path = first.partition(":")[0]
    is_path = "." in path and path.replace(".", "").replace("_", "").isalnum()
    return TaskError(exception_class_path=path if is_path else "builtins.RuntimeError", traceback=traceback or text)

"""A Django project for the tests of the backend: settings, tasks and manage.py in one module."""

from __future__ import annotations

import os
import sys
from typing import Any

import django
from database import settings_of
from django.conf import settings


def configure() -> None:
    backend = "howdah.django.HowdahBackend"
    tasks = {
        "default": {"BACKEND": backend, "QUEUES": ["default", "other"]},
        "once": {"BACKEND": backend, "QUEUES": ["once"], "OPTIONS": {"max_attempts": 1}},
    }
    databases = {"default": settings_of(os.environ["HOWDAH_TEST_POSTGRES"])}
    settings.configure(INSTALLED_APPS=["howdah.django"], DATABASES=databases, TASKS=tasks, USE_TZ=True)
    django.setup()


if not settings.configured:
    configure()

from django.tasks import TaskContext, task  # noqa: E402


@task
def add(a: int, b: int = 1) -> int:
    return a + b


@task(queue_name="other", takes_context=True)
def context(context: TaskContext, name: str) -> Any:
    return [name, context.attempt, context.task_result.id]


@task(backend="once", queue_name="once")
def fails() -> None:
    raise ValueError("never")


@task
async def later(text: str) -> str:
    return text.upper()


if __name__ == "__main__":
    from django.core.management import execute_from_command_line

    # Makes `import project` return this module, so that the tasks are not defined a second time.
    sys.modules["project"] = sys.modules["__main__"]
    execute_from_command_line(sys.argv)

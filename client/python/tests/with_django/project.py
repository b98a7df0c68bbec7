"""A project with tasks, for the tests of the backend: settings, tasks, manage.py in one."""

from __future__ import annotations

import os
import sys
from typing import Any
from urllib.parse import parse_qs, urlsplit

import django
from django.conf import settings


def configure() -> None:
    url = urlsplit(os.environ["HOWDAH_TEST_POSTGRES"])
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.path.lstrip("/"),
        "USER": url.username,
        "HOST": parse_qs(url.query)["host"][0],
    }
    backend = "howdah.django.HowdahBackend"
    tasks = {
        "default": {"BACKEND": backend, "QUEUES": ["default", "other"]},
        "once": {"BACKEND": backend, "QUEUES": ["once"], "OPTIONS": {"max_attempts": 1}},
    }
    settings.configure(INSTALLED_APPS=["howdah.django"], DATABASES={"default": database}, TASKS=tasks, USE_TZ=True)
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

    # The tasks are those of the module, not of the program.
    sys.modules["project"] = sys.modules["__main__"]
    execute_from_command_line(sys.argv)

"""Runs the Python examples of docs/concepts and of the repository's README.md.

The blocks of a page are one program, with ``howdah``, a ``client`` and a ``worker`` given. Lines in a comment
``<!-- python`` … ``-->`` are hidden from readers and run as well. A worker starts after the block that adds its handlers.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

import howdah
from howdah import v1
from howdah.testing import Broker

ROOT = Path(__file__).parents[3]
PAGES = [page for page in sorted((ROOT / "docs/concepts").glob("*.md")) if "```python" in page.read_text("utf-8")]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker for these pages alone: other examples leave jobs and settings of the same task types."""
    with Broker() as broker:
        yield broker


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Restores the log level, which examples set to hide errors that they raise."""
    logger = logging.getLogger("howdah")
    level = logger.level
    yield
    logger.setLevel(level)


def blocks(page: Path) -> List[str]:
    return re.findall(r"^(?:```|<!-- )python\n(.*?)^(?:```|-->)$", page.read_text("utf-8"), re.M | re.S)


def until_done(client: howdah.Client, task_type: str) -> None:
    """Waits until no job of the type is ready, waits for another or runs."""
    deadline = time.monotonic() + 60
    request = v1.ListTaskTypesRequest(task_type=task_type)
    while True:
        counts = client.task_types.ListTaskTypes(request).task_types[0].counts
        if counts.ready + counts.waiting + counts.leased == 0:
            return
        assert time.monotonic() < deadline, f"{task_type}: {counts}"
        time.sleep(0.05)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run_as_written(page: Path, client: howdah.Client) -> None:
    workers = [howdah.Worker(client)]
    given: Dict[str, Any] = {"howdah": howdah, "client": client, "worker": workers[0]}
    for number, block in enumerate(blocks(page), 1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), given)
        if given["worker"]._handlers:
            given["worker"].start()
            given["worker"] = howdah.Worker(client)
            workers.append(given["worker"])
    for task_type in [name for worker in workers for name in worker._handlers]:
        done = client.enqueue(task_type, "1", key="one", max_attempts=1)
        list(client.wait([done.id], timeout=60))
        until_done(client, task_type)
        # A page shows each error that its handlers raise.
        errors = client.jobs.ListErrorGroups(v1.ListErrorGroupsRequest(task_type=task_type))
        for group in errors.groups:
            assert group.error_group.split(" at ")[0] in page.read_text("utf-8")
    for worker in workers[:-1]:
        worker.stop()
        worker.join(timeout=30)


def test_the_worker_of_the_readme_runs_as_written(broker: Broker, client: howdah.Client, tmp_path: Path) -> None:
    path = tmp_path / "worker.py"
    [block] = blocks(ROOT / "README.md")
    path.write_text(block)
    environment = {**os.environ, "HOWDAH_SERVER": broker.address, "PYTHONUNBUFFERED": "1"}
    worker = subprocess.Popen([sys.executable, str(path)], env=environment, stdout=subprocess.PIPE, text=True)
    done = client.enqueue("email.send", {"to": "ann@example.com"})
    assert [job.state for job in client.wait([done.id])] == [v1.JOB_STATE_SUCCEEDED]
    worker.send_signal(signal.SIGTERM)
    output, _ = worker.communicate(timeout=30)
    assert (worker.returncode, output) == (0, "to ann@example.com, attempt 1\n")

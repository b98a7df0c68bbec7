"""Handlers that run in processes, against a broker."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

import howdah
from howdah import v1
from howdah.testing import Broker


def work(order: Dict[str, Any], job: howdah.Job) -> Any:
    """Does what its payload says. Other processes import it from this module."""
    kind = order["do"]
    if kind == "fail":
        raise KeyError(order["text"])
    if kind == "fatal":
        raise howdah.Fatal("never")
    if kind == "exit":
        os._exit(3)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "spin":
        if "started" in order:
            Path(order["started"]).write_text("started")
        while True:
            pass
    if kind == "wait":
        Path(order["started"]).write_text("started")
        assert job.cancelled.wait(20)
        Path(order["ended"]).write_text(job.cancel_reason)
    if kind == "give back":
        Path(order["started"]).write_text("started")
        assert job.cancelled.wait(20)
        job.raise_if_cancelled()
    if kind == "report":
        job.progress(0.5, "half", checkpoint="kept")
        job.extend(60)
    return {"process": os.getpid(), "attempt": job.attempt}


async def on_the_loop(payload: Any) -> None:
    pass


@pytest.fixture
def worker(client: howdah.Client, task_type: str) -> Iterator[howdah.Worker]:
    worker = howdah.Worker(client, concurrency=2, max_jobs_per_process=2)
    worker.task(task_type, executor="process", concurrency=1)(work)
    worker.task(f"{task_type}.hard", executor="process", hard_timeout=0.2)(work)
    with worker:
        yield worker


def run(client: howdah.Client, task_type: str, order: Dict[str, Any], **options: Any) -> v1.Job:
    [job] = client.wait([client.enqueue(task_type, order, **{"max_attempts": 1, **options}).id], 60)
    return job


def test_a_process_runs_jobs_and_is_replaced_after_some(
    client: howdah.Client, task_type: str, worker: howdah.Worker
) -> None:
    done: List[Any] = [howdah.decode(run(client, task_type, {"do": "nothing"}).result) for _ in range(3)]
    first, second, third = (each["process"] for each in done)
    assert first == second != third and os.getpid() not in (first, third)


def test_progress_checkpoints_and_extensions_come_from_a_process(
    client: howdah.Client, task_type: str, worker: howdah.Worker
) -> None:
    job = run(client, task_type, {"do": "report"}, timeout=30)
    assert (job.state, job.progress.text, job.progress.fraction) == (v1.JOB_STATE_SUCCEEDED, "half", 0.5)


def test_a_failure_in_a_process_keeps_its_traceback_and_is_logged_once(
    client: howdah.Client, task_type: str, worker: howdah.Worker, caplog: pytest.LogCaptureFixture
) -> None:
    [failure] = run(client, task_type, {"do": "fail", "text": "x"}).failures
    assert (failure.error, failure.place) == ("KeyError: 'x'", f"{__name__}.work")
    assert 'raise KeyError(order["text"])' in failure.details and "howdah/handler" not in failure.details
    fatal = run(client, task_type, {"do": "fatal"}, max_attempts=5)
    assert (fatal.state, fatal.failures[0].error) == (v1.JOB_STATE_DEAD, "never")
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(records) == 2 and 'raise KeyError(order["text"])' in caplog.text


def test_a_process_that_crashes_fails_its_attempt_and_is_replaced(
    client: howdah.Client, task_type: str, worker: howdah.Worker
) -> None:
    errors = [run(client, task_type, {"do": kind}).failures[0].error for kind in ("exit", "kill")]
    assert errors == [
        "the process of the handler ended with status 3",
        "the process of the handler was killed by SIGKILL",
    ]
    assert run(client, task_type, {"do": "nothing"}).state == v1.JOB_STATE_SUCCEEDED


def test_a_handler_is_killed_after_its_hard_timeout(
    client: howdah.Client, task_type: str, worker: howdah.Worker
) -> None:
    [failure] = run(client, f"{task_type}.hard", {"do": "spin"}).failures
    assert failure.error == "the handler ran longer than its hard timeout of 0.2 s, so its process was killed"


def test_a_cancelled_job_reaches_its_process(
    client: howdah.Client, task_type: str, worker: howdah.Worker, tmp_path: Path
) -> None:
    started, ended = pipe(tmp_path / "started"), pipe(tmp_path / "ended")
    job = client.enqueue(task_type, {"do": "wait", "started": str(started), "ended": str(ended)})
    assert started.read_text() == "started"
    client.jobs.CancelJobs(v1.CancelJobsRequest(ids=[job.id]))
    assert ended.read_text() == "cancelled"
    assert run(client, task_type, {"do": "nothing"}).state == v1.JOB_STATE_SUCCEEDED


def test_a_handler_that_ignores_its_cancellation_is_killed(
    client: howdah.Client, task_type: str, worker: howdah.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("howdah.processes.KILL_AFTER", 0.1)
    run(client, task_type, {"do": "spin"}, timeout=1)
    # The type has one slot, which is free again.
    assert run(client, task_type, {"do": "nothing"}).state == v1.JOB_STATE_SUCCEEDED


def test_a_stop_reaches_a_process_that_gives_its_job_back(
    client: howdah.Client, task_type: str, tmp_path: Path
) -> None:
    worker = howdah.Worker(client, stop_timeout=0)
    worker.task(task_type, executor="process")(work)
    started = pipe(tmp_path / "started")
    with worker:
        job = client.enqueue(task_type, {"do": "give back", "started": str(started)})
        assert started.read_text() == "started"
    report = worker.join()
    assert (report.released, report.failed) == (1, 0)
    assert (client.get(job.id).state, client.get(job.id).attempt) == (v1.JOB_STATE_READY, 0)


def test_a_stop_kills_processes_and_releases_their_jobs(client: howdah.Client, task_type: str, tmp_path: Path) -> None:
    worker = howdah.Worker(client, stop_timeout=0)
    worker.task(task_type, executor="process")(work)
    started = pipe(tmp_path / "started")
    with worker:
        job = client.enqueue(task_type, {"do": "spin", "started": str(started)})
        assert started.read_text() == "started"
    report = worker.join()
    assert (report.released, report.unconfirmed) == (1, 0)
    assert client.jobs.GetJob(v1.GetJobRequest(id=job.id)).job.state == v1.JOB_STATE_READY


PROGRAM = """
import subprocess, sys, howdah

worker = howdah.Worker()


@worker.task(sys.argv[1], executor="process")
def hold(path: str) -> None:
    with open(path, "w") as pipe:
        # The other program has the pipe open, too.
        with subprocess.Popen(["sleep", "1000"], stdout=pipe):
            print("started", file=pipe, flush=True)


if __name__ == "__main__":
    with howdah.Client() as client:
        client.enqueue(sys.argv[1], sys.argv[2])
    worker.start()
    sys.stdin.read()
"""


@pytest.mark.parametrize("kill", [False, True])
def test_no_process_outlives_a_program_that_does_not_stop_its_worker(
    kill: bool, broker: Broker, task_type: str, tmp_path: Path
) -> None:
    program, started = tmp_path / "program.py", pipe(tmp_path / "started")
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), task_type, str(started)]
    environment = {**os.environ, "HOWDAH_SERVER": broker.address}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as running:
        with started.open() as reader:
            assert reader.readline() == "started\n"
            assert running.stdin is not None
            running.kill() if kill else running.stdin.close()
            assert reader.read() == "", "the pipe ends when all processes that have it open have ended"
        assert running.wait(60) == (-signal.SIGKILL if kill else 0)


def test_a_handler_that_no_process_can_import_is_refused(client: howdah.Client, task_type: str) -> None:
    worker = howdah.Worker(client)
    with pytest.raises(TypeError, match="cannot run in a process"):
        worker.task(task_type, executor="process")(on_the_loop)
    with pytest.raises(ValueError, match="needs executor='process'"):
        worker.task(task_type, hard_timeout=1)(work)
    worker.task(task_type, executor="process")(lambda payload: None)
    worker.start()
    with pytest.raises(TypeError, match="at the top level of a module"):
        worker.join(20)


def pipe(path: Path) -> Path:
    """Creates a named pipe. Reading it waits until the handler has written."""
    os.mkfifo(path)
    return path

"""The results of dependencies, against a broker."""

from __future__ import annotations

from typing import Dict, List

import howdah
from howdah import v1
from howdah.testing import make_job, perform


def enqueue_parts(client: howdah.Client, task_type: str, sizes: List[int]) -> int:
    """Enqueues parts with results of these sizes, and a job after them, whose id it returns."""
    names = [f"part {n}" for n in range(len(sizes))]
    jobs = [howdah.new_job(f"{task_type}.part", size, local_name=name) for size, name in zip(sizes, names)]
    join = howdah.new_job(f"{task_type}.join", after_local=names)
    return client.enqueue_many([*jobs, join])[-1].id


def joined(client: howdah.Client, task_type: str, sizes: List[int], is_async: bool) -> List[int]:
    """Runs parts and the job after them. Returns the sizes of the results that the job gets."""
    worker = howdah.Worker(client, concurrency=4)

    @worker.task(f"{task_type}.part")
    def part(size: int) -> bytes:
        return b"x" * size

    if is_async:

        @worker.task(f"{task_type}.join")
        async def join_async(_: None, job: howdah.AsyncJob) -> List[int]:
            return [len(result.result) async for result in job.results()]

    else:

        @worker.task(f"{task_type}.join")
        def join(_: None, job: howdah.Job) -> List[int]:
            assert all(result.state == v1.JOB_STATE_SUCCEEDED for result in job.results())
            return [len(result.result) for result in job.results()]

    with worker:
        done = next(iter(client.wait([enqueue_parts(client, task_type, sizes)], 30)))
    sizes_seen: List[int] = howdah.decode(done.result)
    return sizes_seen


def test_a_job_gets_the_results_of_its_dependencies_in_order(client: howdah.Client, task_type: str) -> None:
    assert joined(client, task_type, [3, 0, 5], is_async=False) == [3, 0, 5]


def test_results_that_did_not_come_with_the_job_are_fetched(client: howdah.Client, task_type: str) -> None:
    # 70,000 bytes are too large for the message. The results before and after them come with the job.
    assert joined(client, task_type, [3, 70_000, 5], is_async=False) == [3, 70_000, 5]
    # The results do not fit into one page.
    sizes = [900_000] * 4 + [1]
    assert joined(client, f"{task_type}.async", sizes, is_async=True) == sizes


def test_a_job_without_dependencies_has_no_results(client: howdah.Client, task_type: str) -> None:
    worker = howdah.Worker(client)

    @worker.task(task_type)
    def alone(_: None, job: howdah.Job) -> int:
        return len(list(job.results()))

    with worker:
        done = next(iter(client.wait([client.enqueue(task_type).id], 30)))
    assert howdah.decode(done.result) == 0


def test_a_handler_gets_the_results_that_a_test_gives() -> None:
    def join(_: None, job: howdah.Job) -> Dict[str, int]:
        return {str(result.id): howdah.decode(result.result) for result in job.results()}

    async def join_async(_: None, job: howdah.AsyncJob) -> Dict[str, int]:
        return {str(result.id): howdah.decode(result.result) async for result in job.results()}

    after = [v1.DependencyResult(id=7, result=b"1"), v1.DependencyResult(id=8, result=b"2")]
    assert perform(join, after=after) == perform(join_async, after=after) == {"7": 1, "8": 2}
    assert list(make_job(after=after).after) == after

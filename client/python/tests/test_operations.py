"""Operations on jobs, schedules and task types, against a broker."""

from __future__ import annotations

import urllib.request
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Dict, List, Tuple

import grpc
import pytest

import howdah
from howdah import v1
from howdah.testing import Broker


def kill(client: howdah.Client, task_type: str, *errors: str) -> list[int]:
    """Enqueues a job for each error, which it dies of."""
    worker = howdah.Worker(client)

    @worker.task(task_type)
    def handle(error: str) -> None:
        raise howdah.Fatal(error)

    ids = [client.enqueue(task_type, error).id for error in errors]
    with worker:
        list(client.wait(ids, "30s"))
    return ids


def test_a_broker_for_tests_has_an_http_port_and_runs_a_delayed_job_when_it_is_told_to(
    broker: Broker, client: howdah.Client, task_type: str
) -> None:
    with urllib.request.urlopen(f"http://{broker.http}/healthz", timeout=30) as answer:
        assert answer.status == 200
    worker = howdah.Worker(client)
    worker.task(task_type)(lambda payload: "ran")
    delayed = client.enqueue(task_type, delay="3 days").id
    with worker:
        assert client.retry(delayed).ids == [delayed]
        assert [howdah.decode(job.result) for job in client.wait([delayed], "30s")] == ["ran"]


def test_a_broker_for_tests_runs_a_delayed_job_when_its_clock_advances() -> None:
    worked: list[str] = []
    with Broker() as broker, howdah.Client(broker.address) as client:
        worker = howdah.Worker(client)
        worker.task("remind")(worked.append)
        delayed = client.enqueue("remind", "ann", delay="3 days").id
        with worker:
            before = datetime.now(timezone.utc)
            assert broker.advance("3 days") >= before + timedelta(days=3)
            list(client.wait([delayed], "30s"))
        with pytest.raises(ValueError, match="duration"):
            broker.advance("soon")
        with pytest.raises(howdah.HowdahError, match="duration is"):
            broker.advance(0)
    assert worked == ["ann"]


def test_jobs_are_got_explained_searched_and_cancelled(client: howdah.Client, task_type: str) -> None:
    first, second, third = (client.enqueue(task_type, n, tags=["t"], headers={"n": str(n)}).id for n in range(3))
    assert howdah.decode(client.get(second).payload) == 1
    assert client.explain(first).reasons[0].kind == v1.REASON_KIND_NO_WORKER
    assert {job.id for job in client.search(task_type, tag="t")} == {first, second, third}
    lately = datetime.now(timezone.utc) - timedelta(hours=1)
    found = client.search(task_type, header=("n", "1"), state="ready", since=lately)
    assert [job.id for job in found] == [second]
    assert client.cancel(first, 1) == [first]
    assert set(client.cancel(task_type=task_type, state="ready")) == {second, third}
    assert client.cancel(task_type=task_type) == []
    with pytest.raises(ValueError, match="state: 'red' is not one of ready"):
        client.cancel(task_type=task_type, state="red")
    with pytest.raises(howdah.HowdahError) as caught:
        client.cancel()
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "condition",
    [
        {"tag": None},
        {"tag": ""},
        {"fair_key": ""},
        {"worker_id": None},
        {"created_before": None},
        {"attempts_at_most": None},
        {"error_group": ""},
        {"state": None},
        {"state": ""},
        {"state": 0},
        {"ids": []},
        {"task_type": None},
    ],
    ids=str,
)
def test_a_condition_without_a_value_changes_no_job(
    condition: Dict[str, Any], client: howdah.Client, task_type: str
) -> None:
    job = client.enqueue(task_type).id
    [name] = condition
    for call in (client.cancel, client.discard, client.retry):
        with pytest.raises(ValueError, match=rf"^{name} is (None|empty): leave the condition out$"):
            call(**{"task_type": task_type, **condition})
    assert client.get(job).state == v1.JOB_STATE_READY


@pytest.mark.parametrize(
    "condition", [{"key": None}, {"payload_text": ""}, {"limit_key": ""}, {"since": None}], ids=str
)
def test_a_search_refuses_a_condition_without_a_value(condition: Dict[str, Any], client: howdah.Client) -> None:
    [name] = condition
    with pytest.raises(ValueError, match=rf"^{name} is (None|empty): leave the condition out$"):
        list(client.search("t", **condition))


def test_the_conditions_of_a_bulk_operation_have_values() -> None:
    spec = howdah.fill(v1.BulkSpec(operation=v1.BULK_OPERATION_CANCEL), {"task_type": "t", "conditions": {"tag": "a"}})
    assert spec.conditions.tag == "a"
    for name, value in (("conditions", {"tag": None}), ("conditions", {}), ("error_group", "")):
        with pytest.raises(ValueError, match=f"^{name}.* is (None|empty): leave the condition out$"):
            howdah.fill(v1.BulkSpec(operation=v1.BULK_OPERATION_CANCEL), {"task_type": "t", name: value})


def test_options_that_contradict_each_other_are_refused(client: howdah.Client, task_type: str) -> None:
    later, template = datetime.now(timezone.utc) + timedelta(days=1), howdah.new_job(task_type)
    calls: List[Tuple[str, Callable[[], object]]] = [
        ("delay and run_at contradict each other: give one", lambda: client.enqueue("t", delay=1, run_at=later)),
        ("expire_at and expire_after contradict", lambda: client.enqueue("t", expire_at=later, expire_after=1)),
        ("delay and run_at contradict", lambda: client.retry(1, delay="1h", run_at=later)),
        ("delay and run_at contradict", lambda: client.rerun(1, delay="1h", run_at=later)),
        ("cron and period contradict", lambda: client.apply_schedule("s", template, cron="@daily", period="1h")),
        ("time_zone is for cron", lambda: client.apply_schedule("s", template, period="1h", time_zone="UTC")),
        ("key and payload_text contradict", lambda: list(client.search("t", key="k", payload_text="a"))),
        ("header: .* is not a pair of", lambda: list(client.search("t", header=("n",)))),  # type: ignore[arg-type]
    ]
    for text, call in calls:
        with pytest.raises(ValueError, match=f"^{text}"):
            call()
    with pytest.raises(howdah.HowdahError, match="token and token_file contradict each other: give one"):
        howdah.Client(token="a", token_file="b")


def test_a_finished_job_runs_again_as_a_new_job(client: howdah.Client, task_type: str) -> None:
    worker = howdah.Worker(client)
    worker.task(task_type)(lambda payload: payload)
    with worker:
        job = client.enqueue(task_type, "first").id
        list(client.wait([job], "30s"))
        [rerun] = client.rerun(job, payload="second")
        assert [howdah.decode(done.result) for done in client.wait([rerun.new_id], "30s")] == ["second"]


def test_dead_jobs_are_retried_and_discarded(client: howdah.Client, task_type: str) -> None:
    first, second, third = kill(client, task_type, "one", "two", "two")
    assert client.retry(first, payload="again", delay="1h") == howdah.Retried([first], [], [])
    job = client.get(first)
    assert job.state == v1.JOB_STATE_SCHEDULED and howdah.decode(job.payload) == "again"
    assert client.discard(second) == [second]
    groups = client.jobs.ListErrorGroups(v1.ListErrorGroupsRequest(task_type=task_type)).groups
    one, two = (next(each.error_group for each in groups if each.example_error == error) for error in ("one", "two"))
    assert client.retry(task_type=task_type, state="dead", error_group=one).ids == []
    assert client.retry(task_type=task_type, state="dead", error_group=two).ids == [third]


def test_a_schedule_is_applied_again_and_again(client: howdah.Client, task_type: str) -> None:
    template = howdah.new_job(task_type, 1)
    first = client.apply_schedule(task_type, template, cron="0 3 * * *", time_zone="Europe/Berlin", overlap="skip")
    waiting = client.apply_schedule(task_type, template, cron="0 3 * * *", overlap="one-waiting")
    assert (waiting.overlap, waiting.cron.time_zone) == (v1.OVERLAP_POLICY_ONE_WAITING, "UTC")
    assert (first.cron.time_zone, first.overlap, len(first.next_times)) == ("Europe/Berlin", v1.OVERLAP_POLICY_SKIP, 10)
    assert client.pause_schedule(task_type).paused
    again = client.apply_schedule(task_type, template, period="1h30m", jitter="5m")
    assert again.period.ToTimedelta() == timedelta(minutes=90) and again.paused, "an operator's pause is kept"
    assert not client.resume_schedule(task_type).paused
    run = client.run_schedule(task_type)
    assert run.is_new and client.get(run.id).task_type == task_type
    client.delete_schedule(task_type)
    with pytest.raises(howdah.HowdahError) as caught:
        client.pause_schedule(task_type)
    assert caught.value.code == grpc.StatusCode.NOT_FOUND


def test_the_settings_of_a_task_type_are_applied_and_its_pause_is_kept(client: howdah.Client, task_type: str) -> None:
    settings = client.apply_task_type(
        task_type,
        max_attempts=3,
        timeout="5m",
        retry_policy={"kind": "fixed", "initial_delay": "10s"},
        history="failures",
        rate={"per_second": 10, "burst": 2},
    )
    assert (settings.max_attempts, settings.history, settings.rate.burst) == (3, v1.HISTORY_MODE_FAILURES, 2)
    assert client.pause_task_type(task_type) == v1.TaskTypeSettings.FromString(
        settings.SerializeToString() + v1.TaskTypeSettings(paused=True).SerializeToString()
    )
    again = client.apply_task_type(task_type, max_attempts=5)
    assert (again.max_attempts, again.paused, again.HasField("timeout")) == (5, True, False)
    assert not client.resume_task_type(task_type).paused
    assert client.apply_task_type(task_type, paused=True).paused


async def test_asyncio_has_the_same_operations(broker: Broker, task_type: str) -> None:
    async with howdah.AsyncClient(broker.address) as client:
        job = await client.enqueue(task_type, tags=["t"])
        assert [found.id async for found in client.search(task_type, tag="t")] == [job.id]
        assert await client.cancel(job.id) == [job.id]
        assert (await client.get(job.id)).state == v1.JOB_STATE_CANCELLED
        template = howdah.new_job(task_type)
        assert (await client.apply_schedule(task_type, template, period=timedelta(hours=1))).name == task_type
        await client.delete_schedule(task_type)
    names = {name for name in vars(howdah.AsyncClient.__mro__[1]) if not name.startswith("_")}
    assert names == {name for name in vars(howdah.Client.__mro__[1]) if not name.startswith("_")}

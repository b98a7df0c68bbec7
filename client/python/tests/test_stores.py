"""A client for one store, against a broker with two stores."""

from __future__ import annotations

import contextlib
from typing import Any, AsyncIterator, Iterator

import grpc
import grpc.aio
import pytest

import howdah
from howdah import testing, v1

# Job ids begin with the number of their store: 0 for store1, 1 for store2.
PER_STORE = 10**14


@pytest.fixture(scope="module")
def stores() -> Iterator[testing.Broker]:
    with testing.Broker("--stores=2") as broker:
        assert list(broker.stores) == ["store1", "store2"]
        yield broker


@pytest.fixture
def client(stores: testing.Broker) -> Iterator[howdah.Client]:
    with howdah.Client(stores.address) as client:
        yield client


def listed(client: howdah.Client, task_type: str) -> list[int]:
    return [job.id for job in client.jobs.ListJobs(v1.ListJobsRequest(task_type=task_type, page_size=10)).jobs]


def test_jobs_go_to_the_store_that_the_client_names(client: howdah.Client, task_type: str) -> None:
    here, there = client.in_store("store1"), client.in_store("store2")
    first, second = here.enqueue(task_type).id, there.enqueue(task_type).id
    with there.producer() as producer:
        third = producer.submit(task_type).result().id
    assert [job // PER_STORE for job in (first, second, third)] == [0, 1, 1]
    # A client for one store lists the jobs of that store; the original client lists the jobs of all stores.
    assert listed(here, task_type) == [first]
    assert sorted(listed(there, task_type)) == [second, third]
    assert sorted(listed(client, task_type)) == [first, second, third]


async def test_clients_for_asyncio_name_a_store_too(stores: testing.Broker, task_type: str) -> None:
    async with howdah.AsyncClient(stores.address) as client:
        here, there = client.in_store("store1"), client.in_store("store2")
        ids = {(await each.enqueue(task_type)).id for each in (here, there)}
        assert {job // PER_STORE for job in ids} == {0, 1}
        # The clients for the stores use the same connections as the original client.
        assert here.connection.brokers is client.connection.brokers
        # A worker gets jobs from all stores, unless its client is for one store.
        worker = howdah.Worker(client)
        worker.task(task_type)(lambda payload: payload)
        with worker:
            assert {job.id async for job in client.wait(ids, 30)} == ids


@contextlib.asynccontextmanager
async def served(service: str, **calls: Any) -> AsyncIterator[howdah.AsyncClient]:
    """A client of a fake broker that implements only these calls."""
    handlers: dict[str, Any] = {name: grpc.unary_unary_rpc_method_handler(call) for name, call in calls.items()}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"howdah.v1.{service}", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with howdah.AsyncClient(f"127.0.0.1:{port}", request_timeout=100) as client:
            yield client
    finally:
        await server.stop(None)


async def test_a_pull_may_wait_for_as_long_as_its_caller_does() -> None:
    left = []

    async def pull_jobs(request: bytes, context: Any) -> bytes:
        left.append(context.time_remaining())
        return b""

    async with served("WorkerService", PullJobs=pull_jobs) as client:
        await client.workers.PullJobs(v1.PullJobsRequest(task_types=["t"]))
    # The timeout is up to a second longer, because gRPC rounds a deadline up to a whole second.
    assert 60 < left[0] <= 101


async def test_stores_that_an_answer_leaves_out_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def list_jobs(request: bytes, context: Any) -> bytes:
        await context.send_initial_metadata((("howdah-unanswered-stores", "mail,news"),))
        return b""

    async with served("JobService", ListJobs=list_jobs) as client:
        await client.jobs.ListJobs(v1.ListJobsRequest(task_type="t"))
    (record,) = [each for each in caplog.records if each.name == "howdah"]
    assert record.levelname == "WARNING"
    assert "these stores did not answer: mail,news" in record.getMessage()


def test_a_store_that_is_not_there_is_refused_with_the_names_of_those_that_are(client: howdah.Client) -> None:
    with pytest.raises(howdah.HowdahError) as caught:
        client.in_store("post").enqueue("a")
    assert (caught.value.code, caught.value.field) == (grpc.StatusCode.INVALID_ARGUMENT, "howdah-store")
    assert caught.value.message == 'howdah-store is "post"; this broker serves store1, store2'


@pytest.mark.parametrize("name", ["mäil", "a\nb"])
def test_what_cannot_be_the_name_of_a_store_is_refused_at_once(name: str) -> None:
    for client in (howdah.Client("127.0.0.1:1"), howdah.AsyncClient("127.0.0.1:1")):
        with pytest.raises(howdah.HowdahError, match="is not the name of a store") as caught:
            client.in_store(name)
        assert (caught.value.code, caught.value.field) == (grpc.StatusCode.INVALID_ARGUMENT, "store")


def test_a_recording_client_records_what_goes_to_a_store() -> None:
    client = testing.RecordingClient()
    client.in_store("mail").enqueue("email.send", 1)
    testing.assert_enqueued(client, "email.send", 1)

from __future__ import annotations

import uuid
from typing import Iterator

import pytest

import howdah
from howdah.testing import Broker


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """One broker for all tests. Each test uses separate task types."""
    with Broker() as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[howdah.Client]:
    with howdah.Client(broker.address) as client:
        yield client


@pytest.fixture
def task_type() -> str:
    return f"test.{uuid.uuid4().hex}"

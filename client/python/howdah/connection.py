"""Calls to one or more brokers, with deadlines and retries."""

from __future__ import annotations

import asyncio
import copy
import logging
import random
import secrets
import time
from dataclasses import dataclass
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, Optional, Tuple

import grpc
import grpc.aio

from . import v1
from .broker import Addresses, Broker, ClientOptions, Token, from_environment
from .errors import HowdahError, deadline, invalid

log = logging.getLogger("howdah")
# A broker that cannot reach Postgres answers within 15 s.
LONGEST_TRY = 16.0
# How long a call waits for a broker that it does not use.
SOON = 0.5
# A repeated call would lease more jobs, or make more tokens, than its caller gets.
NOT_REPEATED = {"/howdah.v1.WorkerService/PullJobs", "/howdah.v1.AccessService/CreateToken"}


class Backoff:
    """Doubles from 50 ms to 5 s. Half of each pause is random, so that clients do not come back together."""

    def __init__(self) -> None:
        self.failures = 0

    def next(self) -> float:
        self.failures += 1
        return min(0.025 * 2.0 ** min(self.failures, 10), 5.0) * random.uniform(0.5, 1.0)


def new_request_key() -> str:
    """A unique key: the time, so that keys of the same minute are neighbours in the index, and 80 random bits."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def _note_unanswered(path: str, metadata: Any) -> None:
    """Logs which stores an answer leaves out: nobody has to guess whether a list is complete."""
    for key, stores in metadata:
        if key == "howdah-unanswered-stores":
            log.warning(
                "%s: these stores did not answer: %s; what they have is missing, and a change has not reached them",
                path,
                stores,
            )


@dataclass
class _Shared:
    """What all connections to the same brokers know: the one in use, and the database of the first that answered."""

    current: int = 0
    database: Optional[Tuple[str, str]] = None


class Connection:
    """A channel for the generated stubs, made of all brokers: each call has a deadline, and is retried where it is safe.

    Stubs built on it send the credential and the store, go on to the next broker when one does not answer, and raise
    `HowdahError`.
    """

    def __init__(self, addresses: Addresses, options: ClientOptions) -> None:
        listed, self.options = from_environment(addresses, options)
        self.token = Token(self.options.pop("token", None), self.options.get("token_file"))
        self.brokers = [Broker(address, bool(self.token), self.options) for address in listed]
        self.request_timeout = self.options.get("request_timeout", 30.0)
        self.store = ""
        self._shared = _Shared()

    @property
    def current(self) -> int:
        """The broker that calls use now."""
        return self._shared.current

    def in_store(self, name: str) -> Connection:
        """The same brokers, channels and credential, for calls about this store."""
        # What metadata may have in it. Whether there is such a store, the broker says.
        if not all(" " <= character <= "~" for character in name):
            raise invalid("store", f"{name!r} is not the name of a store")
        other = copy.copy(self)
        other.store = name
        return other

    def metadata(self) -> Tuple[Tuple[str, str], ...]:
        """What goes with each call."""
        token = self.token.read() if self.token else ""
        credential = (("authorization", f"Bearer {token}"),) if token else ()
        return (*credential, ("howdah-store", self.store)) if self.store else credential

    def unary_unary(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        async def call(request: Any, timeout: Optional[float] = None, used: Any = None, **_: Any) -> Any:
            has_key = "request_key" in request.DESCRIPTOR.fields_by_name
            if has_key and not request.request_key:
                request = type(request).FromString(request.SerializeToString())
                request.request_key = new_request_key()

            async def send(broker: Broker, seconds: float) -> Any:
                if used is not None:
                    used(broker)
                method = broker.channel.unary_unary(path, request_serializer, response_deserializer)
                sent = method(request, timeout=seconds, metadata=self.metadata())
                answer = await sent
                _note_unanswered(path, await sent.initial_metadata())
                return answer

            return await self._repeat(path, send, timeout or self.request_timeout, has_key)

        return call

    def unary_stream(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        async def call(request: Any, timeout: Optional[float] = None, **_: Any) -> AsyncIterator[Any]:
            broker = self.brokers[self.current]
            method = broker.channel.unary_stream(path, request_serializer, response_deserializer)
            try:
                await self._check(broker)
                async for answer in method(request, timeout=timeout, metadata=self.metadata()):
                    yield answer
            except grpc.aio.AioRpcError as error:
                self.move_on_from(broker)
                raise HowdahError._of_rpc(error, broker.name) from None

        return call

    def stream_stream(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        def call(**options: Any) -> Any:
            method = self.brokers[self.current].channel.stream_stream(path, request_serializer, response_deserializer)
            return method(**{"metadata": self.metadata(), **options})

        return call

    async def _repeat(
        self, path: str, send: Callable[[Broker, float], Awaitable[Any]], timeout: float, has_key: bool
    ) -> Any:
        """Sends until an answer comes. With a request key until the deadline, otherwise to each broker once or twice."""
        until, backoff = time.monotonic() + timeout, Backoff()
        tries = 1 if path in NOT_REPEATED else len(self.brokers) + 1
        # A call that is made once has no other broker to leave time for, and PullJobs waits.
        longest = timeout if path in NOT_REPEATED else LONGEST_TRY
        refreshed, last = False, deadline(path.rpartition("/")[2], timeout)
        while True:
            remaining = until - time.monotonic()
            if remaining <= 0:
                raise last
            broker, token = self.brokers[self.current], self.token.read() if self.token else ""
            try:
                await self._check(broker)
                return await send(broker, min(remaining, longest))
            except grpc.aio.AioRpcError as rpc_error:
                error = last = HowdahError._of_rpc(rpc_error, broker.name)
            if error.code == grpc.StatusCode.UNAUTHENTICATED and not refreshed and self.token.read() != token:
                refreshed = True
                continue
            if not error._passing:
                raise error
            self.move_on_from(broker)
            tries -= 1
            pause = backoff.next()
            if (tries <= 0 and not has_key) or time.monotonic() + pause >= until:
                raise error
            # A restart of a broker is short; what lasts longer, people want to know.
            level = logging.WARNING if backoff.failures == 5 else logging.DEBUG
            log.log(level, "%s failed, trying again in %.2f s: %s", path, pause, error)
            await asyncio.sleep(pause)

    def move_on_from(self, broker: Broker) -> None:
        """Calls use the next broker, unless another call has moved on already."""
        if self.brokers[self.current] is broker:
            self._shared.current = (self.current + 1) % len(self.brokers)

    def at(self, index: int) -> Broker:
        return self.brokers[index % len(self.brokers)]

    async def dial(self, index: int) -> Tuple[Broker, grpc.aio.Channel]:
        """A new connection to one of the brokers, for a stream. It connects with the first call."""
        broker = self.at(index)
        try:
            await self._check(broker)
        except grpc.aio.AioRpcError as error:
            raise HowdahError._of_rpc(error, broker.name) from None
        return broker, broker.dial()

    async def connect(self) -> None:
        """Calls the first broker that answers."""
        for left in reversed(range(len(self.brokers))):
            broker = self.brokers[self.current]
            try:
                return await self._check(broker, always=True)
            except grpc.aio.AioRpcError as error:
                self.move_on_from(broker)
                if not left:
                    raise HowdahError._of_rpc(error, broker.name) from None

    async def _check(self, broker: Broker, always: bool = False) -> None:
        """Brokers of one client serve one database: in another one, jobs would wait for workers that never come."""
        if not broker.checked and (always or len(self.brokers) > 1):
            await self._check_one(broker)
            # The others, if they answer soon; otherwise before they are used.
            others = [asyncio.ensure_future(self._check_one(each)) for each in self.brokers if not each.checked]
            for other in others:
                other.add_done_callback(lambda task: task.cancelled() or task.exception())
            for other in (await asyncio.wait(others, timeout=SOON))[0] if others else ():
                if isinstance(other.exception(), HowdahError):
                    broker.checked = False
                    other.result()

    async def _check_one(self, broker: Broker) -> None:
        stub: Any = v1.SettingsServiceStub(broker.channel)
        timeout = self.options.get("connect_timeout", 5.0)
        call = stub.GetSettings(v1.GetSettingsRequest(), timeout=timeout, metadata=self.metadata())
        found: Dict[str, Any] = {}
        try:
            await call
            found.update(await call.initial_metadata())
        except grpc.aio.AioRpcError as error:
            if HowdahError._of_rpc(error)._passing:
                raise
            found.update(error.initial_metadata() or ())
            found.update(error.trailing_metadata() or ())
        database = found.get("howdah-database")
        if database is not None:
            first = self._shared.database = self._shared.database or (database, broker.name)
            if first[0] != database:
                hint = "give only brokers of one database to a client"
                raise invalid("address", f"{broker.name} serves another database than {first[1]}; {hint}")
        broker.checked = True

    async def close(self) -> None:
        await asyncio.gather(*(broker.close() for broker in self.brokers))

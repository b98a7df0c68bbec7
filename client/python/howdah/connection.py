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
from .errors import REQUEST_TOO_LARGE, HowdahError, deadline, invalid
from .messages import seconds

log = logging.getLogger("howdah")
# Longest time of one attempt of a call, in seconds. Then the next broker is tried. A broker that cannot reach Postgres
# answers within 15 s.
ATTEMPT_TIMEOUT = 16.0
# RESEND_LIMIT: with at most this many unanswered bytes, requests and outcomes of a broken stream are resent on the next
# stream. Otherwise they are resent in unary calls of at most SMALL_CALL bytes, because a proxy may limit the bytes of a
# stream.
RESEND_LIMIT, SMALL_CALL = 4 << 10, 64 << 10
# Longest wait time of a WaitJobs call, and the extra time for its answer, in seconds. A wait consists of many such
# calls, because proxies end calls after 15 s (Envoy) to a minute. Also, a lost broker is noticed only when a call gets
# no answer in time.
LONGEST_WAIT_CALL, WAIT_SLACK = 10.0, 2.0
# Seconds that a call waits for the other brokers to name their databases. The database of a slower broker is checked
# before the broker's first use.
CHECK_TIMEOUT = 0.5
# Methods that are not idempotent, so they are sent once. A repeated call would lease more jobs or create more tokens
# than the caller receives, or advance the clock twice.
NOT_IDEMPOTENT = {
    "/howdah.v1.WorkerService/PullJobs",
    "/howdah.v1.AccessService/CreateToken",
    "/howdah.v1.SettingsService/AdvanceClock",
}


class Backoff:
    """Exponential backoff from 50 ms to 5 s. Half of each pause is jitter, so that clients do not return together."""

    def __init__(self) -> None:
        self.failures = 0

    def next(self) -> float:
        self.failures += 1
        return min(0.025 * 2.0 ** min(self.failures, 10), 5.0) * random.uniform(0.5, 1.0)


def new_request_key() -> str:
    """Returns a unique request key.

    It begins with the time, so that keys of the same minute are neighbours in the index. 80 random bits follow.
    """
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def _note_unanswered(path: str, metadata: Any) -> None:
    """Logs the stores that did not answer a call, so that the caller knows when a list is incomplete."""
    for key, stores in metadata:
        if key == "howdah-unanswered-stores":
            log.warning(
                "%s: these stores did not answer: %s; the response lacks their data, and a change did not reach them",
                path,
                stores,
            )


@dataclass
class _Shared:
    """State shared by the connections of a client and of its clients for one store.

    It holds the index of the broker in use, and the id of the database with the broker that reported it first.
    """

    current: int = 0
    database: Optional[Tuple[str, str]] = None


class Connection:
    """A channel for the generated stubs that uses all brokers of a client.

    Each call has a deadline, and is retried if that is safe. It sends the credential and the store, uses the next
    broker if one does not answer, and raises `HowdahError`.
    """

    def __init__(self, addresses: Addresses, options: ClientOptions) -> None:
        listed, self.options = from_environment(addresses, options)
        self.token = Token(self.options.pop("token", None), self.options.get("token_file"))
        self.brokers = [Broker(address, bool(self.token), self.options) for address in listed]
        self.request_timeout = seconds(self.options.get("request_timeout", 30.0), "request_timeout")
        self.connect_timeout = seconds(self.options.get("connect_timeout", 5.0), "connect_timeout")
        self.store = ""
        self._shared = _Shared()

    @property
    def current(self) -> int:
        """Index of the broker that calls use now."""
        return self._shared.current

    def in_store(self, name: str) -> Connection:
        """Returns a connection for calls to one store, with the same brokers, channels and credential."""
        # The header `howdah-store` permits only printable ASCII, like all text metadata of gRPC. The broker checks
        # whether the store exists.
        if not all(" " <= character <= "~" for character in name):
            raise invalid("store", f"{name!r} is not the name of a store")
        other = copy.copy(self)
        other.store = name
        return other

    def metadata(self) -> Tuple[Tuple[str, str], ...]:
        """Returns the metadata of each call: the credential and the store."""
        token = self.token.read() if self.token else ""
        credential = (("authorization", f"Bearer {token}"),) if token else ()
        return (*credential, ("howdah-store", self.store)) if self.store else credential

    def unary_unary(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        async def call(request: Any, timeout: Optional[float] = None, used: Any = None, **_: Any) -> Any:
            has_key = "request_key" in request.DESCRIPTOR.fields_by_name
            if has_key and not request.request_key:
                request = type(request).FromString(request.SerializeToString())
                request.request_key = new_request_key()

            async def send(broker: Broker, limit: float) -> Any:
                if used is not None:
                    used(broker)
                method = broker.channel.unary_unary(path, request_serializer, response_deserializer)
                sent = method(request, timeout=limit, metadata=self.metadata())
                answer = await sent
                _note_unanswered(path, await sent.initial_metadata())
                return answer

            return await self._repeat(path, send, timeout or self.request_timeout, has_key)

        return call

    def unary_stream(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        async def call(request: Any, timeout: Optional[float] = None, **_: Any) -> AsyncIterator[Any]:
            broker, began = self.brokers[self.current], time.monotonic()
            method = broker.channel.unary_stream(path, request_serializer, response_deserializer)
            try:
                await self._check(broker, timeout=timeout)
                left = None if timeout is None else max(0.001, began + timeout - time.monotonic())
                async for answer in method(request, timeout=left, metadata=self.metadata()):
                    yield answer
            except grpc.aio.AioRpcError as rpc_error:
                error = HowdahError._from_rpc(rpc_error, broker.name)
                if error._retried and error.reason != "DEADLINE_EXCEEDED":
                    self.move_on_from(broker)
                raise error from None

        return call

    def stream_stream(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        def call(**options: Any) -> Any:
            method = self.brokers[self.current].channel.stream_stream(path, request_serializer, response_deserializer)
            return method(**{"metadata": self.metadata(), **options})

        return call

    async def _repeat(
        self, path: str, send: Callable[[Broker, float], Awaitable[Any]], timeout: float, has_key: bool
    ) -> Any:
        """Repeats a call after temporary errors until it is answered.

        A call with a request key is repeated until the deadline. A call in `NOT_IDEMPOTENT` is sent once. Any other
        call is sent to each broker once, and then once more.
        """
        until, backoff = time.monotonic() + timeout, Backoff()
        count, attempts, too_large, once = len(self.brokers), 0, 0, path in NOT_IDEMPOTENT
        refreshed, last = False, deadline(path.rpartition("/")[2], timeout)
        while True:
            began = time.monotonic()
            remaining = until - began
            if remaining <= 0:
                raise last
            broker, token = self.brokers[self.current], self.token.read() if self.token else ""
            # The brokers that were not tried in this round share the remaining time. A call that is not repeated gets
            # all of it, because no other broker will be tried, and because PullJobs may wait long.
            attempt_timeout = remaining if once else min(ATTEMPT_TIMEOUT, remaining / (count - attempts % count))
            sent = False
            try:
                await self._check(broker, timeout=attempt_timeout)
                sent = True
                return await send(broker, max(0.001, began + attempt_timeout - time.monotonic()))
            except grpc.aio.AioRpcError as rpc_error:
                error = last = HowdahError._from_rpc(rpc_error, broker.name)
            if error.code == grpc.StatusCode.UNAUTHENTICATED and not refreshed and self.token.read() != token:
                refreshed = True
                continue
            # A proxy refused the request because of its size. The path to another broker may have a higher limit. If
            # every path refuses the request, no broker has received it.
            too_large = too_large + 1 if error.reason == REQUEST_TOO_LARGE else 0
            if not error._retried and not 0 < too_large < count:
                raise error
            self.move_on_from(broker)
            attempts += 1
            pause = backoff.next()
            out_of_attempts = (sent or attempts >= count) if once else (attempts > count and not has_key)
            if out_of_attempts or time.monotonic() + pause >= until:
                raise error
            # The log level is WARNING only at the fifth failure, because a broker restarts in less time than five
            # failures take.
            level = logging.WARNING if backoff.failures == 5 else logging.DEBUG
            log.log(level, "%s failed, trying again in %.2f s: %s", path, pause, error)
            await asyncio.sleep(pause)

    def move_on_from(self, broker: Broker) -> None:
        """Switches to the next broker, unless another call has already switched."""
        if self.brokers[self.current] is broker:
            self._shared.current = (self.current + 1) % len(self.brokers)

    @property
    def answer_timeout(self) -> float:
        """Seconds that a producer's stream waits for an answer before it counts as broken."""
        return min(ATTEMPT_TIMEOUT, self.request_timeout / len(self.brokers))

    def at(self, index: int) -> Broker:
        return self.brokers[index % len(self.brokers)]

    async def dial(self, index: int) -> Tuple[Broker, grpc.aio.Channel]:
        """Returns a broker, and a new channel to it for a producer. The channel connects at its first call."""
        broker = await self._checked(index)
        return broker, broker.dial()

    async def dial_blocking(self, index: int) -> Tuple[Broker, grpc.Channel]:
        """Returns a broker, and a new channel to it without asyncio, for a worker's stream."""
        broker = await self._checked(index)
        return broker, broker.dial_blocking()

    async def _checked(self, index: int) -> Broker:
        broker = self.at(index)
        try:
            await self._check(broker)
        except grpc.aio.AioRpcError as error:
            raise HowdahError._from_rpc(error, broker.name) from None
        return broker

    async def connect(self) -> None:
        """Tries the brokers in order until one answers."""
        for left in reversed(range(len(self.brokers))):
            broker = self.brokers[self.current]
            try:
                return await self._check(broker, always=True)
            except grpc.aio.AioRpcError as error:
                self.move_on_from(broker)
                if not left:
                    raise HowdahError._from_rpc(error, broker.name) from None

    async def _check(self, broker: Broker, always: bool = False, timeout: Optional[float] = None) -> None:
        """Checks that all brokers of the client serve one database.

        With several databases, jobs could wait in a database without workers.
        """
        if not broker.checked and (always or len(self.brokers) > 1):
            await self._check_one(broker, timeout)
            # Also checks the databases of the other brokers. If a broker does not answer within CHECK_TIMEOUT, its
            # database is checked before the broker's first use.
            others = [asyncio.ensure_future(self._check_one(each)) for each in self.brokers if not each.checked]
            for other in others:
                other.add_done_callback(lambda task: task.cancelled() or task.exception())
            for other in (await asyncio.wait(others, timeout=CHECK_TIMEOUT))[0] if others else ():
                if isinstance(other.exception(), HowdahError):
                    broker.checked = False
                    other.result()

    async def _check_one(self, broker: Broker, timeout: Optional[float] = None) -> None:
        stub: Any = v1.SettingsServiceStub(broker.channel)
        limit = self.connect_timeout
        if timeout is not None:
            limit = max(0.001, min(limit, timeout))
        call = stub.GetSettings(v1.GetSettingsRequest(), timeout=limit, metadata=self.metadata())
        found: Dict[str, Any] = {}
        try:
            await call
            found.update(await call.initial_metadata())
        except grpc.aio.AioRpcError as error:
            if HowdahError._from_rpc(error)._retried:
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

"""The connection of a worker's stream.

Threads read and write the stream, so that the broker's heartbeat is answered even while a handler blocks the event
loop. gRPC's asyncio API runs on the event loop and could not do this.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from typing import Any, Callable, Deque, Iterator, Optional, Tuple, Union, cast

import grpc
import grpc.aio

from . import v1

_PONG = v1.WorkRequest(pong=v1.Pong())
_Item = Optional[Tuple[v1.WorkRequest, Optional["asyncio.Future[None]"]]]


class Link:
    """One ``Work`` stream and its channel. Its public methods must be called on the worker's event loop."""

    def __init__(self, channel: grpc.Channel, metadata: Tuple[Tuple[str, str], ...]) -> None:
        self._loop, self._channel = asyncio.get_running_loop(), channel
        self._requests: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        #: Messages received from the broker. The list needs no limit: the windows bound the number of jobs, and the
        #: number of unanswered requests bounds the answers.
        self._messages: Deque[Union[v1.WorkResponse, Exception]] = deque()
        self._arrived, self._ended = asyncio.Event(), False
        self._writing: Optional[asyncio.Future[None]] = None
        self._call = cast(Any, v1.WorkerServiceStub(channel)).Work(self._outgoing(), metadata=metadata)
        threading.Thread(target=self._receive, name="howdah-link", daemon=True).start()

    async def write(self, message: v1.WorkRequest) -> None:
        """Sends a message. Returns when the transport has taken it, so that outcomes accumulate while it is slow."""
        if self._ended:
            raise asyncio.InvalidStateError
        self._writing = self._loop.create_future()
        self._requests.put((message, self._writing))
        await self._writing

    async def read(self) -> Any:
        """Returns the next message, or ``grpc.aio.EOF``."""
        while not self._messages:
            if self._ended:
                return grpc.aio.EOF
            self._arrived.clear()
            await self._arrived.wait()
        message = self._messages.popleft()
        if isinstance(message, Exception):
            raise message
        return message

    def done_writing(self) -> None:
        """Half-closes the stream, so that the broker sends its last answers and ends it."""
        self._requests.put(None)

    def close(self) -> None:
        self._call.cancel()
        self._requests.put(None)
        self._channel.close()

    def _outgoing(self) -> Iterator[v1.WorkRequest]:
        """Yields the messages to send. A thread of gRPC requests each message after it has sent the previous one."""
        for message, written in iter(self._requests.get, None):
            yield message
            if written is not None and not self._call_on_loop(_finish, written):
                return

    def _receive(self) -> None:
        try:
            for message in self._call:
                if message.HasField("ping"):
                    self._requests.put((_PONG, None))
                if not self._call_on_loop(self._put, message):
                    return self.close()
            self._call_on_loop(self._end, None)
        except grpc.RpcError as error:
            self._call_on_loop(self._end, error)
        self._requests.put(None)

    def _call_on_loop(self, act: Callable[..., None], *arguments: object) -> bool:
        """Calls a function on the event loop. Returns false if the loop is closed, because the worker has ended."""
        try:
            self._loop.call_soon_threadsafe(act, *arguments)
        except RuntimeError:
            return False
        return True

    def _put(self, message: Union[v1.WorkResponse, Exception]) -> None:
        self._messages.append(message)
        self._arrived.set()

    def _end(self, error: Optional[Exception]) -> None:
        self._ended = True
        if error is not None:
            self._messages.append(error)
        self._arrived.set()
        if self._writing is not None and not self._writing.done():
            self._writing.set_exception(asyncio.InvalidStateError())
            self._writing.exception()  # Marks the exception as retrieved, for a writer that was cancelled.


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

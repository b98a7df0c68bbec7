"""A thread pool for handlers that are plain functions."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any, Callable, Optional, Tuple


class Threads:
    """A pool of daemon threads. Unlike the threads of concurrent.futures, they do not keep the program alive."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Optional[Tuple[Callable[[], Any], asyncio.Future[Any]]]] = queue.SimpleQueue()
        self._lock, self._idle, self._started = threading.Lock(), 0, 0

    async def run(self, call: Callable[[], Any]) -> Any:
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            self._idle -= 1
            if self._idle < 0:
                self._idle, self._started = 0, self._started + 1
                threading.Thread(target=self._serve, name=f"howdah-{self._started}", daemon=True).start()
        self._work.put((call, future))
        return await future

    def close(self) -> None:
        for _ in range(self._started):
            self._work.put(None)

    def _serve(self) -> None:
        for call, future in iter(self._work.get, None):
            try:
                done: Callable[[], None] = _setter(future.set_result, future, call())
            except BaseException as error:
                done = _setter(future.set_exception, future, error)
            with self._lock:
                self._idle += 1
            try:
                future.get_loop().call_soon_threadsafe(done)
            except RuntimeError:
                return  # The event loop is closed, so nothing waits for the result.


def _setter(set_to: Callable[[Any], None], future: asyncio.Future[Any], value: Any) -> Callable[[], None]:
    return lambda: None if future.done() else set_to(value)

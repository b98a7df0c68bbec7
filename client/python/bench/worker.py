"""A worker whose handler does nothing, so that the benchmark measures the client itself.

Run it with ``howdah bench client --client 'python3 client/python/bench/worker.py'``.
"""

import os

import howdah

worker = howdah.Worker(concurrency=int(os.environ["HOWDAH_BENCH_CONCURRENCY"]))


@worker.task(os.environ["HOWDAH_BENCH_TYPE"])
async def ack(_: bytes) -> None:
    pass


if __name__ == "__main__":
    worker.run()

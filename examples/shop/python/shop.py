"""Takes orders over HTTP and runs their jobs, until SIGTERM or Ctrl-C: python3 shop.py"""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import howdah

client = howdah.Client()  # uses the broker at HOWDAH_SERVER, or else the one on this machine
worker = howdah.Worker(client, concurrency=8)  # runs at most 8 jobs at once, of all task types together


@worker.task("item.reserve")
def reserve(quantity: int, job: howdah.Job) -> int:
    if quantity >= 100 and job.attempt == 1:  # stands for a warehouse that does not always answer
        raise ConnectionError("the warehouse does not answer")  # the job is retried
    return quantity * 3  # the price


@worker.task("order.confirm")
def confirm(email: str, job: howdah.Job) -> str:
    total = sum(howdah.decode(item.result) for item in job.results())
    return f"{email} pays {total}"


def place(client: howdah.Client, email: str, quantities: list[int]) -> int:
    """Enqueues a job for each item, and a job that runs after them and gets their results. Returns the id of the last job."""
    items = [
        howdah.new_job("item.reserve", n, local_name=f"item {i}", max_attempts=5, retry_policy={"initial_delay": "1s"})
        for i, n in enumerate(quantities)
    ]
    last = howdah.new_job("order.confirm", email, after_local=[item.local_name for item in items])
    return client.enqueue_many([*items, last])[-1].id  # when this call returns, all jobs are committed


class Shop(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        if self.path != "/orders":
            return self.send_error(404)
        try:
            order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = place(client, **order)
        except (TypeError, ValueError) as error:
            return self.send_error(400, explain=str(error))
        except howdah.HowdahError as error:
            return self.send_error(503, explain=str(error))
        self.send_response(202)
        self.end_headers()
        self.wfile.write(f"{answer}\n".encode())


if __name__ == "__main__":
    # Every start applies the schedule, which replaces the one of an earlier start.
    job = howdah.new_job("item.reserve", 10)
    client.apply_schedule("shelf.nightly", job, cron="0 3 * * *", time_zone="Europe/Berlin")
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8080"))), Shop)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    worker.run()  # ends after a signal, when the running jobs have ended

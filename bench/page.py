#!/usr/bin/env python3
"""Measures the page for operators in a large system: 5 million ready jobs, 40 million finished ones.

    bench/page.py --program target/release/howdah --data-dir DIR

Starts `howdah dev` on DIR and fills it with bench/sql/page.sql, which takes some ten minutes and 20 GB; a filled directory is reused.
Requests each view many times, one request after the other, and prints the median, 99th percentile and maximum of each view in ms,
and the Postgres statements that took longer than --slow. With --remove, removes DIR at the end. Needs psql.
"""

import argparse
import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote, urlsplit

HERE = Path(__file__).parent
TYPE = "load.type-001"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="howdah", help="the program howdah")
    parser.add_argument("--data-dir", required=True, type=Path, help="a directory for Postgres")
    parser.add_argument("--ready", type=int, default=5_000_000)
    parser.add_argument("--finished", type=int, default=40_000_000)
    parser.add_argument("--days", type=int, default=10, help="number of days over which the finished jobs ended")
    parser.add_argument("--rounds", type=int, default=200, help="requests per view")
    parser.add_argument("--slow", type=int, default=50, help="show statements that took at least this many ms")
    parser.add_argument("--views", default="", help="measure only views whose name contains this text")
    parser.add_argument("--remove", action="store_true", help="remove the directory at the end")
    return parser.parse_args()


class Broker:
    """A `howdah dev` broker with a Postgres in --data-dir."""

    def __init__(self, args):
        self.program = args.program
        command = [args.program, "dev", "--data-dir", str(args.data_dir), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            ready = re.match(r"ready grpc=(\S+) http=(\S+) postgres=(\S+)", line)
            if ready:
                self.grpc, self.http, self.url = ready.groups()
                return
        raise SystemExit("the broker did not start")

    def run(self, *words, stdin=None):
        command = [self.program, "--server", f"http://{self.grpc}", *words]
        done = subprocess.run(command, capture_output=True, text=True, input=stdin)
        if done.returncode:
            raise SystemExit(f"howdah {' '.join(words)}: {done.stderr}")
        return done.stdout

    def work(self, *words):
        """Starts a worker whose jobs never end."""
        command = [self.program, "--server", f"http://{self.grpc}", "work", *words, "--exec", "sleep 86400"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def sql(self, text):
        command = ["psql", "-qAtX", "-v", "ON_ERROR_STOP=1", self.url, "-c", text]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=120)


def fill(broker, args):
    if broker.sql("SELECT count(*) FROM howdah.task_type WHERE name LIKE 'load.%'") != "0":
        return
    begun = time.monotonic()
    counts = [f"{name}={getattr(args, name)}" for name in ("ready", "finished", "days")]
    variables = [word for count in counts for word in ("-v", count)]
    subprocess.run(["psql", "-qX", *variables, "-f", str(HERE / "sql/page.sql"), broker.url], check=True, stdout=sys.stderr)
    for n in range(60):
        broker.run("schedule", "create", f"load-{n}", f"load.type-{n + 1:03}", "--cron", f"{n} 3 * * *", "--time-zone", "Europe/Berlin")
    for n in (20, 21, 22):
        broker.run("bulk", "start", "cancel", "--type", f"load.type-{n:03}", "--state", "ready", "--rate", "1", "--yes")
    print(f"filled in {time.monotonic() - begun:.0f} s", file=sys.stderr)


def views(broker):
    """Yields the name and path of each view."""
    value = lambda sql: quote(broker.sql(sql), safe="")
    type_id = f"(SELECT id FROM howdah.task_type WHERE name = '{TYPE}')"
    group = value(f"SELECT error_group FROM howdah.dead WHERE type_id = {type_id} LIMIT 1")
    ids = {
        "ready, first": f"SELECT id FROM howdah.ready WHERE type_id = {type_id} ORDER BY rank LIMIT 1",
        "ready, last": f"SELECT id FROM howdah.ready WHERE type_id = {type_id} ORDER BY rank DESC LIMIT 1",
        "leased": "SELECT id FROM howdah.leased LIMIT 1",
        "scheduled": "SELECT id FROM howdah.scheduled LIMIT 1",
        "waiting for a limit": "SELECT id FROM howdah.waiting WHERE limit_key IS NOT NULL LIMIT 1",
        "waiting for a job": "SELECT id FROM howdah.waiting WHERE limit_key IS NULL LIMIT 1",
        "dead": f"SELECT id FROM howdah.dead WHERE type_id = {type_id} LIMIT 1",
        "finished": "SELECT id FROM howdah.history WHERE id = 20000000 OR id = 1 ORDER BY id DESC LIMIT 1",
    }
    yield "overview", "/"
    yield "types", "/types"
    yield "types, by ready", "/types?sort=ready"
    yield "type", f"/type?name={TYPE}"
    for state in ("ready", "leased", "scheduled", "waiting", "dead", "succeeded", "cancelled", "expired"):
        for kind, name in ((TYPE, ""), ("load.type-150", ", a small type")):
            yield f"jobs {state}{name}", f"/jobs?type={kind}&state={state}"
    yield "jobs of all states", f"/jobs?type={TYPE}"
    yield "jobs of an error", f"/jobs?type={TYPE}&state=dead&group={group}"
    yield "jobs by key", f"/jobs?type={TYPE}&key=order%20r1000000"
    yield "jobs, most attempts", f"/jobs?type={TYPE}&sort=attempts"
    for name, sql in ids.items():
        if found := broker.sql(sql):
            yield f"job {name}", f"/job?id={found}"
    yield "job, none", "/job?id=9000000000000"
    yield "find by name", f"/find?q={TYPE}"
    yield "failures", "/failures"
    yield "failures of a type", f"/failures?type={TYPE}"
    yield "schedules", "/schedules"
    yield "schedule", "/schedule?name=load-7"
    yield "limits", "/limits"
    yield "limits of a type", "/limits?type=load.type-003"
    for over in ("2h", "24h", "7d", "90d"):
        yield f"statistics, {over}", f"/statistics?over={over}"
        yield f"statistics of a type, {over}", f"/statistics?type={TYPE}&over={over}"
    yield "workers", "/workers"
    yield "bulks", "/bulks"
    yield "storage", "/storage"
    yield "audit", "/audit"
    yield "audit of a type", f"/audit?type={TYPE}"
    yield "audit of a person", "/audit?principal=person-7"
    yield "tokens", "/tokens"
    yield "question: discard", f"/confirm?do=discard&type={TYPE}"
    yield "question: bulk cancel", f"/confirm?do=bulk-cancel&type={TYPE}&state=ready"
    yield "question: bulk retry", f"/confirm?do=bulk-retry&type={TYPE}&state=dead"


def pages_on(connection, path):
    """Yields the paths of page 2 and page 11, if they exist."""
    for n in range(10):
        _, body = ask(connection, path)
        following = re.search(r'rel="next" href="/ui([^"]+)"', body)
        if not following:
            return
        path = following.group(1).replace("&#38;", "&").replace("&amp;", "&")
        if n in (0, 9):
            yield f"page {n + 2}", path


def ask(connection, path):
    connection.request("GET", "/ui" + path)
    answer = connection.getresponse()
    body = answer.read().decode()
    if answer.status >= 400 and "id=9000000000000" not in path:
        raise SystemExit(f"{path}: {answer.status}: {body[:500]}")
    return answer.status, body


def measure(run, rounds):
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        run()
        times.append((time.perf_counter() - begun) * 1e3)
    times.sort()
    return times[len(times) // 2], times[min(len(times) - 1, int(len(times) * 0.99))], times[-1]


def searches(broker):
    """Searches by CLI. The page searches only by id and name. Each search starts a process, which is part of its time."""
    search = lambda *words: (lambda: broker.run("search", *words))
    yield "search by id", search("--id", "20000000"), 20
    yield "search by key, finished", search(TYPE, "--key", "order 20000000"), 20
    yield "search by key, ready", search(TYPE, "--key", "order r1000000"), 20
    yield "search by header, ready", search(TYPE, "--header", "tenant=t100", "--state", "ready", "--since", "7d", "--limit", "50"), 5
    yield "search by text, ready", search(TYPE, "--text", '"order":4000000', "--state", "ready", "--since", "7d", "--limit", "1"), 3


def statements(log, slow):
    """Returns the maximum time and the count of each slow statement in a part of Postgres's log."""
    found = {}
    for ms, text in re.findall(r"duration: ([0-9.]+) ms  (?:execute|statement|parse|bind) ?[^:]*:\s*(.*)", log):
        found.setdefault(text.strip()[:110], []).append(float(ms))
    rows = sorted(((max(times), len(times), text) for text, times in found.items()), reverse=True)
    return [row for row in rows if row[0] >= slow]


def main():
    args = arguments()
    args.data_dir.parent.mkdir(parents=True, exist_ok=True)
    broker = Broker(args)
    workers = []
    try:
        fill(broker, args)
        broker.sql(f"ALTER SYSTEM SET log_min_duration_statement = {args.slow}")
        broker.sql("SELECT pg_reload_conf()")
        broker.run("enqueue", "load.hold", "-", stdin="1")
        workers = [broker.work("load.hold", f"idle.{n}") for n in range(5)]
        while broker.sql("SELECT count(*) FROM howdah.leased") == "0":
            time.sleep(0.2)
        broker.sql("CHECKPOINT")
        log = args.data_dir / "postgres.log"
        address = urlsplit(f"http://{broker.http}")
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
        # Wait until the page shows the first job counts.
        while "load.type-001" not in ask(connection, "/types")[1]:
            time.sleep(0.5)
        print(f"{'VIEW':44} {'P50':>8} {'P99':>8} {'MAX':>8}   load {os.getloadavg()[0]:.1f}")
        all_views = list(views(broker))
        for state in ("ready", "dead", "succeeded"):
            path = f"/jobs?type={TYPE}&state={state}"
            all_views += [(f"jobs {state}, {name}", page) for name, page in pages_on(connection, path)]
        from_here = log.stat().st_size
        for name, path in all_views:
            if args.views in name:
                measured = measure(lambda path=path: ask(connection, path), args.rounds)
                print(f"{name:44} {measured[0]:8.1f} {measured[1]:8.1f} {measured[2]:8.1f}", flush=True)
        with log.open() as text:
            text.seek(from_here)
            show_slow(text.read(), args.slow, "the page, and the brokers' background work")
        from_here = log.stat().st_size
        for name, run, rounds in searches(broker):
            if args.views in name:
                measured = measure(run, rounds)
                print(f"{name:44} {measured[0]:8.1f} {measured[1]:8.1f} {measured[2]:8.1f}", flush=True)
        with log.open() as text:
            text.seek(from_here)
            show_slow(text.read(), args.slow, "searches")
        print(f"load {os.getloadavg()[0]:.1f}, database {broker.sql('SELECT pg_size_pretty(pg_database_size(current_database()))')}")
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        broker.stop()
        if args.remove:
            shutil.rmtree(args.data_dir)


def show_slow(log, slow, what):
    print(f"\nSTATEMENTS OVER {slow} MS: {what}")
    for most, times, text in statements(log, slow):
        print(f"{most:8.0f} ms at most, {times:5} times  {text}")
    print(flush=True)


if __name__ == "__main__":
    main()

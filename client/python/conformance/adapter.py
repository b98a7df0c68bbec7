"""The adapter of the conformance suite, which exchanges JSON lines on stdin and stdout (conformance/ADAPTER.md)."""

from __future__ import annotations

import asyncio
import base64
import functools
import itertools
import json
import logging
import os
import sys
import time
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Tuple

import grpc
from google.protobuf import json_format
from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import howdah
from howdah import v1

clients: Dict[str, howdah.AsyncClient] = {}
workers: Dict[str, Tuple[howdah.Worker, asyncio.Task[None]]] = {}
runs: Dict[int, Tuple[Any, asyncio.Future[Dict[str, Any]]]] = {}
numbers = itertools.count(1)
exporter, propagator = InMemorySpanExporter(), TraceContextTextMapPropagator()
to_json = functools.partial(json_format.MessageToDict, preserving_proto_field_name=True)


def write_line(message: Dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def failure(error: BaseException) -> Dict[str, Any]:
    if isinstance(error, howdah.HowdahError):
        after = None if error.retry_after is None else round(error.retry_after * 1000)
        fields = {name: getattr(error, name) for name in ("reason", "field", "message")}
        return {**fields, "code": error.code.name, "retry_after_ms": after}
    code = "UNIMPLEMENTED" if isinstance(error, NotImplementedError) else "INVALID_ARGUMENT"
    return {"code": code, "message": f"{type(error).__name__}: {error}"}


@contextmanager
def mark(job: v1.NewJob) -> Iterator[None]:
    job.headers["conformance"] = "enqueue"
    yield


@contextmanager
def around(worker: str, job: howdah.AsyncJob) -> Iterator[None]:
    write_line({"event": "around", "worker": worker, "at": "before", "job": str(job.id)})
    try:
        yield
    finally:
        write_line({"event": "around", "worker": worker, "at": "after", "job": str(job.id)})


async def do_hello() -> Dict[str, Any]:
    return {"protocol": 1, "client": f"howdah-python {howdah.__version__}", "pid": os.getpid()}


async def do_connect(client: str, addresses: Any = None, tls: Any = None, **options: Any) -> None:
    tls = tls or {}
    options.update({f"tls_{name}": tls[name] for name in ("ca", "cert", "key") if name in tls})
    if "request_timeout_ms" in options:
        options["request_timeout"] = options.pop("request_timeout_ms") / 1000
    marked = options.pop("middleware", False)
    clients[client] = made = howdah.AsyncClient(addresses, middleware=[mark] if marked else [], **options)
    try:
        await made.connect()
    except howdah.HowdahError as error:
        if not error.retryable:
            raise


async def do_close(client: str) -> None:
    await clients.pop(client).close()


async def do_enqueue(client: str, jobs: Any, request_key: str = "", traceparent: str = "") -> Dict[str, Any]:
    messages = [json_format.ParseDict(job, v1.NewJob()) for job in jobs]
    token = context.attach(propagator.extract({"traceparent": traceparent}))
    try:
        answers = await clients[client].enqueue_many(messages, request_key=request_key)
    finally:
        context.detach(token)
    return {"jobs": [enqueued(job) for job in answers]}


def enqueued(job: howdah.Enqueued) -> Dict[str, Any]:
    return {**job._asdict(), "id": str(job.id)}


async def do_produce(client: str, jobs: Any, **options: int) -> Dict[str, Any]:
    async with clients[client].producer(**options) as producer:
        futures = [await producer.submit_job(json_format.ParseDict(job, v1.NewJob())) for job in jobs]
        results = await asyncio.gather(*futures, return_exceptions=True)
    return {"results": [{"error": failure(x)} if isinstance(x, BaseException) else enqueued(x) for x in results]}


async def do_wait(client: str, ids: Any, timeout_ms: int) -> Dict[str, Any]:
    return {"jobs": [to_json(job) async for job in clients[client].wait(map(int, ids), timeout_ms / 1000)]}


async def do_call(client: str, method: str, request: Any) -> Dict[str, Any]:
    service, name = method[len("howdah.v1.") :].split("/")
    stub = next(stub for stub in vars(clients[client]).values() if type(stub).__name__ == f"{service}Stub")
    answer = getattr(stub, name)(json_format.ParseDict(request, getattr(v1, f"{name}Request")()))
    answers = [each async for each in answer] if hasattr(answer, "__aiter__") else [await answer]
    return {"responses": [to_json(each) for each in answers]}


async def do_work(client: str, worker: str, types: Any, on_sigterm: bool = False, **options: Any) -> None:
    if "stop_timeout_ms" in options:
        options["stop_timeout"] = options.pop("stop_timeout_ms") / 1000
    if "liveness_ms" in options:
        options["liveness"] = options.pop("liveness_ms") / 1000
    middleware = [lambda job: around(worker, job)] if clients[client].connection.options.get("middleware") else []
    total = sum(each["concurrency"] for each in types)
    made = howdah.Worker(clients[client], concurrency=total, middleware=middleware, **options)
    for each in types:
        kind = object if each.get("payload") == "json" else bytes
        made.task(each["name"], concurrency=each["concurrency"])(handler(worker, kind))
    if on_sigterm:
        made.stop_on_signals()
    workers[worker] = made, asyncio.create_task(serve(worker, made, on_sigterm))


async def serve(name: str, worker: howdah.Worker, on_sigterm: bool) -> None:
    event: Dict[str, Any] = {"event": "ended", "worker": name}
    try:
        await worker.serve()
    except howdah.HowdahError as error:
        event["error"] = failure(error)
    write_line(event)
    if on_sigterm:
        os._exit(0)


def handler(worker: str, kind: Any) -> Callable[..., Any]:
    async def handle(payload: Any, job: howdah.AsyncJob) -> object:
        run = next(numbers)
        finish: asyncio.Future[Dict[str, Any]] = asyncio.get_running_loop().create_future()
        runs[run] = job, finish
        carrier: Dict[str, str] = {}
        propagator.inject(carrier)
        event = {"event": "started", "worker": worker, "run": run, "job": leased(job)}
        event["trace"] = carrier.get("traceparent", "")
        write_line(event if kind is bytes else {**event, "json": payload})
        try:
            return outcome(await finish)
        except asyncio.CancelledError:
            write_line({"event": "cancelled", "worker": worker, "run": run, "reason": job.cancel_reason})
            raise

    handle.__annotations__["payload"] = kind
    return handle


def leased(job: howdah.AsyncJob) -> Dict[str, Any]:
    names = ("task_type", "attempt", "max_attempts", "headers", "tags", "traceparent", "tracestate")
    found: Dict[str, Any] = {name: getattr(job, name) for name in names}
    found.update({name: base64.b64encode(getattr(job, name)).decode() for name in ("payload", "checkpoint")})
    found.update({name: str(getattr(job, name)) for name in ("id", "token")})
    for name in ("deadline", "create_time"):
        if getattr(job, name) is not None:
            found[name] = getattr(job, name).isoformat().replace("+00:00", "Z")
    return found


def outcome(command: Dict[str, Any]) -> object:
    kind, error = command["outcome"], command.get("error", "")
    time.sleep(command.get("block_ms", 0) / 1000)
    after = command["after_ms"] / 1000 if "after_ms" in command else None
    result = command["json"] if "json" in command else base64.b64decode(command.get("result", ""))
    if kind == "throw":
        raise RuntimeError(error)
    made: Dict[str, Callable[[], object]] = {
        "ok": lambda: result,
        "next": lambda: howdah.Done(result, command["next_stage"]),
        "retry": lambda: howdah.Retry(error, after),
        "fatal": lambda: howdah.Fatal(error),
        "snooze": lambda: howdah.Snooze(after or 0),
        "release": howdah.Release,
    }
    return made[kind]()


def find_run(run: int) -> Tuple[Any, asyncio.Future[Dict[str, Any]]]:
    if run not in runs:
        raise howdah.HowdahError("no such run", grpc.StatusCode.NOT_FOUND)
    return runs[run]


async def do_finish(run: int, **command: Any) -> None:
    _, finish = find_run(run)
    if not finish.done():
        finish.set_result(command)


async def do_progress(run: int, fraction: Any = None, text: Any = None, checkpoint: Any = None) -> None:
    state = None if checkpoint is None else base64.b64decode(checkpoint)
    await find_run(run)[0].progress(fraction, text, checkpoint=state)


async def do_results(run: int) -> Dict[str, Any]:
    return {"dependencies": [to_json(result) async for result in find_run(run)[0].results()]}


async def do_extend(run: int, duration_ms: int) -> None:
    await find_run(run)[0].extend(duration_ms / 1000)


async def do_stop(worker: str) -> None:
    made, task = workers.pop(worker)
    made.stop()
    await task


async def do_spans() -> Dict[str, Any]:
    spans = [span_json(span) for span in exporter.get_finished_spans()]
    exporter.clear()
    return {"spans": spans}


def span_json(span: ReadableSpan) -> Dict[str, Any]:
    span_context, parent = span.get_span_context(), span.parent
    assert span_context is not None
    found = {"name": span.name, "kind": span.kind.name.lower(), "status": span.status.status_code.name.lower()}
    found.update({"trace_id": f"{span_context.trace_id:032x}", "span_id": f"{span_context.span_id:016x}"})
    found["parent_id"] = f"{parent.span_id:016x}" if parent else ""
    links = [{"trace_id": f"{x.context.trace_id:032x}", "span_id": f"{x.context.span_id:016x}"} for x in span.links]
    return {**found, "links": links, "attributes": dict(span.attributes or {})}


async def answer(command: Dict[str, Any]) -> None:
    number, do = command.pop("id"), globals().get("do_" + command.pop("do"))
    try:
        if do is None:
            raise NotImplementedError("unknown command")
        write_line({"id": number, "ok": await do(**command) or {}})
    except Exception as error:
        logging.getLogger("adapter").debug("command %s failed", number, exc_info=True)
        write_line({"id": number, "error": failure(error)})


async def main() -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    reader = asyncio.StreamReader(limit=64 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks: List[asyncio.Task[None]] = []
    while line := await reader.readline():
        tasks = [task for task in tasks if not task.done()]
        tasks.append(asyncio.create_task(answer(json.loads(line))))
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())

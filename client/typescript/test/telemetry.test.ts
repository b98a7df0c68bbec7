import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, beforeEach, test } from "node:test";
import { context, metrics, ROOT_CONTEXT, SpanKind, SpanStatusCode, trace } from "@opentelemetry/api";
import { type Histogram, MeterProvider, MetricReader } from "@opentelemetry/sdk-metrics";
import {
  InMemorySpanExporter,
  NodeTracerProvider,
  type ReadableSpan,
  SimpleSpanProcessor,
} from "@opentelemetry/sdk-trace-node";
import { Client, FatalError, newJob, nextStage, proto, RetryError, release, snooze } from "howdah";
import { telemetry } from "howdah/opentelemetry";
import { startBroker, type TestBroker } from "howdah/testing";

const BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10];
const [OPERATION, SENT] = ["messaging.client.operation.duration", "messaging.client.sent.messages"];
const [CONSUMED, PROCESS] = ["messaging.client.consumed.messages", "messaging.process.duration"];
const GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

class Reader extends MetricReader {
  protected override onShutdown = async () => {};
  protected override onForceFlush = async () => {};
}

const { version } = JSON.parse(readFileSync(join(import.meta.dirname, "../../package.json"), "utf8")) as {
  version: string;
};
const quiet = { ...console, warn: () => {}, info: () => {} };
const exporter = new InMemorySpanExporter();
const reader = new Reader();
let broker: TestBroker;
let client: Client;
let types = 0;
/** Returns a new task type, so that each test has a separate one. */
const newType = () => `telemetry.${++types}`;

before(async () => {
  broker = await startBroker();
  // The test sets up OpenTelemetry's SDK after creating the client, as a program may do.
  client = (await Client.connect({ servers: broker.server, logger: quiet })).use(telemetry());
  new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }).register();
  metrics.setGlobalMeterProvider(new MeterProvider({ readers: [reader] }));
});

beforeEach(() => exporter.reset());

after(async () => {
  await client.close();
  await broker.stop();
});

/** Starts a worker. Returns a function that waits until jobs have ended, and then stops the worker. */
async function startWorker(own: Client, type: string, handler: Parameters<ReturnType<Client["worker"]>["handle"]>[1]) {
  const worker = own.worker().handle(type, handler);
  void worker.run();
  await worker.connected();
  return async (...ids: bigint[]) => {
    const found: proto.Job[] = [];
    for await (const job of own.wait(ids, { timeout: 20_000 })) found.push(job);
    await worker.stop();
    return found;
  };
}

const spans = (name: string) => exporter.getFinishedSpans().filter((span) => span.name === name);

function span(name: string): ReadableSpan {
  const found = spans(name);
  assert.equal(found.length, 1, name);
  return found[0] as ReadableSpan;
}

const id = (of: ReadableSpan) => of.spanContext().spanId;
const links = ({ links }: ReadableSpan) => links.map(({ context }) => context.spanId);
const traceparent = (of: ReadableSpan) => `00-${of.spanContext().traceId}-${id(of)}-01`;

/** Returns the trace contexts of the ready jobs by job id. */
async function contexts(...taskTypes: string[]): Promise<Record<string, string>> {
  const { jobs } = await client.workers.pullJobs({ taskTypes, maxJobs: 100 });
  return Object.fromEntries(jobs.map((job) => [String(job.id), job.traceparent]));
}

const remote = () => ({
  traceId: "1af7651916cd43dd8448eb211c80319d",
  spanId: "c7ad6b7169203332",
  traceFlags: 1,
  isRemote: true,
});

function attributes(operation: string, type: string, taskType: string, more: object = {}) {
  return {
    "messaging.system": "howdah",
    "messaging.operation.name": operation,
    "messaging.operation.type": type,
    "messaging.destination.name": taskType,
    "server.address": "127.0.0.1",
    "server.port": Number(broker.server.split(":").at(-1)),
    ...more,
  };
}

/** Returns the counts of a metric for a task type, by operation and error. */
async function counted(metric: string, taskType: string): Promise<Record<string, number>> {
  const { resourceMetrics } = await reader.collect();
  const found: Record<string, number> = {};
  for (const { scope, metrics } of resourceMetrics.scopeMetrics)
    for (const { descriptor, dataPoints } of metrics)
      for (const { attributes: of, value } of descriptor.name === metric ? dataPoints : []) {
        if (of["messaging.destination.name"] !== taskType) continue;
        const isDuration = typeof value === "object";
        assert.deepEqual([scope.name, descriptor.unit], ["howdah", isDuration ? "s" : "{message}"]);
        const hasType = metric === OPERATION;
        const names = ["messaging.destination.name", "messaging.operation.name", "messaging.system"];
        const all = [...names, ...(hasType ? ["messaging.operation.type"] : []), "server.address", "server.port"];
        assert.deepEqual(
          Object.keys(of)
            .filter((name) => name !== "error.type")
            .sort(),
          all.sort(),
        );
        const words = [of["messaging.operation.name"], of["messaging.operation.type"], of["error.type"]];
        const key = words.filter((word) => word !== undefined).join(" ");
        if (isDuration) assert.deepEqual((value as Histogram).buckets.boundaries, BUCKETS);
        found[key] = isDuration ? (value as Histogram).count : value;
      }
  return found;
}

test("one job is one trace, from the request to the confirmation", async () => {
  const type = newType();
  let inside: string | undefined;
  const ended = await startWorker(client, type, () => {
    inside = trace.getActiveSpan()?.spanContext().spanId;
  });
  const job = await context.with(trace.setSpanContext(ROOT_CONTEXT, remote()), () => client.enqueue(type));
  await ended(job.id);
  const [send, process, ack] = [span(`send ${type}`), span(`process ${type}`), span(`ack ${type}`)];
  for (const each of [send, process, ack]) {
    assert.equal(each.spanContext().traceId, remote().traceId);
    assert.equal(each.status.code, SpanStatusCode.UNSET);
    assert.deepEqual([each.instrumentationScope.name, each.instrumentationScope.version], ["howdah", version]);
  }
  assert.deepEqual([send.kind, process.kind, ack.kind], [SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CLIENT]);
  const parents = [send, process, ack].map((each) => each.parentSpanContext?.spanId);
  assert.deepEqual(parents, [remote().spanId, id(send), id(process)]);
  assert.deepEqual([links(send), links(process), links(ack)], [[], [id(send)], []]);
  assert.equal(inside, id(process));
  const ofJob = { "messaging.message.id": String(job.id) };
  assert.deepEqual(send.attributes, attributes("send", "send", type, ofJob));
  const ofAttempt = { ...ofJob, "howdah.attempt": 1 };
  assert.deepEqual(process.attributes, attributes("process", "process", type, ofAttempt));
  assert.deepEqual(ack.attributes, attributes("ack", "settle", type, ofAttempt));
  assert.deepEqual(ack.startTime, process.endTime);
  assert.deepEqual(await counted(OPERATION, type), { "send send": 1, "ack settle": 1 });
  assert.deepEqual(await counted(SENT, type), { send: 1 });
  assert.deepEqual(await counted(CONSUMED, type), { process: 1 });
  assert.deepEqual(await counted(PROCESS, type), { process: 1 });
});

for (const way of ["call", "pipeline"])
  test(`each of several jobs in one ${way} has a create`, async () => {
    const [type, other] = [newType(), newType()];
    const jobs = [newJob(type), newJob(other), newJob(type, undefined, { traceparent: GIVEN })];
    const producer = client.producer();
    const answers = await (way === "call" ? client : producer).enqueueAll(jobs);
    await producer.close();
    assert.equal(jobs[0]?.traceparent, "", "the caller's jobs are as they were");
    const [send, creates] = [span("send"), [span(`create ${type}`), span(`create ${other}`)]];
    const expected = { [String(answers[2]?.id)]: GIVEN };
    for (const [index, create] of creates.entries()) {
      const ofJob = { "messaging.message.id": String(answers[index]?.id) };
      assert.deepEqual([create.kind, create.parentSpanContext?.spanId], [SpanKind.PRODUCER, id(send)]);
      assert.deepEqual(create.attributes, attributes("create", "create", index === 0 ? type : other, ofJob));
      expected[String(answers[index]?.id)] = traceparent(create);
    }
    assert.deepEqual(await contexts(type, other), expected);
    assert.deepEqual(links(send).sort(), ["b7ad6b7169203331", ...creates.map(id)].sort());
    const ofAll = attributes("send", "send", type, { "messaging.batch.message_count": 3 });
    assert.deepEqual({ ...send.attributes, "messaging.destination.name": type }, ofAll);
    assert.ok(!("messaging.destination.name" in send.attributes));
    assert.equal(send.kind, SpanKind.CLIENT);
    assert.deepEqual([await counted(SENT, type), await counted(SENT, other)], [{ send: 2 }, { send: 1 }]);
    assert.deepEqual(await counted(OPERATION, type), {});
  });

test("the jobs of a request with a key of the caller get no context", async () => {
  const type = newType();
  const enqueue = () => client.enqueueAll([newJob(type), newJob(type)], { requestKey: `own ${type}` });
  await enqueue();
  const answers = await enqueue();
  assert.deepEqual(
    answers.map(({ outcome }) => outcome),
    ["repeated", "repeated"],
  );
  assert.deepEqual(await contexts(type), Object.fromEntries(answers.map((job) => [String(job.id), ""])));
  for (const send of spans(`send ${type}`)) assert.deepEqual([send.kind, links(send)], [SpanKind.CLIENT, []]);
  assert.deepEqual(spans(`create ${type}`), []);
});

test("a job keeps the trace context that the caller set", async () => {
  const type = newType();
  const job = await client.enqueue(type, undefined, { traceparent: GIVEN, tracestate: "vendor=abc" });
  assert.deepEqual(await contexts(type), { [String(job.id)]: GIVEN });
  const send = span(`send ${type}`);
  assert.equal(send.kind, SpanKind.CLIENT);
  assert.equal(send.links[0]?.context.traceState?.get("vendor"), "abc");
});

test("a job of a pipeline has a span until its answer", async () => {
  const type = newType();
  const producer = client.producer();
  const [good, bad] = [producer.enqueue(type), producer.enqueue("no spaces")];
  assert.deepEqual(spans(`send ${type}`), []);
  await assert.rejects(bad);
  const job = await good;
  assert.deepEqual(await contexts(type), { [String(job.id)]: traceparent(span(`send ${type}`)) });
  assert.equal(span("send no spaces").attributes["error.type"], "INVALID_FIELD");
  await producer.close().catch(() => {});
});

test("a refused enqueue and a broker that is away are errors", async () => {
  await assert.rejects(client.enqueue("bad type"));
  const servers = ["127.0.0.1:1", "localhost:2"];
  const away = new Client({ servers, requestTimeout: 300 }).use(telemetry());
  await assert.rejects(away.enqueue("away"));
  await away.close();
  const [refused, unsent] = [span("send bad type"), span("send away")];
  const kinds = [refused, unsent].map((each) => each.attributes["error.type"]);
  assert.deepEqual(kinds, ["INVALID_FIELD", "UNAVAILABLE"]);
  assert.equal(refused.status.code, SpanStatusCode.ERROR);
  assert.match(refused.status.message ?? "", /bad type/);
  assert.deepEqual(
    refused.events.map(({ name }) => name),
    ["exception"],
  );
  const server = `${unsent.attributes["server.address"]?.toString()}:${unsent.attributes["server.port"]?.toString()}`;
  assert.ok(servers.includes(server), server);
  assert.deepEqual(await counted(SENT, "bad type"), { "send INVALID_FIELD": 1 });
  assert.deepEqual(await counted(OPERATION, "bad type"), { "send send INVALID_FIELD": 1 });
});

test("each outcome has a span, and failures are errors", async () => {
  const type = newType();
  const seen = new Set<unknown>();
  const ended = await startWorker(client, type, (kind, job) => {
    if (kind === "unsendable") return 1n;
    if (seen.has(kind) || job.attempt > 1) return undefined;
    seen.add(kind);
    if (kind === "retry") throw new RetryError(`later${"ä".repeat(1024)}`);
    if (kind === "bug") throw new TypeError("x is not a function");
    if (kind === "fatal") throw new FatalError("never");
    return kind === "snooze" ? snooze(3_600_000) : release();
  });
  const kinds = ["retry", "bug", "fatal", "snooze", "release", "unsendable"];
  const retryPolicy = { kind: "fixed", initialDelay: 0 } as const;
  const ids = new Map<string, string>();
  const waited: bigint[] = [];
  for (const kind of kinds) {
    const maxAttempts = kind === "unsendable" ? 1 : 5;
    const job = await client.enqueue(type, kind, { retryPolicy, maxAttempts });
    ids.set(String(job.id), kind);
    if (kind !== "snooze") waited.push(job.id);
  }
  await ended(...waited);
  const found: Record<string, string[]> = {};
  for (const operation of ["ack", "nack", "snooze", "release"])
    for (const settle of spans(`${operation} ${type}`)) {
      const process = spans(`process ${type}`).find((each) => id(each) === settle.parentSpanContext?.spanId);
      assert.ok(process);
      const error = process.attributes["error.type"]?.toString();
      assert.equal(process.status.code === SpanStatusCode.ERROR, error !== undefined);
      assert.deepEqual(
        process.events.map(({ name }) => name),
        error ? ["exception"] : [],
      );
      const text = process.status.message ?? "";
      assert.ok(Buffer.byteLength(text) <= 1024 && !text.includes("\ufffd"));
      assert.equal(settle.status.code, SpanStatusCode.UNSET);
      const kind = ids.get(String(settle.attributes["messaging.message.id"])) ?? "";
      (found[kind] ??= []).push([operation, error, text.slice(0, 5)].filter(Boolean).join(" "));
    }
  assert.deepEqual(found, {
    retry: ["ack", "nack retry later"],
    bug: ["ack", "nack retry TypeE"],
    fatal: ["nack fatal never"],
    snooze: ["snooze"],
    release: ["ack", "release"],
    unsendable: ["nack retry TypeE"],
  });
  assert.deepEqual(await counted(PROCESS, type), { process: 5, "process retry": 3, "process fatal": 1 });
  assert.deepEqual(await counted(CONSUMED, type), { process: 9 });
  const settles = { "ack settle": 3, "nack settle": 4, "snooze settle": 1, "release settle": 1 };
  assert.deepEqual(await counted(OPERATION, type), { "send send": 6, ...settles });
});

test("an outcome that is refused is one nack", async () => {
  const type = newType();
  const ended = await startWorker(client, type, () => nextStage("no spaces"));
  await ended((await client.enqueue(type, undefined, { maxAttempts: 1 })).id);
  assert.equal(span(`nack ${type}`).status.code, SpanStatusCode.UNSET);
  assert.deepEqual(await counted(OPERATION, type), { "send send": 1, "nack settle": 1 });
});

test("an outcome without effect is an error", async () => {
  const type = newType();
  const cancelled = await startWorker(client, type, (_, job) => {
    // execFileSync blocks the event loop. So when the handler returns, the worker does not yet know that the broker has
    // cancelled the job.
    execFileSync(process.env.HOWDAH_BIN ?? "howdah", ["cancel", "--server", broker.server, String(job.id)]);
  });
  await cancelled((await client.enqueue(type)).id);
  const ack = span(`ack ${type}`);
  assert.deepEqual([ack.status.code, ack.attributes["error.type"]], [SpanStatusCode.ERROR, "LEASE_LOST"]);
  assert.match(ack.status.message ?? "", /^the lease of job \d+ is lost$/);
  assert.deepEqual(
    ack.events.map(({ name }) => name),
    ["exception"],
  );
  assert.deepEqual(await counted(OPERATION, type), { "send send": 1, "ack settle LEASE_LOST": 1 });
});

test("an outcome that no broker confirms is an error", async () => {
  const type = newType();
  const own = await startBroker();
  const lonely = new Client({ servers: own.server, logger: quiet }).use(telemetry());
  let start = () => {};
  const started = new Promise<void>((resolve) => (start = resolve));
  const worker = lonely.worker({ stopTimeout: 0 }).handle(type, () => {
    start();
    return new Promise(() => {});
  });
  const running = worker.run();
  await lonely.enqueue(type);
  await started;
  await own.stop();
  await worker.stop();
  assert.equal((await running).unconfirmed, 1);
  const settle = span(`release ${type}`);
  assert.equal(settle.status.code, SpanStatusCode.ERROR);
  assert.equal(settle.attributes["error.type"], "UNCONFIRMED");
  assert.equal((await counted(OPERATION, type))["release settle UNCONFIRMED"], 1);
  await lonely.close();
});

test("with `linked`, each attempt begins a trace", async () => {
  const type = newType();
  const own = (await Client.connect(broker.server)).use(telemetry({ linked: true }));
  const ended = await startWorker(own, type, () => {});
  await ended((await own.enqueue(type)).id);
  await own.close();
  const [send, process, ack] = [span(`send ${type}`), span(`process ${type}`), span(`ack ${type}`)];
  assert.equal(process.parentSpanContext, undefined);
  assert.deepEqual(links(process), [id(send)]);
  assert.notEqual(process.spanContext().traceId, send.spanContext().traceId);
  assert.equal(ack.spanContext().traceId, process.spanContext().traceId);
});

test("an unsampled trace stays unsampled, and its jobs are counted", async () => {
  const type = newType();
  const seen = new Set<string>();
  const ended = await startWorker(client, type, (_, job) => seen.add(job.traceparent));
  const unsampled = trace.setSpanContext(ROOT_CONTEXT, { ...remote(), traceFlags: 0 });
  const jobs = await context.with(unsampled, () => client.enqueueAll([newJob(type), newJob(type)]));
  await ended(...jobs.map(({ id }) => id));
  assert.match([...seen].join(), new RegExp(`^00-${remote().traceId}-[0-9a-f]{16}-00$`));
  assert.deepEqual(
    exporter.getFinishedSpans().filter(({ name }) => name.includes(type)),
    [],
  );
  assert.deepEqual(await counted(OPERATION, type), { "send send": 1, "ack settle": 2 });
  assert.deepEqual(await counted(SENT, type), { send: 2 });
});

test("a job without a context begins a trace", async () => {
  const type = newType();
  const inside = trace.setSpanContext(ROOT_CONTEXT, remote());
  const ended = await context.with(inside, () => startWorker(client, type, () => {}));
  const [job] = await client.enqueueAll([newJob(type)], { requestKey: `own ${type}` });
  await ended(job?.id ?? 0n);
  const process = span(`process ${type}`);
  assert.deepEqual([process.parentSpanContext, links(process)], [undefined, []]);
});

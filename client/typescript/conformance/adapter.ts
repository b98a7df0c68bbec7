// The TypeScript client's adapter for `howdah-conformance` (conformance/ADAPTER.md).
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { create, type DescMessage, type DescService, fromJson, type JsonValue, toJson } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { createClient } from "@connectrpc/connect";
import { context, propagation, ROOT_CONTEXT, SpanKind, SpanStatusCode } from "@opentelemetry/api";
import { InMemorySpanExporter, NodeTracerProvider, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-node";
import * as howdah from "howdah";
import { telemetry } from "howdah/opentelemetry";

type Command = any; // ADAPTER.md lists the fields

const { Code, HowdahError, proto } = howdah;
const clients = new Map<string, howdah.Client>();
const workers = new Map<string, { worker: howdah.Worker; ended: Promise<unknown> }>();
const handlers = new Map<number, { job: howdah.Job; end: (outcome: () => unknown, blockMs?: number) => void }>();
const spans = new InMemorySpanExporter();
new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(spans)] }).register();
let runs = 0;
const writeLine = (line: object) =>
  process.stdout.write(
    `${JSON.stringify(line, (_, item) => (typeof item === "bigint" ? `${item}` : (item as object)))}\n`,
  );
const bytes = (base64 = "") => new Uint8Array(Buffer.from(base64, "base64"));
const json = (schema: DescMessage, value: unknown) =>
  toJson(schema, value as never, { alwaysEmitImplicit: true, useProtoFieldName: true });
const newJobs = (list: JsonValue[]) => list.map((job) => fromJson(proto.NewJobSchema, job));
const stored = ({ id, isNew, outcome }: howdah.Enqueued) => ({ id, is_new: isNew, outcome });

function failure(error: unknown): object {
  if (!(error instanceof HowdahError)) return { code: "UNKNOWN", message: String(error) };
  const { code, reason, field, message, retryAfterMs } = error;
  const name = (Code[code] ?? "Unknown").replace(/(?<=[a-z])(?=[A-Z])/g, "_").toUpperCase();
  const details = { ...(reason && { reason }), ...(field && { field }), retry_after_ms: retryAfterMs };
  return { code: name === "CANCELED" ? "CANCELLED" : name, message, ...details };
}

function found<K, T>(map: Map<K, T>, key: K, code = Code.NotFound): T {
  const value = map.get(key);
  if (value === undefined) throw new HowdahError(`there is no ${String(key)}`, code);
  return value;
}

function handler(worker: string, isJson: boolean): howdah.Handler {
  return (payload, job) => {
    const run = ++runs;
    const carrier: { traceparent?: string } = {};
    propagation.inject(context.active(), carrier);
    const { deadline, createTime, signal, ...plain } = job;
    const times = { createTime: timestampFromDate(createTime), deadline: deadline && timestampFromDate(deadline) };
    const seen = json(proto.LeasedJobSchema, create(proto.LeasedJobSchema, { ...plain, ...times }));
    signal.addEventListener("abort", () =>
      writeLine({ event: "cancelled", worker, run, reason: signal.reason.reason }),
    );
    return new Promise((resolve, reject) => {
      const end = (outcome: () => unknown, blockMs = 0) => {
        handlers.delete(run);
        if (blockMs > 0) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, blockMs);
        new Promise((resolve) => resolve(outcome())).then(resolve, reject);
      };
      handlers.set(run, { job, end });
      writeLine({
        event: "started",
        worker,
        run,
        job: seen,
        trace: carrier.traceparent,
        ...(isJson && { json: payload }),
      });
    });
  };
}

/** Throws all errors at one place, because equal errors at different places are in different error groups. */
const raise = ({ outcome, error, after_ms: after }: Command) => {
  const classes = { retry: howdah.RetryError, fatal: howdah.FatalError, throw: TypeError };
  const Failure = classes[outcome as keyof typeof classes];
  return () => Promise.reject(new Failure(error, { after }));
};

const outcomes: Record<string, (command: Command) => () => unknown> = {
  ok: (command) => () => (command.json === undefined ? bytes(command.result) : command.json),
  next: (command) => () => howdah.nextStage(command.next_stage, bytes(command.result)),
  retry: raise,
  fatal: raise,
  throw: raise,
  snooze: (command) => () => howdah.snooze(command.after_ms),
  release: () => () => howdah.release(),
};

const commands: Record<string, (command: Command) => Promise<unknown>> = {
  hello: async () => ({ protocol: 1, client: "howdah-js 0.1.0", pid: process.pid }),

  async connect({ client: name, addresses, token, token_file, tls, request_timeout_ms, middleware }) {
    clients.delete(name);
    const file = (path?: string) => (path ? readFileSync(path) : undefined);
    const client = await howdah.Client.connect({
      logger: new console.Console(process.stderr),
      servers: addresses,
      token,
      tokenFile: token_file,
      tls: tls && { ca: file(tls.ca), cert: file(tls.cert), key: file(tls.key) },
      requestTimeout: request_timeout_ms,
    });
    clients.set(name, client.use(telemetry()));
    if (!middleware) return;
    client.use({
      enqueue(jobs, next) {
        for (const job of jobs) job.headers.conformance = "enqueue";
        return next();
      },
      async handle({ id: job }, next) {
        writeLine({ event: "around", at: "before", job });
        return next().finally(() => writeLine({ event: "around", at: "after", job }));
      },
    });
  },

  close: ({ client }) => found(clients, client).close(),
  async enqueue({ client, jobs, request_key: requestKey, traceparent }) {
    const parent = traceparent ? propagation.extract(ROOT_CONTEXT, { traceparent }) : ROOT_CONTEXT;
    const send = () => found(clients, client).enqueueAll(newJobs(jobs), { requestKey });
    return { jobs: (await context.with(parent, send)).map(stored) };
  },

  async produce({ client, jobs, max_in_flight, max_batch_jobs }) {
    const producer = found(clients, client).producer({ maxInFlight: max_in_flight, maxBatchJobs: max_batch_jobs });
    const one = (job: howdah.proto.NewJob) =>
      producer.enqueueAll([job]).then(([job]) => stored(job as howdah.Enqueued));
    const results = newJobs(jobs).map((job) => one(job).catch((error: unknown) => ({ error: failure(error) })));
    await producer.close().catch(() => {});
    return { results: await Promise.all(results) };
  },

  async wait({ client, ids, timeout_ms: timeout }) {
    const jobs: JsonValue[] = [];
    for await (const job of found(clients, client).wait(ids.map(BigInt), { timeout }))
      jobs.push(json(proto.JobSchema, job));
    return { jobs };
  },

  async call({ client, method: path, request }) {
    const [serviceName, methodName] = path.split("/");
    const services = Object.values(proto) as unknown[] as DescService[];
    const service = services.find(({ typeName }) => typeName === serviceName);
    const method = service?.methods.find(({ name }) => name === methodName);
    if (!service || !method) throw new HowdahError(path, Code.Unimplemented);
    const generated = createClient(service, found(clients, client).transport) as any;
    const answer = generated[method.localName](fromJson(method.input, request ?? {}));
    const responses: JsonValue[] = [];
    if (method.methodKind === "unary") responses.push(json(method.output, await answer));
    else for await (const response of answer) responses.push(json(method.output, response));
    return { responses };
  },

  async work(command) {
    const { client, worker: name = "w", types, window_bytes: windowBytes, labels, stop_timeout_ms } = command;
    const limits = {
      concurrency: types.reduce((sum: number, { concurrency }: { concurrency: number }) => sum + concurrency, 0),
      windowBytes,
      maxMessageBytes: command.max_message_bytes,
      stopTimeout: stop_timeout_ms,
      liveness: command.liveness_ms,
    };
    const worker = found(clients, client).worker({ ...limits, labels });
    for (const { name: type, concurrency, payload } of types) {
      const isJson = payload === "json";
      const task = isJson ? howdah.jsonTask(type) : (howdah.bytesTask(type) as howdah.Task<unknown>);
      worker.handle(task, handler(name, isJson), { concurrency });
    }
    const ended = worker.run({ stopOn: command.on_sigterm ? ["SIGTERM"] : [] }).then(
      () => writeLine({ event: "ended", worker: name }),
      (error) => writeLine({ event: "ended", worker: name, error: failure(error) }),
    );
    if (command.on_sigterm) void ended.then(() => process.exit(0));
    workers.set(name, { worker, ended });
  },

  async finish(command) {
    const outcome = found(new Map(Object.entries(outcomes)), command.outcome, Code.Unimplemented)(command);
    if (command.run > runs) found(handlers, command.run);
    handlers.get(command.run)?.end(outcome, command.block_ms);
  },

  progress({ run, fraction, text, checkpoint }) {
    const report = { fraction, text, ...(checkpoint !== undefined && { checkpoint: bytes(checkpoint) }) };
    return found(handlers, run).job.report(report);
  },

  async results({ run }) {
    const dependencies: JsonValue[] = [];
    for await (const result of found(handlers, run).job.results())
      dependencies.push(json(proto.DependencyResultSchema, result));
    return { dependencies };
  },

  extend: ({ run, duration_ms }) => found(handlers, run).job.extend(duration_ms),
  async stop({ worker: name = "w" }) {
    const { worker, ended } = found(workers, name);
    await Promise.all([worker.stop().catch(() => {}), ended]);
  },

  async spans() {
    const finished = spans.getFinishedSpans().map((span) => ({
      name: span.name,
      kind: SpanKind[span.kind].toLowerCase(),
      trace_id: span.spanContext().traceId,
      span_id: span.spanContext().spanId,
      parent_id: span.parentSpanContext?.spanId ?? "",
      links: span.links.map(({ context }) => ({ trace_id: context.traceId, span_id: context.spanId })),
      status: SpanStatusCode[span.status.code].toLowerCase(),
      attributes: span.attributes,
    }));
    spans.reset();
    return { spans: finished };
  },
};

const byName = new Map(Object.entries(commands));
for await (const line of createInterface(process.stdin)) {
  const command = JSON.parse(line);
  (async () => found(byName, command.do, Code.Unimplemented)(command))().then(
    (ok) => writeLine({ id: command.id, ok: ok ?? {} }),
    (error) => writeLine({ id: command.id, error: failure(error) }),
  );
}
process.exit(0);

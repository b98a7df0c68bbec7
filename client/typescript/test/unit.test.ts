import assert from "node:assert/strict";
import { writeFileSync, mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import {
  bytesTask,
  CancelledError,
  Client,
  Code,
  type Enqueuer,
  FatalError,
  fromJsonBytes,
  type Handler,
  HowdahError,
  jsonTask,
  newJob,
  nextStage,
  proto,
  protobufTask,
  RetryError,
  release,
  snooze,
} from "howdah";
import { perform, RecordingClient } from "howdah/testing";

const email = jsonTask<{ to: string }>("email.send");

const refused = (field: string, text: RegExp) => (error: unknown) =>
  error instanceof HowdahError &&
  error.field === field &&
  error.code === Code.InvalidArgument &&
  text.test(error.message);

test("options of a job become fields of the protocol", () => {
  const job = newJob(
    email,
    { to: "ann" },
    {
      key: "welcome-ann",
      keyPolicy: "replace_if_newer",
      keyVersion: 2n ** 60n,
      delay: 1500,
      expireAfter: "1m",
      timeout: 250,
      retryPolicy: { kind: "list", delays: [10, "20ms"], jitter: 0 },
      onDependencyFailure: "wait",
      after: [9007199254740993n],
    },
  );
  assert.equal(job.taskType, "email.send");
  assert.deepEqual(fromJsonBytes(job.payload), { to: "ann" });
  assert.equal(job.keyPolicy, proto.KeyPolicy.REPLACE_IF_NEWER);
  assert.equal(job.keyVersion, 1152921504606846976n);
  assert.deepEqual(job.start, { case: "delay", value: durationFromMs(1500) });
  assert.deepEqual(job.expiry, { case: "expireAfter", value: durationFromMs(60_000) });
  assert.deepEqual(job.timeout, durationFromMs(250));
  assert.equal(job.retryPolicy?.kind, proto.RetryPolicyKind.LIST);
  assert.equal(job.retryPolicy?.delays.length, 2);
  assert.equal(job.onDependencyFailure, proto.DependencyFailure.WAIT);
  assert.deepEqual(job.after, [9007199254740993n]);
  const later = newJob("a", undefined, { runAt: new Date(1000) });
  assert.equal(later.start.case, "runAt");
  assert.equal(later.payload.length, 0);
});

test("a mistake in a program without type checks is refused and named", async () => {
  const client = new Client();
  const anything = (value: unknown) => value as never;
  const mistakes: Record<string, [() => unknown, RegExp]> = {
    prioritee: [() => newJob("a", 1, anything({ prioritee: 5 })), /^prioritee: a job has no such option$/],
    initial: [() => newJob("a", 1, { retryPolicy: anything({ initial: "1s" }) }), /^initial: retryPolicy has no such/],
    tags: [() => newJob("a", 1, { tags: anything("abc") }), /^tags: "abc" is not an array$/],
    runAt: [() => newJob("a", 1, { runAt: anything("2027-01-01") }), /^runAt: "2027-01-01" is not a valid Date$/],
    expireAt: [() => newJob("a", 1, { expireAt: new Date("tomorrow") }), /^expireAt: null is not a valid Date$/],
    tokn: [() => new Client(anything({ tokn: "x" })), /^tokn: a client has no such option$/],
    concurency: [() => client.worker(anything({ concurency: 2 })), /^concurency: a worker has no such option$/],
    concurrency: [() => client.worker({ concurrency: 0 }), /^concurrency: 0 is not an integer of at least 1$/],
    handler: [() => client.worker().handle("a", anything(undefined)), /the handler of a is not a function$/],
  };
  for (const [field, [make, text]] of Object.entries(mistakes)) assert.throws(make, refused(field, text));
  const perType = { concurrency: 1.5 };
  assert.throws(() => client.worker().handle("a", () => 1, perType), refused("concurrency", /1.5 is not an integer/));
  await assert.rejects(client.worker().run(), refused("handle", /the worker has no handlers/));
  await assert.rejects(
    client.applyTaskType("a", anything({ maxRuning: 1 })),
    refused("maxRuning", /a task type has no/),
  );
  assert.throws(() => newJob("a", () => 1), /a function cannot be encoded as JSON/);
});

test("the log of a worker that cannot reach its broker has the cause once", async () => {
  const client = new Client({
    servers: "127.0.0.1:1",
    logger: { ...console, warn: (_, { error }: { error: string }) => void worker.stop().then(() => resolve(error)) },
  });
  const worker = client.worker().handle("a", () => {});
  let resolve: (error: string) => void = () => {};
  const logged = new Promise<string>((done) => {
    resolve = done;
  });
  await worker.run();
  assert.equal(await logged, "cannot reach 127.0.0.1:1: connect ECONNREFUSED 127.0.0.1:1");
});

test("a duration is milliseconds or a text", () => {
  const given = [250, "250ms", " 0.25 seconds", "5m", "1h30m", "1 hour 30 minutes", "3 days", "2w"];
  const meant = [250, 250, 250, 300_000, 5_400_000, 5_400_000, 259_200_000, 1_209_600_000];
  for (const [index, delay] of given.entries())
    assert.deepEqual(newJob("a", null, { delay }).start.value, durationFromMs(meant[index] ?? 0));
  for (const junk of ["", "5", "m", "5 parsecs", "5m!", "-5m", "1h 30", NaN, null]) {
    const delay = junk as string;
    assert.throws(() => newJob("a", null, { delay }), refused("delay", /is not a duration: write milliseconds/));
    assert.throws(() => new RetryError("busy", { after: delay }), refused("after", /is not a duration/));
    assert.throws(() => new Client({ requestTimeout: delay }), refused("requestTimeout", /is not a duration/));
    assert.throws(() => new Client().worker({ liveness: delay }), refused("liveness", /is not a duration/));
  }
});

test("JSON.stringify writes jobs with their ids as texts, and without the token", async () => {
  const keep: Handler = (_, job) => JSON.stringify(job);
  const { result } = await perform(keep, { to: "ann" }, { id: 8_999_999_999_999_999n, token: 5n, attempt: 2 });
  const seen = JSON.parse(String(result)) as Record<string, unknown>;
  assert.equal(seen.id, "8999999999999999");
  assert.equal(seen.attempt, 2);
  assert.equal(seen.token, undefined);
  const job = JSON.parse(JSON.stringify(newJob("t", undefined, { after: [17n], keyVersion: 2n ** 60n }))) as object;
  assert.deepEqual(job, { taskType: "t", after: ["17"], keyVersion: "1152921504606846976" });
  const client = new RecordingClient();
  assert.match(JSON.stringify(await client.enqueue("t", {})), /^\{"id":"\d+","isNew":true,"outcome":"new"\}$/);
});

test("a payload is JSON, bytes, or a message of protocol buffers", async () => {
  const lease = protobufTask("lease", proto.LeaseSchema);
  const seen: unknown[] = [];
  const keep: Handler = (payload) => void seen.push(payload);
  await perform(keep as Handler<{ to: string }>, { to: "ann" }, { task: email });
  await perform(keep as Handler<Uint8Array>, new Uint8Array([1, 2]), { task: bytesTask("raw") });
  await perform(keep as Handler<proto.Lease>, create(proto.LeaseSchema, { id: 7n }), { task: lease });
  await perform(keep, undefined);
  assert.deepEqual(seen, [{ to: "ann" }, new Uint8Array([1, 2]), create(proto.LeaseSchema, { id: 7n }), undefined]);
});

test("a payload that cannot be read is fatal", async () => {
  const checked = jsonTask("checked", (value) => {
    if (typeof value !== "number") throw new TypeError("no number");
    return value;
  });
  const done = await perform<number>(() => {}, "x" as never, { task: checked });
  assert.deepEqual(done, { outcome: "fatal", error: "the payload cannot be read: no number" });
});

test("a handler returns a result or an outcome", async () => {
  assert.deepEqual(await perform(() => ({ sent: 1 }), null), { outcome: "ok", result: { sent: 1 } });
  assert.deepEqual(await perform(() => {}, null), { outcome: "ok", result: undefined });
  assert.deepEqual(await perform(() => new Uint8Array([255]), null), { outcome: "ok", result: new Uint8Array([255]) });
  assert.deepEqual(await perform(() => snooze(500), null), { outcome: "snooze", delayMs: 500 });
  assert.deepEqual(await perform(() => release(), null), { outcome: "release" });
  assert.deepEqual(await perform(() => nextStage("b", 1), null), { outcome: "ok", result: 1, nextStage: "b" });
});

test("an error of a handler is a retry, unless its class says otherwise", async () => {
  const fails = (error: unknown) =>
    perform(() => {
      throw error;
    }, null);
  const why = new Error("connection refused");
  const error = new Error("no mail", { cause: why });
  assert.deepEqual(await fails(error), { outcome: "retry", error: "no mail: connection refused" });
  assert.deepEqual(await fails(new FatalError("closed")), { outcome: "fatal", error: "closed" });
  const later = new RetryError("busy", { after: 100 });
  assert.deepEqual(await fails(later), { outcome: "retry", error: "busy", delayMs: 100 });
  assert.deepEqual(await fails("text"), { outcome: "retry", error: "text" });
  assert.equal((await fails(new Error("x".repeat(1 << 20)))).error?.length, 32 << 10);
});

test("a handler that throws the abort reason has not failed", async () => {
  const stop = new AbortController();
  const handler: Handler = (_, { signal }) => {
    stop.abort(new CancelledError(1n, "stop"));
    signal.throwIfAborted();
  };
  assert.deepEqual(await perform(handler, null, { signal: stop.signal }), { outcome: "release" });
});

test("perform returns the reports of a handler", async () => {
  const handler: Handler = async (_, job) => {
    await job.progress(0.5, "half");
    await job.saveCheckpoint({ page: (job.checkpointJson<{ page: number }>()?.page ?? 0) + 1 });
  };
  const checkpoint = new TextEncoder().encode('{"page":1}');
  const done = await perform(handler, null, { attempt: 2, checkpoint });
  assert.equal(done.fraction, 0.5);
  assert.equal(done.text, "half");
  assert.deepEqual(fromJsonBytes(done.checkpoint ?? new Uint8Array()), { page: 2 });
});

test("a recording client asserts that a job was enqueued", async () => {
  const client = new RecordingClient();
  await client.enqueue(email, { to: "ann" }, { key: "k", delay: "1s" });
  client.assertEnqueued(email);
  client.assertEnqueued("email.send", { to: "ann" }, { key: "k", delay: "1s" });
  assert.throws(() => client.assertEnqueued(email, { to: "bob" }), assert.AssertionError);
  assert.throws(() => client.assertEnqueued(email, { to: "ann" }, { delay: 2000 }), assert.AssertionError);
  assert.throws(() => client.assertEnqueued("other"), assert.AssertionError);
});

test("a recording client follows key policies, also in a producer", async () => {
  const client: Enqueuer & RecordingClient = new RecordingClient();
  const producer = client.producer();
  const outcomes = [];
  for (const [payload, options] of [
    ["a", {}],
    ["b", { keyPolicy: "replace" }],
    ["c", { keyPolicy: "keep" }],
    ["d", { keyPolicy: "replace_if_newer", keyVersion: 2n }],
    ["e", { keyPolicy: "replace_if_newer", keyVersion: 2n }],
  ] as const)
    outcomes.push((await producer.enqueue("t", payload, { key: "k", ...options })).outcome);
  assert.deepEqual(outcomes, ["new", "replaced", "kept", "replaced", "stale"]);
  const both = [newJob("t"), newJob("t", null, { key: "k", keyPolicy: "reject" })];
  await assert.rejects(
    producer.enqueueAll(both),
    (error) => error instanceof HowdahError && error.code === Code.AlreadyExists && error.field === "jobs[1].key",
  );
  await producer.close();
  assert.deepEqual(
    client.enqueued.map(({ payload }) => fromJsonBytes(payload)),
    ["d"],
  );
});

test("a token goes in plain text to this machine only, unless insecureToken is set", () => {
  const token = "hwd_secret";
  for (const local of ["127.0.0.1:1", "http://localhost:1", "[::1]:1", "https://broker:1"])
    assert.ok(new Client({ servers: local, token }));
  for (const other of ["broker:1", "http://10.0.0.1:1", "127.0.0.1.example:1"]) {
    assert.throws(() => new Client({ servers: other, token }), refused("servers", /https:/));
    assert.ok(new Client({ servers: other, token, insecureToken: true }));
  }
});

test("an invalid option is refused by name, and a token is never repeated", () => {
  for (const bad of ["", "postgres://broker", "http://", "a b"])
    assert.throws(() => new Client({ servers: bad }), refused("servers", /is not host:port/));
  assert.throws(
    () => new Client({ token: "a secret" }),
    (error) => refused("token", /characters/)(error) && !String(error).includes("secret"),
  );
  assert.throws(() => new Client({ tokenFile: "/nowhere/token" }), refused("token_file", /\/nowhere\/token/));
  assert.throws(() => new Client({ servers: "https://a", tls: { cert: "x" } }), refused("tls", /set both/));
});

test("a missing option is read from the environment", () => {
  const file = join(mkdtempSync(join(tmpdir(), "howdah-")), "token");
  writeFileSync(file, "hwd_from_a_file\n");
  process.env.HOWDAH_SERVER = "broker:1";
  process.env.HOWDAH_TOKEN_FILE = file;
  try {
    assert.throws(() => new Client(), refused("servers", /readable by anyone/));
    assert.ok(new Client("127.0.0.1:1"));
  } finally {
    delete process.env.HOWDAH_SERVER;
    delete process.env.HOWDAH_TOKEN_FILE;
  }
});

test("the error of an unreachable broker has its address", async () => {
  await assert.rejects(Client.connect("127.0.0.1:9"), (error: HowdahError) => {
    assert.equal(error.code, Code.Unavailable);
    assert.ok(error.retryable);
    assert.match(error.message, /127\.0\.0\.1:9.*ECONNREFUSED/);
    return true;
  });
});

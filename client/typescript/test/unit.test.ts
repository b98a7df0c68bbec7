import assert from "node:assert/strict";
import { once } from "node:events";
import { writeFileSync, mkdtempSync } from "node:fs";
import { createServer } from "node:http";
import { type AddressInfo, createServer as createTcpServer } from "node:net";
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
import { telemetry } from "howdah/opentelemetry";
import { perform, RecordingClient, startBroker } from "howdah/testing";

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

/** Values of programs without type checks. */
const anything = (value: unknown) => value as never;

test("a mistake in a program without type checks is refused, with the option, its value and what to do", async () => {
  const client = new Client("127.0.0.1:1");
  const job = (options: unknown) => () => newJob("a", 1, anything(options));
  const schedule = (options: unknown) => () => client.applySchedule("s", newJob("a"), anything(options));
  const type = (options: unknown) => () => client.applyTaskType("a", anything(options));
  const cancelled = async () => [await client.wait([1n], anything({ timout: 1 })).next()];
  const worker = () => client.worker().handle("a", () => 1);
  const mistakes: [string, () => unknown, RegExp][] = [
    ["prioritee", job({ prioritee: 5 }), /^prioritee is not an option of a job; the options are headers, priority, /],
    ["taskType", job({ taskType: "b" }), /^taskType is not an option of a job/],
    ["options", job(5), /^options is 5: give an object with headers, /],
    ["priority", job({ priority: 1.5 }), /^priority is 1.5: give an integer$/],
    ["priority", job({ priority: null }), /^priority is null: give an integer$/],
    ["maxAttempts", job({ maxAttempts: -1 }), /^maxAttempts is -1: give an integer of at least 0$/],
    ["headers.a", job({ headers: { a: 5 } }), /^headers.a is 5: give a text$/],
    ["tags", job({ tags: "abc" }), /^tags is "abc": give an array$/],
    ["tags[1]", job({ tags: ["a", 5] }), /^tags\[1\] is 5: give a text$/],
    ["after[0]", job({ after: [17] }), /^after\[0\] is 17: give a bigint, such as 17n$/],
    ["runAt", job({ runAt: "2027-01-01" }), /^runAt is "2027-01-01": give a valid Date$/],
    ["expireAt", job({ expireAt: new Date("tomorrow") }), /^expireAt is Invalid Date: give a valid Date$/],
    ["keyPolicy", job({ keyPolicy: "keeep" }), /^keyPolicy is "keeep": give one of keep, replace, replace_if_newer, /],
    ["retryPolicy", job({ retryPolicy: "list" }), /^retryPolicy is "list": give an object with initialDelay, /],
    ["retryPolicy.first", job({ retryPolicy: { first: 1 } }), /^retryPolicy.first is not an option of retryPolicy; /],
    ["delay", job({ delay: 1, runAt: new Date() }), /^delay and runAt contradict each other: give one$/],
    ["expireAt", job({ expireAt: new Date(), expireAfter: 1 }), /^expireAt and expireAfter contradict each other/],
    ["task", () => newJob(anything(5)), /^task is 5: give the name of a task type, or a Task/],
    ["task", () => client.enqueue(anything(undefined)), /^task is undefined: give/],
    ["payload", () => newJob(bytesTask("raw"), anything("text")), /^payload is "text": give bytes/],
    ["requestkey", () => client.enqueue("a", 1, anything({ requestkey: "x" })), /the options are requestKey, headers/],
    ["requestkey", () => client.enqueueAll([], anything({ requestkey: "x" })), /is not an option of an enqueue/],
    [
      "requestKey",
      () => client.enqueue("a", 1, { requestKey: "" }),
      /^requestKey is "": give a text that is not empty/,
    ],
    ["jobs[0]", () => client.enqueueAll(anything([{ taskType: "a" }])), /make the job with newJob$/],
    ["requestkey", () => new RecordingClient().enqueueAll([], anything({ requestkey: "x" })), /is not an option/],
    ["tokn", () => new Client(anything({ tokn: "x" })), /^tokn is not an option of a client; the options are servers/],
    ["servers", () => new Client(anything({ servers: 5 })), /^servers is 5: give host:port/],
    ["tls.sa", () => new Client({ tls: anything({ sa: "x" }) }), /^tls.sa is not an option of tls; the options are ca/],
    [
      "requestTimeout",
      () => new Client({ requestTimeout: -1 }),
      /^requestTimeout is -1: give a duration of at least 0$/,
    ],
    ["concurency", () => client.worker(anything({ concurency: 2 })), /^concurency is not an option of a worker/],
    ["concurrency", () => client.worker({ concurrency: 0 }), /^concurrency is 0: give an integer of at least 1$/],
    ["labels", () => client.worker({ labels: anything({ version: 5 }) }), /give an object whose values are texts$/],
    ["handler", () => client.worker().handle("a", anything(undefined)), /give the function that runs jobs of a$/],
    ["concurrency", () => client.worker().handle("a", () => 1, { concurrency: 1.5 }), /^concurrency is 1.5: give/],
    ["concurency", () => client.worker().handle("a", () => 1, anything({ concurency: 1 })), /an option of a handler/],
    ["task", () => worker().handle("a", () => 2), /^task a has a handler in this worker already: give it only one$/],
    ["taskType", () => worker().setConcurrency("b", 1), /^taskType is "b": name a task type with a handler$/],
    ["handle", () => client.worker().run(), /the worker has no handlers/],
    ["stopon", () => worker().run(anything({ stopon: [] })), /^stopon is not an option of a run/],
    ["timout", () => worker().stop(anything({ timout: 1 })), /^timout is not an option of a stop/],
    ["timout", cancelled, /^timout is not an option of a wait; the options are timeout, signal$/],
    ["handel", () => client.use(anything({ handel: () => 1 })), /^handel is not a function of middleware/],
    ["maxInflight", () => client.producer(anything({ maxInflight: 1 })), /^maxInflight is not an option of a producer/],
    ["maxInFlight", () => client.producer({ maxInFlight: 0 }), /^maxInFlight is 0: give an integer of at least 1$/],
    ["overlp", schedule({ cron: "* * * * *", overlp: "skip" }), /^overlp is not an option of a schedule; .* overlap, /],
    ["overlap", schedule({ period: "1h", overlap: "one" }), /^overlap is "one": give one of allow, skip, one-waiting$/],
    ["period", schedule({ cron: "* * * * *", period: "1h" }), /^period and cron contradict each other: give one$/],
    ["period", schedule({ period: "1h", timeZone: "UTC" }), /^period and timeZone contradict each other: give one$/],
    ["timeZone", schedule({ timeZone: "UTC" }), /give cron too$/],
    ["template", () => client.applySchedule("s", anything("a"), { period: "1h" }), /make the job with newJob$/],
    ["maxRuning", type({ maxRuning: 1 }), /^maxRuning is not an option of a task type; the options are maxAttempts/],
    ["maxBacklog", type({ maxBacklog: 1.5 }), /^maxBacklog is 1.5: give an integer of at least 0$/],
    ["brake.failurs", type({ brake: { failurs: 5 } }), /^brake.failurs is not an option of brake/],
    ["rate", type({ rate: 5 }), /^rate is 5: give an object with perSecond, burst$/],
    ["delay", () => client.retryJobs(1n, { delay: 1, runAt: new Date() }), /^delay and runAt contradict each other/],
    ["dellay", () => client.retryJobs(1n, anything({ dellay: 1 })), /^dellay is not an option of a retry/],
    ["dellay", () => client.rerunJobs(1n, anything({ dellay: 1 })), /^dellay is not an option of a rerun/],
    ["requestkey", () => client.runSchedule("s", anything({ requestkey: "x" })), /the options are requestKey$/],
    ["id", () => client.getJob(anything("x")), /^id is "x": give a bigint, such as 17n$/],
    ["afer", () => new RetryError("busy", anything({ afer: "1m" })), /^afer is not an option of a RetryError/],
    ["delay", () => snooze(anything(undefined)), /^delay is undefined: write a duration/],
    ["taskType", () => nextStage(anything(5)), /^taskType is 5: give a text/],
    ["attemt", () => perform(() => 1, 1, anything({ attemt: 2 })), /^attemt is not an option of perform/],
    ["linkd", () => telemetry(anything({ linkd: true })), /^linkd is not an option of telemetry/],
    ["bni", () => startBroker(anything({ bni: "x" })), /^bni is not an option of startBroker/],
  ];
  for (const [field, make, text] of mistakes)
    await assert.rejects(async () => make(), refused(field, text), `${field} ${text}`);
  assert.throws(() => newJob("a", () => 1), /a function cannot be encoded as JSON/);
});

test("a wrong or unset condition is refused in every call, because it would select more jobs", async () => {
  const client = new Client("127.0.0.1:1");
  const search = async (filter: never) => [await client.searchJobs(filter).next()];
  const calls: ((filter: never) => Promise<unknown>)[] = [
    (filter) => client.cancelJobs(filter),
    (filter) => client.discardJobs(filter),
    (filter) => client.retryJobs(filter),
    search,
  ];
  const wrong: [string, object, RegExp][] = [
    ["tagg", { tagg: "z" }, /^tagg is not a condition; the conditions are taskType, state, .* tag, /],
    ["tag", { tag: undefined }, /^tag is undefined: leave the condition out$/],
    ["fairKey", { fairKey: null }, /^fairKey is null: leave the condition out$/],
    ["tag", { tag: "" }, /^tag is empty: leave the condition out$/],
    ["state", { state: undefined }, /^state is undefined: leave the condition out$/],
    ["state", { state: "red" }, /^state is "red": give one of ready, /],
    ["createdBefore", { createdBefore: "now" }, /^createdBefore is "now": give a valid Date$/],
    ["attemptsAtLeast", { attemptsAtLeast: 1.5 }, /^attemptsAtLeast is 1.5: give an integer$/],
    ["taskType", { taskType: "" }, /^taskType is empty/],
  ];
  for (const call of calls) {
    for (const [field, condition, text] of wrong)
      await assert.rejects(call(anything({ taskType: "a", ...condition })), refused(field, text));
    await assert.rejects(call(anything({ tag: "z" })), refused("taskType", /the task type is missing/));
  }
  const both = { key: "k", payloadText: "t" };
  await assert.rejects(search(anything({ taskType: "a", ...both })), refused("key", /^key and payloadText contradict/));
  for (const call of calls.slice(0, 3)) {
    await assert.rejects(call(anything(17)), refused("jobs", /^jobs is 17: give an id as a bigint such as 17n, /));
    await assert.rejects(call(anything([1n, 17])), refused("jobs[1]", /^jobs\[1\] is 17: give a bigint/));
  }
  await assert.rejects(
    client.rerunJobs(anything({ taskType: "a" })),
    refused("ids", /^ids is \{ taskType: 'a' \}: give/),
  );
});

test("a misspelt field in a request of a generated client is refused", async () => {
  const client = new Client("127.0.0.1:1");
  const filter = (conditions: object) => anything({ filter: { taskType: "a", conditions } });
  for (const call of [client.jobs.cancelJobs, client.jobs.discardJobs, client.jobs.retryJobs]) {
    const send = call as (request: never) => Promise<unknown>;
    await assert.rejects(
      send(filter({ tagg: "z" })),
      refused("filter.conditions.tagg", /is not a field of JobConditions; the fields/),
    );
    await assert.rejects(send(filter({ tag: undefined })), refused("filter.conditions.tag", /leave the condition out/));
    await assert.rejects(
      send(anything({ fliter: {} })),
      refused("fliter", /^fliter is not a field of \w+; the fields are/),
    );
  }
  const bulk = (spec: object) => client.bulks.startBulk(anything({ spec: { taskType: "a", ...spec } }));
  await assert.rejects(
    bulk({ conditions: { tagg: "z" } }),
    refused("spec.conditions.tagg", /a field of JobConditions/),
  );
  await assert.rejects(bulk({ errorGroup: undefined }), refused("spec.errorGroup", /leave the condition out/));
  const start = { case: "delay", value: { secs: 1n } };
  await assert.rejects(client.jobs.retryJobs(anything({ start })), refused("delay.secs", /is not a field of Duration/));
  const jobs = [newJob("a"), { taskTyp: "a" }];
  await assert.rejects(client.jobs.enqueueJobs(anything({ jobs })), refused("jobs[1].taskTyp", /a field of NewJob/));
});

test("a name of an option's value may be written with hyphens, and delays without a kind are a list", () => {
  const { keyPolicy, retryPolicy } = newJob("a", 1, {
    keyPolicy: anything("replace-if-newer"),
    retryPolicy: { delays: [10, "20ms"] },
  });
  assert.equal(keyPolicy, proto.KeyPolicy.REPLACE_IF_NEWER);
  assert.equal(retryPolicy?.kind, proto.RetryPolicyKind.LIST);
  const fixed = newJob("a", 1, { retryPolicy: { delays: [10], kind: "fixed" } });
  assert.equal(fixed.retryPolicy?.kind, proto.RetryPolicyKind.FIXED);
});

test("a producer whose job is refused fails at its end", async () => {
  const producer = new Client("127.0.0.1:1").producer();
  void producer.enqueue("a", 1, anything({ prioritee: 5 }));
  await assert.rejects(producer.close(), refused("prioritee", /is not an option of a job/));
});

test("a test broker without a program says what to do", async () => {
  const { PATH, HOWDAH_BIN } = process.env;
  try {
    process.env.PATH = "/nowhere";
    process.env.HOWDAH_BIN = "";
    await assert.rejects(startBroker(), { message: "howdah is not on the PATH: install it or set HOWDAH_BIN" });
    process.env.HOWDAH_BIN = "/nowhere/howdah";
    await assert.rejects(startBroker(), /^Error: HOWDAH_BIN is "\/nowhere\/howdah", which cannot be run/);
  } finally {
    Object.assign(process.env, { PATH, HOWDAH_BIN });
  }
});

test("connecting to a port that is not a broker's fails, and later errors do not end the program", async (t) => {
  const server = createServer((_, response) => response.end("hello")).listen(0, "127.0.0.1");
  t.after(() => {
    server.close();
    server.closeAllConnections();
  });
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const servers = `127.0.0.1:${port}`;
  const text = new RegExp(`${servers}: what answers there is not the gRPC port of a broker`);
  const isNamed = (error: unknown) => error instanceof HowdahError && text.test(error.message);
  await assert.rejects(Client.connect(servers), isNamed);
  const client = new Client({ servers, requestTimeout: 300 });
  for (let each = 0; each < 3; each++) await assert.rejects(client.enqueue("a"), isNamed);
  await assert.rejects(client.getJob(1n), isNamed);
  await assert.rejects(client.enqueue("a"), /^HowdahError: no broker answered in time; last error: 127/);
  await client.close();
  const closing = createTcpServer((socket) => void socket.on("error", () => {}).end()).listen(0, "127.0.0.1");
  t.after(() => closing.close());
  await once(closing, "listening");
  const closed = Client.connect(`127.0.0.1:${(closing.address() as AddressInfo).port}`);
  await assert.rejects(closed, /; a broker has its gRPC port at 7432 by default$/);
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
    assert.throws(() => newJob("a", null, { delay }), refused("delay", /: write a duration as milliseconds/));
    assert.throws(() => new RetryError("busy", { after: delay }), refused("after", /a duration/));
    assert.throws(() => new Client({ requestTimeout: delay }), refused("requestTimeout", /a duration/));
    assert.throws(() => new Client().worker({ liveness: delay }), refused("liveness", /a duration/));
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
  assert.deepEqual(done, { outcome: "fatal", error: "the payload cannot be read: TypeError: no number" });
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
  const typed = new RangeError("too long", { cause: new TypeError("no text") });
  assert.deepEqual(await fails(typed), { outcome: "retry", error: "RangeError: too long: TypeError: no text" });
  assert.equal((await fails(new RetryError("busy", { cause: new TypeError("x") }))).error, "busy: TypeError: x");
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
  assert.throws(() => client.assertEnqueued("other", 1), {
    message:
      "no job was enqueued like\n  { taskType: 'other', payload: 1 }\nbut\n" +
      "  { taskType: 'email.send', payload: { to: 'ann' }, delay: '1s', key: 'k' }",
  });
  assert.throws(() => new RecordingClient().assertEnqueued("other"), /but\n  nothing$/);
});

test("a recording client repeats the answer to a request key", async () => {
  const client = new RecordingClient();
  const first = await client.enqueue(email, { to: "ann" }, { requestKey: "order-17" });
  const again = await client.enqueue(email, { to: "ann" }, { requestKey: "order-17" });
  assert.deepEqual([again.id, again.isNew, again.outcome], [first.id, false, "repeated"]);
  assert.equal(client.enqueued.length, 1);
  const other = client.enqueue(email, { to: "bob" }, { requestKey: "order-17" });
  await assert.rejects(other, (error: HowdahError) => error.reason === "REQUEST_KEY_REUSED");
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

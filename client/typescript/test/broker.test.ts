import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { setImmediate } from "node:timers/promises";
import {
  CancelledError,
  Client,
  Code,
  FatalError,
  fromJsonBytes,
  type Handler,
  HowdahError,
  type Job,
  type JobOptions,
  type JobSearch,
  newJob,
  proto,
  RetryError,
  snooze,
} from "howdah";
import { RecordingClient, startBroker, type TestBroker } from "howdah/testing";

let broker: TestBroker;
let client: Client;
let types = 0;
/** Returns a new task type, so that each test has a separate one. */
const newType = () => `test.${++types}`;

before(async () => {
  broker = await startBroker();
  client = await Client.connect(broker.server);
});

after(async () => {
  await client.close();
  await broker.stop();
});

/** Resolves the promise `done` after a number of calls of `hit`. */
class Latch {
  readonly done: Promise<void>;
  #resolve = () => {};

  constructor(private left = 1) {
    this.done = new Promise((resolve) => {
      this.#resolve = resolve;
    });
  }

  hit(): void {
    if (--this.left === 0) this.#resolve();
  }
}

/** Waits until one job has ended, and returns it. */
async function ended(id: bigint): Promise<proto.Job> {
  for await (const job of client.wait([id], { timeout: "20s" })) return job;
  throw new Error("the job has not ended");
}

test("a waiting client gets the result of a job", async () => {
  const type = newType();
  const worker = client.worker().handle<{ n: number }>(type, ({ n }, { tags }) => ({ square: n * n, tags }));
  const running = worker.run();
  await worker.connected();
  const { id, isNew, outcome } = await client.enqueue(type, { n: 7 }, { headers: { lang: "en" }, tags: ["batch-17"] });
  assert.deepEqual([isNew, outcome], [true, "new"]);
  const job = await ended(id);
  assert.equal(job.state, proto.JobState.SUCCEEDED);
  assert.deepEqual(fromJsonBytes(job.result), { square: 49, tags: ["batch-17"] });
  const { workers } = await client.workers.listWorkers({ taskType: type });
  const { version } = JSON.parse(readFileSync("package.json", "utf8")) as { version: string };
  assert.equal(workers[0]?.labels.client, `howdah-js/${version}`);
  const report = await worker.stop();
  assert.equal(report.acked, 1);
  assert.equal(await running, report);
});

test("a broker for tests has an HTTP port, and runs a delayed job when it is told to", async () => {
  assert.equal((await fetch(`http://${broker.http}/healthz`)).status, 200);
  assert.match(broker.postgres, /^postgres:\/\/.*host=/);
  const type = newType();
  const { id } = await client.enqueue(type, null, { delay: "3 days" });
  assert.deepEqual((await client.retryJobs(id)).ids, [id]);
  const worker = client.worker().handle(type, () => "ran");
  void worker.run();
  assert.equal(fromJsonBytes((await ended(id)).result), "ran");
  await worker.stop();
});

test("a broker for tests runs a delayed job when its clock advances", async () => {
  await using own = await startBroker();
  await using client = await Client.connect(own.server);
  const { id } = await client.enqueue("remind", null, { delay: "3 days" });
  const worker = client.worker().handle("remind", () => "ran");
  void worker.run();
  const before = Date.now();
  assert.ok((await own.advance("3 days")).getTime() >= before + 3 * 86_400_000);
  for await (const job of client.wait([id], { timeout: "30s" })) assert.equal(fromJsonBytes(job.result), "ran");
  await worker.stop();
  await assert.rejects(own.advance("soon"), (error: HowdahError) => error.field === "duration");
  await assert.rejects(own.advance(0), (error: HowdahError) => error.field === "duration");
});

test("a refused field is named", async () => {
  await assert.rejects(client.enqueueAll([newJob("fine"), newJob("no spaces")]), (error: HowdahError) => {
    assert.ok(error instanceof HowdahError);
    assert.deepEqual(
      [error.code, error.reason, error.field],
      [Code.InvalidArgument, "INVALID_FIELD", "jobs[1].task_type"],
    );
    return !error.retryable;
  });
  const fraction = client.jobs.enqueueJobs({ jobs: [{ taskType: "a", priority: 1.5 }] });
  await assert.rejects(fraction, (error: HowdahError) => {
    assert.deepEqual([error.code, error.field], [Code.InvalidArgument, "priority"]);
    return error.message === "priority: invalid int32: 1.5";
  });
});

test("a recording client refuses the jobs that a broker refuses", async () => {
  const refused: Record<string, [JobOptions, unknown?, string?]> = {
    task_type: [{}, undefined, "no spaces"],
    payload: [{}, new Uint8Array((1 << 20) + 1)],
    headers: [{ headers: { a: "x".repeat(9_000) } }],
    key: [{ key: "k".repeat(201) }],
    limit_key: [{ limitKey: "a\nb" }],
    limit_max: [{ limitMax: 1 }],
    "tags[1]": [{ tags: ["a", "ü".repeat(33)] }],
    priority: [{ priority: 1001 }],
    max_attempts: [{ maxAttempts: 1001 }],
    delay: [{ delay: "3651 days" }],
    timeout: [{ timeout: 0 }],
    key_policy: [{ keyPolicy: "replace" }],
    key_version: [{ key: "k", keyPolicy: "replace_if_newer" }],
    key_hold: [{ keyHold: "1h" }],
    key_debounce_limit: [{ key: "k", keyDebounceLimit: "1h" }],
    expire_after: [{ delay: "2h", expireAfter: "1h" }],
    stage_payload: [{ stagePayload: "result" }],
    "next_stages[0]": [{ nextStages: ["a b"] }],
    fallback: [{ fallback: "t" }],
    "after_local[0]": [{ afterLocal: ["nothing"] }],
    on_dependency_failure: [{ onDependencyFailure: "run" }],
    "retry_policy.delays": [{ retryPolicy: { kind: "list" } }],
    "retry_policy.multiplier": [{ retryPolicy: { kind: "fixed", multiplier: 2 } }],
  };
  for (const [field, [options, payload, type = "t"]] of Object.entries(refused))
    for (const each of [new RecordingClient(), client])
      await assert.rejects(each.enqueue(type, payload, options), (error: HowdahError) => {
        const { code, reason } = error;
        assert.deepEqual([code, reason, error.field], [Code.InvalidArgument, "INVALID_FIELD", `jobs[0].${field}`]);
        return true;
      });
});

test("jobs are got, explained, searched, cancelled, retried and discarded", async () => {
  const type = newType();
  const options = { tags: ["t"], headers: { n: "1" } };
  const [first, second, third] = (await client.enqueueAll([1, 2, 3].map((n) => newJob(type, n, options)))).map(
    ({ id }) => id,
  ) as [bigint, bigint, bigint];
  assert.equal(fromJsonBytes((await client.getJob(second)).payload), 2);
  assert.equal((await client.explainJob(first)).reasons[0]?.kind, proto.ReasonKind.NO_WORKER);
  const found = async (search: Omit<JobSearch, "taskType">) => {
    const ids = new Set<bigint>();
    for await (const job of client.searchJobs({ taskType: type, ...search })) ids.add(job.id);
    return ids;
  };
  assert.deepEqual(await found({ tag: "t" }), new Set([first, second, third]));
  const since = new Date(Date.now() - 3_600_000);
  assert.equal((await found({ header: { name: "n", value: "1" }, state: "ready", since })).size, 3);
  assert.deepEqual(await client.cancelJobs([first, 1n]), [first]);
  assert.deepEqual(new Set(await client.cancelJobs({ taskType: type, state: "ready" })), new Set([second, third]));
  await assert.rejects(client.cancelJobs({ taskType: type, state: "red" as "ready" }), /give one of ready, /);

  const ids = (await client.enqueueAll([newJob(type, 1), newJob(type, 2)])).map(({ id }) => id) as [bigint, bigint];
  const logger = { ...console, error: () => {} };
  const own = new Client({ servers: broker.server, logger });
  const worker = own.worker().handle(type, () => {
    throw new FatalError("dead");
  });
  void worker.run();
  for (const id of ids) assert.equal((await ended(id)).state, proto.JobState.DEAD);
  await worker.stop();
  await own.close();
  const retried = await client.retryJobs(ids[0], { payload: "again", delay: "1h" });
  assert.deepEqual(retried, { ids: [ids[0]], keyHeldIds: [], revivedIds: [] });
  const job = await client.getJob(ids[0]);
  assert.deepEqual([job.state, fromJsonBytes(job.payload)], [proto.JobState.SCHEDULED, "again"]);
  assert.deepEqual(await client.discardJobs({ taskType: type, state: "dead" }), [ids[1]]);
});

test("schedules and task types are applied again and again, and keep their pause", async () => {
  const name = newType();
  const template = newJob(name, 1);
  const plan = { cron: "0 3 * * *", timeZone: "Europe/Berlin", overlap: "one-waiting" } as const;
  const schedule = await client.applySchedule(name, template, plan);
  assert.deepEqual([schedule.plan.case, schedule.overlap, schedule.nextTimes.length], ["cron", 3, 10]);
  assert.ok((await client.pauseSchedule(name)).paused);
  const again = await client.applySchedule(name, template, { period: "1h30m", jitter: "5m" });
  assert.deepEqual([again.plan.case, again.paused], ["period", true]);
  assert.ok(!(await client.resumeSchedule(name)).paused);
  const run = await client.runSchedule(name);
  assert.equal((await client.getJob(run.id)).taskType, name);
  await client.deleteSchedule(name);
  await assert.rejects(client.pauseSchedule(name), (error: HowdahError) => error.code === Code.NotFound);

  const retryPolicy = { delays: ["10s", "1m"] };
  const rate = { perSecond: 10, burst: 2 };
  const settings = await client.applyTaskType(name, { maxAttempts: 3, timeout: "5m", retryPolicy, rate });
  assert.deepEqual([settings.maxAttempts, settings.rate?.burst, settings.paused], [3, 2, false]);
  assert.equal(settings.retryPolicy?.kind, proto.RetryPolicyKind.LIST);
  const paused = await client.pauseTaskType(name);
  assert.deepEqual([paused.maxAttempts, paused.rate?.burst, paused.paused], [3, 2, true]);
  const replaced = await client.applyTaskType(name, { maxAttempts: 5 });
  assert.deepEqual([replaced.maxAttempts, replaced.paused, replaced.timeout], [5, true, undefined]);
  assert.ok(!(await client.resumeTaskType(name)).paused);
});

test("a request key returns the same job again", async () => {
  const [first] = await client.enqueueAll([newJob("a.b", 1)], { requestKey: "same" });
  const [again] = await client.enqueueAll([newJob("a.b", 1)], { requestKey: "same" });
  assert.equal(again?.id, first?.id);
  assert.deepEqual([first?.outcome, again?.outcome, again?.isNew], ["new", "repeated", false]);
  const one = await client.enqueue("a.b", 1, { requestKey: "same", priority: 0 });
  assert.deepEqual([one.id, one.outcome], [first?.id, "repeated"]);
});

test("a cancelled job tells its handler why", async () => {
  const type = newType();
  const started = new Latch();
  let reason: unknown;
  const worker = client.worker().handle(type, async (_, job) => {
    started.hit();
    await once(job.signal, "abort");
    reason = job.signal.reason;
  });
  const running = worker.run();
  const { id } = await client.enqueue(type);
  await started.done;
  assert.deepEqual(await client.cancelJobs(id), [id]);
  assert.equal((await ended(id)).state, proto.JobState.CANCELLED);
  await worker.stop();
  await running;
  assert.ok(reason instanceof CancelledError && reason.reason === "cancelled");
});

test("an invalid report or extension fails, and the worker goes on", async () => {
  const type = newType();
  const worker = client.worker().handle(type, async (_, job) => {
    const refused = (error: HowdahError) => error.code === Code.InvalidArgument;
    await assert.rejects(job.progress("0.5" as never), refused);
    await assert.rejects(job.report({ fractoin: 0.5 } as never), refused);
    await assert.rejects(job.extend("soon"), refused);
    await job.progress(0.5);
    return "done";
  });
  void worker.run();
  assert.equal(fromJsonBytes((await ended((await client.enqueue(type)).id)).result), "done");
  await worker.stop();
});

test("a checkpoint and an extension reach the broker", async () => {
  const type = newType();
  const seen: unknown[] = [];
  const worker = client.worker().handle(type, async (_, job) => {
    seen.push(job.checkpointJson());
    await job.extend(60_000);
    // The handler does not await these progress reports, but the worker sends them before the outcome.
    void job.saveCheckpoint({ row: 500 });
    void job.progress(0.5, "half");
    if (job.attempt === 1) throw new RangeError("disk full");
  });
  void worker.run();
  const retryPolicy = { kind: "fixed", initialDelay: 0 } as const;
  const { id } = await client.enqueue(type, undefined, { timeout: "10s", retryPolicy });
  const job = await ended(id);
  assert.deepEqual(seen, [undefined, { row: 500 }]);
  assert.equal(job.failures[0]?.error, "RangeError: disk full");
  const details = job.failures[0]?.details ?? "";
  assert.match(details, /^RangeError: disk full\n\s+at .*broker\.test/);
  assert.doesNotMatch(details, /dist.esm|node:internal/);
  assert.equal(job.progress?.text, "half");
  await worker.stop();
});

test("each failed attempt is logged once", async () => {
  const type = newType();
  const logged: string[] = [];
  const log = (level: string) => (text: string, details: { error: Error }) =>
    void logged.push(`${level} ${text}: ${details.error.message}`);
  const logger = { ...console, info: () => {}, warn: log("warn"), error: log("error") };
  const own = new Client({ servers: broker.server, logger });
  const errors = [new Error("bug"), new RetryError("retry", { after: 0 }), new FatalError("fatal"), snooze(0)];
  const worker = own.worker().handle<number>(type, async (index, job) => {
    if (job.checkpoint.length > 0) return "done";
    await job.saveCheckpoint("begun");
    const outcome = errors[index];
    if (outcome instanceof Error) throw outcome;
    return outcome;
  });
  void worker.run();
  const retryPolicy = { kind: "fixed", initialDelay: 0 } as const;
  const ids = await own.enqueueAll(errors.map((_, index) => newJob(type, index, { retryPolicy })));
  for (const { id } of ids) await ended(id);
  await worker.stop();
  await own.close();
  const text = (index: number) => `howdah: job ${ids[index]?.id} (${type}): attempt 1 of 10 failed`;
  const fatal = `error ${text(2)} for good: fatal`;
  assert.deepEqual(logged.sort(), [fatal, `warn ${text(0)}: bug`, `warn ${text(1)}: retry`]);
});

test("a stop aborts the signal of a handler, and releases its job", async () => {
  const type = newType();
  const started = new Latch();
  let running: Job | undefined;
  const worker = client.worker({ stopTimeout: 50 }).handle(type, (_, job) => {
    running = job;
    started.hit();
    return new Promise(() => {});
  });
  void worker.run();
  const { id } = await client.enqueue(type);
  await started.done;
  const report = await worker.stop();
  assert.equal(report.released, 1);
  assert.ok(running?.signal.reason instanceof CancelledError);
  assert.equal((await client.getJob(id)).state, proto.JobState.READY);
});

test("a pipeline stores all jobs except the refused one, and names its field", async () => {
  const type = newType();
  const producer = client.producer({ maxInFlight: 2, maxBatchJobs: 10 });
  const answers = Array.from({ length: 100 }, (_, n) => producer.enqueue(n === 42 ? "no spaces" : type, n));
  const settled = await Promise.allSettled(answers);
  assert.equal(settled.filter(({ status }) => status === "fulfilled").length, 99);
  await assert.rejects(answers[42] as Promise<unknown>, (error: HowdahError) => error.field === "jobs[0].task_type");
  await assert.rejects(producer.flush(), HowdahError);
  await producer.close();
  const { taskTypes } = await client.taskTypes.listTaskTypes({ taskType: type });
  assert.equal(taskTypes[0]?.counts?.ready, 99n);
  await assert.rejects(producer.enqueue(type), /closed/);
});

test("ready waits while the queue of a pipeline is full", async () => {
  const producer = client.producer({ maxQueuedBytes: 1000 });
  let answered = false;
  const answer = producer.enqueue("full", "x".repeat(2000)).then(() => {
    answered = true;
  });
  await producer.ready();
  assert.ok(answered || (await answer.then(() => true)));
  await producer.close();
});

test("a worker that nothing holds ends while no broker is there", async () => {
  const lonely = new Client({ servers: "127.0.0.1:9", logger: { ...console, warn: () => {} } });
  const worker = lonely.worker().handle("a", () => {});
  const running = worker.run();
  await worker.stop();
  assert.equal((await running).received, 0);
  await assert.rejects(lonely.getJob(1n), (error: HowdahError) => error.code === Code.Unavailable);
});

test("a worker whose concurrency is changed holds as many jobs", async () => {
  const type = newType();
  const [first, all, finish] = [new Latch(), new Latch(3), new Latch()];
  const work = () => {
    first.hit();
    all.hit();
    return finish.done;
  };
  const worker = client.worker().handle(type, work, { concurrency: 1 });
  void worker.run();
  await client.enqueueAll([newJob(type), newJob(type), newJob(type)]);
  await first.done;
  worker.setConcurrency(type, 3);
  await all.done;
  finish.hit();
  assert.equal((await worker.stop()).acked, 3);
});

test("the types of a worker share its concurrency", async () => {
  const [a, b] = [newType(), newType()];
  const running = { [a]: 0, [b]: 0 };
  const most = { [a]: 0, [b]: 0, both: 0 };
  const work: Handler = async (_, { taskType }) => {
    running[taskType] = (running[taskType] ?? 0) + 1;
    most[taskType] = Math.max(most[taskType] ?? 0, running[taskType]);
    most.both = Math.max(most.both, (running[a] ?? 0) + (running[b] ?? 0));
    await setImmediate();
    running[taskType]--;
  };
  const worker = client.worker({ concurrency: 3 }).handle(a, work).handle(b, work, { concurrency: 1 });
  void worker.run();
  const jobs = Array.from({ length: 60 }, (_, n) => newJob(n % 2 ? a : b));
  const ids = (await client.enqueueAll(jobs)).map(({ id }) => id);
  for await (const job of client.wait(ids)) assert.equal(job.state, proto.JobState.SUCCEEDED);
  await worker.stop();
  assert.deepEqual([most[b], most.both], [1, 3]);
});

test("a job that waits in a busy worker goes to another one", async () => {
  const [long, short] = [newType(), newType()];
  const [started, finish] = [new Latch(), new Latch()];
  const busy = client
    .worker({ concurrency: 1 })
    .handle(long, () => {
      started.hit();
      return finish.done;
    })
    .handle(short, () => "busy");
  void busy.run();
  const first = await client.enqueue(long);
  await started.done;
  // The busy worker is the only one, so it gets this job.
  const second = await client.enqueue(short);
  const idle = client.worker().handle(short, () => "idle");
  void idle.run();
  assert.equal(fromJsonBytes((await ended(second.id)).result), "idle");
  await idle.stop();
  const { workers } = await client.workers.listWorkers({ taskType: long });
  const windows = workers[0]?.windows.map(({ taskType, windowJobs }) => [taskType, windowJobs]) ?? [];
  assert.deepEqual(Object.fromEntries(windows), { [long]: 1, [short]: 0 });
  finish.hit();
  await ended(first.id);
  // The busy worker takes jobs of both types again.
  assert.equal(fromJsonBytes((await ended((await client.enqueue(short)).id)).result), "busy");
  const report = await busy.stop();
  assert.deepEqual([report.released, report.acked], [1, 2]);
});

test("middleware surrounds each enqueue and each handler", async () => {
  const type = newType();
  const own = new Client(broker.server);
  const seen: string[] = [];
  own.use({
    enqueue: (jobs, next) => {
      for (const job of jobs) job.headers.tenant = "t1";
      return next();
    },
    handle: async (job, next) => {
      seen.push(`before ${job.headers.tenant}`);
      const result = await next();
      seen.push(`after ${String(result)}`);
      return result;
    },
  });
  const worker = own.worker().handle(type, () => "done");
  void worker.run();
  await ended((await own.enqueue(type)).id);
  assert.deepEqual(seen, ["before t1", "after done"]);
  await worker.stop();
  await own.close();
});
